// Small configurations of every family, and what may be changed in them.
#ifndef TACC_GRAPH_IMPORT_TESTING_CONFIG_CASES_H_
#define TACC_GRAPH_IMPORT_TESTING_CONFIG_CASES_H_

#include <set>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace tacc::graph {

// Whether the family is read as Llama is, with keys of the same names; whether it has DeepSeek's keys; whether its
// layers have experts, and Llama's keys.
bool IsLlamaLike(const std::string& family);
bool IsDeepseek(const std::string& family);
bool IsMixture(const std::string& family);

// The family's config.json with no more keys than it needs.
nlohmann::json BaseConfig(const std::string& family);

// `config` with the keys of `changes` in place of its own.
nlohmann::json With(nlohmann::json config, const nlohmann::json& changes);

// One changed key, and what else the configuration needs for it to matter.
struct Flip {
  std::string key;
  nlohmann::json value;
  nlohmann::json others = nlohmann::json::object();
};

// Each key that the family reads, changed: another graph follows, or an error that names the key.
std::vector<Flip> FlipsOf(const std::string& family);

struct FamilyFlips {
  std::set<std::string> families;
  std::vector<Flip> flips;
};

// Of the families that are dense and no variants of LLaMA's keys alone (dense_config_cases.cc).
nlohmann::json BaseOfGpt(const std::string& family);   // null: another family
nlohmann::json MoreOfBase(const std::string& family);  // of one like LLaMA
std::vector<Flip> DenseFlips(const std::string& family);
// Whether the family has another key in place of the flip's.
bool IsOfOtherKey(const std::string& family, const Flip& flip);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_TESTING_CONFIG_CASES_H_
