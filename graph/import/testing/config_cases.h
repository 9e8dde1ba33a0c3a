#ifndef TACC_GRAPH_IMPORT_TESTING_CONFIG_CASES_H_
#define TACC_GRAPH_IMPORT_TESTING_CONFIG_CASES_H_

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

// Small configurations of every family, and what may be changed in them.
namespace tacc::graph {

// Whether the family is read as Llama is, with keys of the same names; whether its layers have experts.
bool IsLlamaLike(const std::string& family);
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

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_TESTING_CONFIG_CASES_H_
