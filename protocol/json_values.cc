#include "protocol/json_values.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace tacc::protocol {
namespace {

using nlohmann::json;

// Into a signed type.
template <typename Whole>
std::optional<std::string> TakeWhole(const json& value, Range range, Whole* whole) {
  const Whole least = range == Range::kPositive ? 1 : 0, most = std::numeric_limits<Whole>::max();
  const std::string too_small = absl::StrCat("a whole number of at least ", least);
  if (!value.is_number_integer()) return too_small;
  // What has no sign goes up to 2^64.
  const bool is_large = value.is_number_unsigned() && value.get<uint64_t>() >> 63 != 0;
  if (is_large || value.get<int64_t>() > most) return absl::StrCat("a whole number of at most ", most);
  if (value.get<int64_t>() < least) return too_small;
  *whole = value.get<Whole>();
  return std::nullopt;
}

}  // namespace

std::optional<std::string> Take(const json& json, Range, std::string* value) {
  if (!json.is_string()) return "a string";
  *value = json.get<std::string>();
  return std::nullopt;
}

std::optional<std::string> Take(const json& json, Range, bool* value) {
  if (!json.is_boolean()) return "true or false";
  *value = json.get<bool>();
  return std::nullopt;
}

std::optional<std::string> Take(const json& json, Range range, int64_t* value) { return TakeWhole(json, range, value); }

std::optional<std::string> Take(const json& json, Range range, int* value) { return TakeWhole(json, range, value); }

std::optional<std::string> Take(const json& json, Range, uint64_t* value) {
  if (!json.is_number_unsigned()) return "a whole number of at least 0";
  *value = json.get<uint64_t>();
  return std::nullopt;
}

std::optional<std::string> Take(const json& json, Range range, double* value) {
  const bool is_positive = range == Range::kPositive;
  const double number = json.is_number() ? json.get<double>() : -1;
  if (!(is_positive ? number > 0 : number >= 0)) return is_positive ? "a positive number" : "a number of at least 0";
  *value = number;
  return std::nullopt;
}

std::optional<std::string> Take(const json& json, Range, std::map<std::string, std::string>* value) {
  if (!json.is_object()) return "an object";
  for (const auto& [key, text] : json.items()) {
    if (!text.is_string()) return "an object of strings";
    (*value)[key] = text.get<std::string>();
  }
  return std::nullopt;
}

std::optional<std::string> Take(const json& json, Range, nlohmann::json* value) {
  if (!json.is_object()) return "an object";
  *value = json;
  return std::nullopt;
}

std::optional<std::string> Take(const json& json, Range, std::vector<nlohmann::json>* value) {
  const auto is_object = [](const nlohmann::json& entry) { return entry.is_object(); };
  if (!json.is_array() || !std::all_of(json.begin(), json.end(), is_object)) return "a list of objects";
  *value = json.get<std::vector<nlohmann::json>>();
  return std::nullopt;
}

}  // namespace tacc::protocol
