// JSON that others wrote: files, messages and lines of other processes. nlohmann's parser takes any depth, but what
// works on the parsed value calls itself once a level (copies, dump, comparison), so that a text of a megabyte of '['
// ends the process with its stack. All JSON is therefore read here.
#ifndef TACC_JSON_PARSE_JSON_H_
#define TACC_JSON_PARSE_JSON_H_

#include <cstddef>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tacc {

// Objects and lists within each other. The files of this project have at most 8 levels.
inline constexpr int kMaxJsonDepth = 64;
// Most readers have a limit of their own that is less; a trace of one step of many ranks has some hundred MB.
inline constexpr size_t kMaxJsonBytes = size_t{1} << 30;

// Whether a text, JSON or not, is within both limits.
bool IsWithinJsonLimits(absl::string_view text);

// The value of a text; a discarded one (as of nlohmann's parse without exceptions) where it is not JSON, or not within
// the limits. Any bytes are safe.
nlohmann::json ParseJson(absl::string_view text);
// The same, with keys in the order of the text.
nlohmann::ordered_json ParseOrderedJson(absl::string_view text);

}  // namespace tacc

#endif  // TACC_JSON_PARSE_JSON_H_
