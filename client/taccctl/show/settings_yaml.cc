#include "client/taccctl/show/settings_yaml.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/taccctl/show/message_json.h"

namespace tacc::client {
namespace {

using nlohmann::ordered_json;

// In quotes where YAML, or the reader of job files, would take it for something else.
std::string Text(const std::string& text) {
  static const std::set<std::string> kWords = {"y",    "n",     "yes",  "no",  "on", "off",
                                               "true", "false", "null", "inf", "nan"};
  const bool plain = !text.empty() && absl::ascii_isalpha(static_cast<unsigned char>(text[0])) &&
                     kWords.count(absl::AsciiStrToLower(text)) == 0 &&
                     std::all_of(text.begin(), text.end(), [](char c) {
                       return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '/';
                     });
  return plain ? text : ordered_json(text).dump();
}

// On one line.
std::string Flow(const ordered_json& value) {
  std::vector<std::string> parts;
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) parts.push_back(absl::StrCat(Text(key), ": ", Flow(item)));
    return absl::StrCat("{", absl::StrJoin(parts, ", "), "}");
  }
  if (value.is_array()) {
    for (const ordered_json& item : value) parts.push_back(Flow(item));
    return absl::StrCat("[", absl::StrJoin(parts, ", "), "]");
  }
  return value.is_string() ? Text(value.get<std::string>()) : value.dump();
}

// Repeated fields and maps are always there in a message's JSON.
void DropEmpty(ordered_json& object) {
  for (auto it = object.begin(); it != object.end();) {
    if (it->is_object()) DropEmpty(*it);
    it = it->is_structured() && it->empty() ? object.erase(it) : std::next(it);
  }
}

}  // namespace

std::string SettingsYaml(const ordered_json& settings, const v1::JobSpec& spec) {
  if (!settings.is_object()) return "";
  const ordered_json job = MessageJson(spec);
  std::string yaml;
  for (const char* section : {"resources", "dist", "memory", "compute", "train"}) {
    ordered_json merged = job.value(section, ordered_json::object());
    if (std::string(section) == "train") merged = ordered_json::object();
    if (settings.contains(section)) merged.merge_patch(settings[section]);
    DropEmpty(merged);
    if (merged.empty()) continue;
    absl::StrAppend(&yaml, section, ":", std::string(section) == "train" ? "  # beside its other fields" : "", "\n");
    for (const auto& [key, value] : merged.items()) absl::StrAppend(&yaml, "  ", Text(key), ": ", Flow(value), "\n");
  }
  return yaml;
}

}  // namespace tacc::client
