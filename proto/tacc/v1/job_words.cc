#include "proto/tacc/v1/job_words.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace tacc {

std::string NumberText(double value) {
  if (value == std::floor(value) && std::fabs(value) < 1e15) return absl::StrCat(static_cast<int64_t>(value));
  // Shortest form that reads back: 5e-05 rather than 5.0000000000000002e-05.
  for (int digits = 1; digits < 17; ++digits) {
    char text[40];
    snprintf(text, sizeof(text), "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) return text;
  }
  return absl::StrCat(value);
}

std::string QuotedText(const std::string& text) {
  std::string out = "\"";
  for (const char c : text.substr(0, 200)) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      static const char kHex[] = "0123456789abcdef";
      absl::StrAppend(&out, "\\x", std::string(1, kHex[(c >> 4) & 15]), std::string(1, kHex[c & 15]));
    } else {
      out += c;
    }
  }
  return out + (text.size() > 200 ? "...\"" : "\"");
}

}  // namespace tacc
