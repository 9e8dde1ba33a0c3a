#ifndef TACC_GRAPH_IMPORT_CONFIG_READER_H_
#define TACC_GRAPH_IMPORT_CONFIG_READER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace tacc::graph {

// Reads a JSON object key by key and remembers which keys it was asked for, so that no key is passed over in silence:
// Finish fails for each key that was neither read nor declared harmless. Problems are collected; a getter that fails
// returns its fallback. A key whose value is null counts as absent.
class ConfigReader {
 public:
  // `place` begins every message, as "config.json".
  ConfigReader(const nlohmann::json& object, std::string place);

  bool Has(const std::string& key);
  // True also when the value is null.
  bool Present(const std::string& key);
  // Bounds are inclusive. Without a fallback the key is required.
  int64_t Int(const std::string& key, int64_t min, int64_t max, int64_t fallback);
  std::optional<int64_t> OptionalInt(const std::string& key, int64_t min, int64_t max);
  double Float(const std::string& key, double min, double max, std::optional<double> fallback = std::nullopt);
  std::optional<double> OptionalFloat(const std::string& key, double min, double max);
  bool Bool(const std::string& key, bool fallback);
  std::string String(const std::string& key, const std::string& fallback);
  // As String, and one of `values` (sorted by their keys in the message).
  template <typename T>
  T Choice(const std::string& key, const std::map<std::string, T>& values, const std::string& fallback) {
    const std::string value = String(key, fallback);
    auto it = values.find(value);
    if (it != values.end()) return it->second;
    std::vector<std::string> names;
    for (const auto& entry : values) names.push_back(entry.first);
    FailChoice(key, names);
    return values.at(fallback);
  }
  std::vector<std::string> Strings(const std::string& key);
  std::vector<int64_t> Ints(const std::string& key, int64_t min, int64_t max);
  std::vector<double> Floats(const std::string& key, double min, double max);
  // The object under `key`, or null.
  const nlohmann::json* Object(const std::string& key);
  // The value must be absent, or equal to `harmless`; otherwise the key is refused, with `reason`.
  void RefuseUnless(const std::string& key, const nlohmann::json& harmless, const std::string& reason);

  // Keys that do not change what is computed.
  void Harmless(const std::set<std::string>& keys);
  // "PLACE: KEY VALUE: what".
  void Fail(const std::string& key, const std::string& what);
  // Takes over the problems of a nested reader.
  void Adopt(ConfigReader& nested);

  // `owner` names who does not know the unknown keys. InvalidArgument with one problem a line.
  absl::Status Finish(const std::string& owner);
  // Keys that were read (not the harmless ones).
  const std::set<std::string>& used() const { return used_; }

 private:
  const nlohmann::json* Find(const std::string& key);
  void FailChoice(const std::string& key, const std::vector<std::string>& names);
  template <typename T>
  std::optional<T> Number(const std::string& key, T min, T max);

  const nlohmann::json& object_;
  std::string place_;
  std::set<std::string> used_;
  std::set<std::string> harmless_;
  std::vector<std::string> problems_;
  bool finished_ = false;
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_CONFIG_READER_H_
