#include "graph/import/config_reader.h"

#include <limits>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tacc::graph {
namespace {

// The value as it stands in the file, cut to a length that fits a message.
std::string Shown(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

std::string BoundsText(const std::string& min, const std::string& max, bool has_min, bool has_max) {
  if (has_min && has_max) return absl::StrCat(" from ", min, " to ", max);
  if (has_min) return absl::StrCat(", at least ", min);
  if (has_max) return absl::StrCat(", at most ", max);
  return "";
}

}  // namespace

ConfigReader::ConfigReader(const nlohmann::json& object, std::string place)
    : object_(object), place_(std::move(place)) {}

const nlohmann::json* ConfigReader::Find(const std::string& key) {
  used_.insert(key);
  auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool ConfigReader::Has(const std::string& key) { return Find(key) != nullptr; }

bool ConfigReader::Present(const std::string& key) { return Has(key) || object_.contains(key); }

template <typename T>
std::optional<T> ConfigReader::Number(const std::string& key, T min, T max) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::nullopt;
  constexpr bool kWhole = std::is_same_v<T, int64_t>;
  bool fits = kWhole ? value->is_number_integer() : value->is_number();
  if (fits && value->is_number_unsigned()) {
    fits = value->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  }
  if (fits) {
    const T number = value->get<T>();
    if (number >= min && number <= max) return number;
  }
  const bool has_min = min > std::numeric_limits<T>::lowest();
  const bool has_max = max < std::numeric_limits<T>::max();
  Fail(key, absl::StrCat("wanted a ", kWhole ? "whole number" : "number",
                         BoundsText(absl::StrCat(min), absl::StrCat(max), has_min, has_max)));
  return std::nullopt;
}

int64_t ConfigReader::Int(const std::string& key, int64_t min, int64_t max, int64_t fallback) {
  return OptionalInt(key, min, max).value_or(fallback);
}

std::optional<int64_t> ConfigReader::OptionalInt(const std::string& key, int64_t min, int64_t max) {
  return Number<int64_t>(key, min, max);
}

double ConfigReader::Float(const std::string& key, double min, double max, std::optional<double> fallback) {
  const auto number = OptionalFloat(key, min, max);
  if (number.has_value()) return *number;
  if (!fallback.has_value() && Find(key) == nullptr) Fail(key, "this key is required");
  return fallback.value_or(min);
}

std::optional<double> ConfigReader::OptionalFloat(const std::string& key, double min, double max) {
  return Number<double>(key, min, max);
}

bool ConfigReader::Bool(const std::string& key, bool fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  Fail(key, "wanted true or false");
  return fallback;
}

std::string ConfigReader::String(const std::string& key, const std::string& fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->is_string()) return value->get<std::string>();
  Fail(key, "wanted a string");
  return fallback;
}

std::vector<std::string> ConfigReader::Strings(const std::string& key) {
  const nlohmann::json* value = Find(key);
  std::vector<std::string> strings;
  if (value == nullptr) return strings;
  bool fits = value->is_array();
  if (fits) {
    for (const nlohmann::json& item : *value) fits = fits && item.is_string();
  }
  if (!fits) {
    Fail(key, "wanted a list of strings");
    return strings;
  }
  for (const nlohmann::json& item : *value) strings.push_back(item.get<std::string>());
  return strings;
}

std::vector<int64_t> ConfigReader::Ints(const std::string& key, int64_t min, int64_t max) {
  const nlohmann::json* value = Find(key);
  std::vector<int64_t> numbers;
  if (value == nullptr) return numbers;
  bool fits = value->is_array();
  for (size_t i = 0; fits && i < value->size(); ++i) {
    const nlohmann::json& item = (*value)[i];
    fits = item.is_number_integer() && item >= min && item <= max;
    if (fits) numbers.push_back(item.get<int64_t>());
  }
  if (fits) return numbers;
  Fail(key, absl::StrCat("wanted a list of whole numbers from ", min, " to ", max));
  return {};
}

std::vector<double> ConfigReader::Floats(const std::string& key, double min, double max) {
  const nlohmann::json* value = Find(key);
  std::vector<double> numbers;
  if (value == nullptr) return numbers;
  bool fits = value->is_array();
  for (size_t i = 0; fits && i < value->size(); ++i) {
    const nlohmann::json& item = (*value)[i];
    fits = item.is_number() && item >= min && item <= max;
    if (fits) numbers.push_back(item.get<double>());
  }
  if (fits) return numbers;
  Fail(key, absl::StrCat("wanted a list of numbers from ", min, " to ", max));
  return {};
}

const nlohmann::json* ConfigReader::Object(const std::string& key) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr || value->is_object()) return value;
  Fail(key, "wanted an object");
  return nullptr;
}

void ConfigReader::RefuseUnless(const std::string& key, const nlohmann::json& harmless, const std::string& reason) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr || *value == harmless) return;
  Fail(key, reason);
}

void ConfigReader::Harmless(const std::set<std::string>& keys) { harmless_.insert(keys.begin(), keys.end()); }

void ConfigReader::Fail(const std::string& key, const std::string& what) {
  auto it = object_.find(key);
  problems_.push_back(it == object_.end() ? absl::StrCat(place_, ": ", key, ": ", what)
                                          : absl::StrCat(place_, ": ", key, " = ", Shown(*it), ": ", what));
}

void ConfigReader::FailChoice(const std::string& key, const std::vector<std::string>& names) {
  std::vector<std::string> shown;  // "" stands for the absent key
  for (const std::string& name : names) {
    if (!name.empty()) shown.push_back(name);
  }
  Fail(key, absl::StrCat("not supported; wanted one of ", absl::StrJoin(shown, ", ")));
}

void ConfigReader::Adopt(ConfigReader& nested) {
  problems_.insert(problems_.end(), nested.problems_.begin(), nested.problems_.end());
  nested.problems_.clear();
}

absl::Status ConfigReader::Finish(const std::string& owner) {
  if (!finished_) {
    finished_ = true;
    for (const auto& item : object_.items()) {
      if (used_.count(item.key()) > 0 || harmless_.count(item.key()) > 0) continue;
      Fail(item.key(),
           absl::StrCat("this key is not known to ", owner,
                        "; it may change what the model computes, so it is refused. Remove it if it does not"));
    }
  }
  if (problems_.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
}

}  // namespace tacc::graph
