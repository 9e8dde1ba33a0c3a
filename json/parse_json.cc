#include "json/parse_json.h"

namespace tacc {
namespace {

template <typename Json>
Json Parse(absl::string_view text) {
  if (!IsWithinJsonLimits(text)) return Json(Json::value_t::discarded);
  return Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

}  // namespace

bool IsWithinJsonLimits(absl::string_view text) {
  if (text.size() > kMaxJsonBytes) return false;
  // Up to the first error, at which a parser ends, it sees the same strings and brackets.
  int depth = 0;
  bool is_in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_in_string) {
      if (c == '\\') ++i;
      if (c == '"') is_in_string = false;
    } else if (c == '"') {
      is_in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxJsonDepth) return false;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return true;
}

nlohmann::json ParseJson(absl::string_view text) { return Parse<nlohmann::json>(text); }
nlohmann::ordered_json ParseOrderedJson(absl::string_view text) { return Parse<nlohmann::ordered_json>(text); }

}  // namespace tacc
