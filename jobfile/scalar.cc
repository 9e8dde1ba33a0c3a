#include "jobfile/scalar.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <regex>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace tacc::jobfile {
namespace {

constexpr size_t kMaxShownBytes = 80;

std::string Shown(const std::string& text) {
  const std::string escaped = absl::StrReplaceAll(text, {{"\n", "\\n"}, {"\t", "\\t"}, {"\r", "\\r"}});
  return escaped.size() > kMaxShownBytes ? absl::StrCat(escaped.substr(0, kMaxShownBytes), "...") : escaped;
}

template <size_t kSize>
struct Pattern {
  consteval Pattern(const char (&literal)[kSize]) { std::copy_n(literal, kSize, text); }  // NOLINT: implicit
  char text[kSize];
};

template <Pattern kPattern>
bool Matches(const std::string& text) {
  // It takes a millisecond to make, and a list has many scalars.
  static const std::regex pattern(kPattern.text);
  // std::regex recurses with the length of the text.
  return text.size() <= kMaxShownBytes && std::regex_match(text, pattern);
}

// What YAML 1.1 and 1.2 readers take for a boolean.
std::optional<bool> BooleanWord(const std::string& text) {
  static const std::set<std::string> kTrue = {"true", "yes", "on", "y"}, kFalse = {"false", "no", "off", "n"};
  const std::string lower = absl::AsciiStrToLower(text);
  if (kTrue.count(lower)) return true;
  if (kFalse.count(lower)) return false;
  return std::nullopt;
}

bool LooksLikeNumber(const std::string& text) {
  return text.find_first_of("0123456789") != std::string::npos &&
         Matches<"[-+]?(0[xX][0-9a-fA-F_]+|0o[0-7_]+|0b[01_]+|([0-9][0-9_]*)?\\.?[0-9_]*([eE][-+]?[0-9]+)?)">(text);
}

bool LooksLikeInfOrNan(const std::string& text) {
  return Matches<"[-+]?\\.?(inf|nan|infinity)">(absl::AsciiStrToLower(text));
}

absl::Status Wrong(const std::string& name, const YamlNode& node, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat(name, " = ", Shown(node.text), why));
}

// Errors that all numbers share; `wanted` is "a whole number" or "a number".
absl::Status CheckNumber(const YamlNode& node, const std::string& name, const std::string& wanted) {
  if (node.kind == YamlNode::Kind::kNull)
    return absl::InvalidArgumentError(absl::StrCat(name, " has no value; give ", wanted, " or delete the line"));
  if (node.kind == YamlNode::Kind::kList || node.kind == YamlNode::Kind::kMap) {
    return absl::InvalidArgumentError(absl::StrCat(name, " wants ", wanted, ", not ", KindOf(node)));
  }
  const std::string& text = node.text;
  if (node.kind == YamlNode::Kind::kQuoted) {
    return absl::InvalidArgumentError(absl::StrCat(name, " = \"", Shown(text), "\" is text, wanted ", wanted,
                                                   LooksLikeNumber(text) ? "; remove the quotes" : ""));
  }
  if (LooksLikeInfOrNan(text)) return Wrong(name, node, " is not finite; give a finite number");
  if (Matches<"[-+]?0[xX][0-9a-fA-F]{1,8}">(text)) {
    return Wrong(name, node, absl::StrCat(" is hexadecimal; write ", std::strtoll(text.c_str(), nullptr, 16)));
  }
  if (Matches<"0o[0-7]{1,10}">(text))
    return Wrong(name, node, absl::StrCat(" is octal; write ", std::strtoll(text.c_str() + 2, nullptr, 8)));
  if (Matches<"-?0[0-9]{1,10}">(text)) {
    const std::string octal = text.find_first_of("89") == std::string::npos
                                  ? absl::StrCat(" or ", std::strtoll(text.c_str(), nullptr, 8))
                                  : "";
    return Wrong(name, node,
                 absl::StrCat(" has a leading zero, which some read as octal; write ",
                              std::strtoll(text.c_str(), nullptr, 10), octal));
  }
  if (Matches<"[-+]?[0-9][0-9_.]*_[0-9_.]*">(text)) {
    return Wrong(name, node,
                 absl::StrCat(" has underscores; write ", absl::StrReplaceAll(text, {{"_", ""}, {"+", ""}})));
  }
  return absl::OkStatus();
}

}  // namespace

std::string KindOf(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kQuoted:
      return "text";
    case YamlNode::Kind::kList:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a map";
    case YamlNode::Kind::kPlain:
      break;
  }
  return LooksLikeNumber(node.text) ? "a number" : BooleanWord(node.text) ? "a boolean" : "text";
}

absl::StatusOr<int32_t> ReadInt32(const YamlNode& node, const std::string& name) {
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min(), kMax = std::numeric_limits<int32_t>::max();
  const absl::Status checked = CheckNumber(node, name, "a whole number");
  if (!checked.ok()) return checked;
  const std::string& text = node.text;
  const auto out_of_range = [&](bool is_negative) {
    return Wrong(name, node,
                 is_negative ? absl::StrCat(" is too small; the smallest is ", kMin)
                             : absl::StrCat(" is too large; the largest is ", kMax));
  };
  if (Matches<"-?(0|[1-9][0-9]*)">(text)) {
    errno = 0;
    const long long value = std::strtoll(text.c_str(), nullptr, 10);
    if (errno != 0 || value < kMin || value > kMax) return out_of_range(text[0] == '-');
    return static_cast<int32_t>(value);
  }
  if (Matches<"\\+[1-9][0-9]*">(text)) return Wrong(name, node, absl::StrCat(" has a sign; write ", text.substr(1)));
  if (LooksLikeNumber(text)) {
    const double value = std::strtod(text.c_str(), nullptr);
    if (value < kMin || value > kMax) return out_of_range(value < 0);
    const bool whole = value == std::floor(value);
    return Wrong(
        name, node,
        absl::StrCat(" is not a whole number", whole ? absl::StrCat("; write ", static_cast<int64_t>(value)) : ""));
  }
  return Wrong(name, node, " is not a whole number");
}

absl::StatusOr<double> ReadDouble(const YamlNode& node, const std::string& name) {
  const absl::Status checked = CheckNumber(node, name, "a number");
  if (!checked.ok()) return checked;
  const std::string& text = node.text;
  if (!Matches<"-?((0|[1-9][0-9]*)(\\.[0-9]*)?|\\.[0-9]+)([eE][-+]?[0-9]+)?">(text)) {
    if (Matches<"\\+[0-9.][0-9.eE+-]*">(text))
      return Wrong(name, node, absl::StrCat(" has a sign; write ", text.substr(1)));
    return Wrong(name, node, " is not a number");
  }
  const double value = std::strtod(text.c_str(), nullptr);
  if (!std::isfinite(value)) return Wrong(name, node, " is too large for a float64");
  return value;
}

absl::StatusOr<bool> ReadBool(const YamlNode& node, const std::string& name) {
  if (node.kind == YamlNode::Kind::kNull)
    return absl::InvalidArgumentError(absl::StrCat(name, " has no value; give true or false, or delete the line"));
  if (node.kind == YamlNode::Kind::kPlain && node.text == "true") return true;
  if (node.kind == YamlNode::Kind::kPlain && node.text == "false") return false;
  if (node.kind == YamlNode::Kind::kList || node.kind == YamlNode::Kind::kMap) {
    return absl::InvalidArgumentError(absl::StrCat(name, " wants true or false, not ", KindOf(node)));
  }
  const std::optional<bool> word = BooleanWord(node.text);
  if (node.kind == YamlNode::Kind::kQuoted) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " = \"", Shown(node.text), "\" is text, wanted true or false",
                     word.has_value() ? absl::StrCat("; write ", *word ? "true" : "false", " without quotes") : ""));
  }
  return Wrong(name, node,
               word.has_value() ? absl::StrCat(" is not true or false; write ", *word ? "true" : "false")
                                : " is not true or false");
}

absl::StatusOr<std::string> ReadString(const YamlNode& node, const std::string& name) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return absl::InvalidArgumentError(absl::StrCat(name, " has no value; give one or delete the line"));
    case YamlNode::Kind::kList:
    case YamlNode::Kind::kMap:
      return absl::InvalidArgumentError(absl::StrCat(name, " wants text, not ", KindOf(node)));
    case YamlNode::Kind::kQuoted:
      return node.text;
    case YamlNode::Kind::kPlain:
      break;
  }
  if (LooksLikeNumber(node.text) || LooksLikeInfOrNan(node.text)) {
    return Wrong(name, node, absl::StrCat(" is a number, wanted text; write \"", Shown(node.text), "\""));
  }
  if (BooleanWord(node.text).has_value())
    return Wrong(name, node, absl::StrCat(" is a boolean in YAML, wanted text; write \"", Shown(node.text), "\""));
  return node.text;
}

}  // namespace tacc::jobfile
