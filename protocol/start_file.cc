#include "protocol/start_file.h"

#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace tacc::protocol {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// "train" of "train.max_steps"; empty: the field is in no section.
std::string SectionOf(const std::string& name) {
  const size_t dot = name.find('.');
  return dot == std::string::npos ? "" : name.substr(0, dot);
}

std::string PlaceText(const char* name) { return absl::StrCat("/", absl::StrReplaceAll(name, {{".", "/"}})); }

// Words for the table, by the member's type.
std::string TypeWords(const std::string&, Range) { return "string"; }
std::string TypeWords(bool, Range) { return "true or false"; }
std::string TypeWords(int64_t, Range range) { return range == Range::kPositive ? "whole, at least 1" : "whole"; }
std::string TypeWords(int, Range range) { return TypeWords(int64_t{}, range); }
std::string TypeWords(uint64_t, Range range) { return TypeWords(int64_t{}, range); }
std::string TypeWords(double, Range range) { return range == Range::kPositive ? "number, positive" : "number"; }
std::string TypeWords(StartFile::Weights, Range) { return "`pretrained` or `random`"; }
std::string TypeWords(const std::map<std::string, std::string>&, Range) { return "object of strings"; }
std::string TypeWords(const json&, Range) { return "object"; }

const char* PresenceWords(Presence presence) {
  switch (presence) {
    case Presence::kRequired:
      return "no";
    case Presence::kWithSection:
      return "with its section";
    case Presence::kDefaulted:
    case Presence::kSparse:
      return "yes";
  }
  return "";
}

const char* SourceWords(Source source) {
  switch (source) {
    case Source::kJob:
      return "job";
    case Source::kCoordinator:
      return "coordinator";
    case Source::kDaemon:
      return "daemon";
  }
  return "";
}

}  // namespace

json::json_pointer Place(const char* name) { return json::json_pointer(PlaceText(name)); }
ordered_json::json_pointer OrderedPlace(const char* name) { return ordered_json::json_pointer(PlaceText(name)); }

ordered_json ToJson(StartFile::Weights weights) {
  return weights == StartFile::Weights::kPretrained ? "pretrained" : "random";
}

std::optional<std::string> Take(const json& json, Range, StartFile::Weights* value) {
  if (!json.is_string()) return "a string";
  if (json != "pretrained" && json != "random") return "\"pretrained\" or \"random\"";
  *value = json == "pretrained" ? StartFile::Weights::kPretrained : StartFile::Weights::kRandom;
  return std::nullopt;
}

std::string WriteStartFile(const StartFile& start) {
  const StartFile unset;
  std::set<std::string> sections;  // Those of which something is set.
  ForEachField(kStartFields, [&](const auto& field) {
    if (start.*field.member != unset.*field.member) sections.insert(SectionOf(field.name));
  });
  ordered_json json;
  ForEachField(kStartFields, [&](const auto& field) {
    if (field.source == Source::kDaemon) return;
    if (field.presence == Presence::kWithSection && sections.count(SectionOf(field.name)) == 0) return;
    if (field.presence == Presence::kSparse && start.*field.member == unset.*field.member) return;
    json[OrderedPlace(field.name)] = ToJson(start.*field.member);
  });
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

absl::StatusOr<StartFile> ReadStartFile(const json& object, const std::string& where) {
  StartFile start;
  absl::Status status;  // The first problem stays.
  const auto missing = [&](const std::string& name) {
    status.Update(absl::InvalidArgumentError(absl::StrCat(where, name, " is missing")));
  };
  const auto wrong = [&](const std::string& name, const std::string& wanted, const json& got) {
    status.Update(
        absl::InvalidArgumentError(absl::StrCat(where, name, " is ", got.dump().substr(0, 80), "; wanted ", wanted)));
  };
  ForEachField(kStartFields, [&](const auto& field) {
    if (const std::string section = SectionOf(field.name); !section.empty()) {
      const auto found = object.find(section);
      if (found == object.end()) {
        if (field.presence == Presence::kRequired) missing(section);
        return;
      }
      if (!found->is_object()) return wrong(section, "an object", *found);
    }
    const json::json_pointer place = Place(field.name);
    if (!object.contains(place)) {
      if (field.presence == Presence::kRequired || field.presence == Presence::kWithSection) missing(field.name);
      return;
    }
    const json& value = object[place];
    if (const auto wanted = Take(value, field.range, &(start.*field.member)); wanted.has_value())
      return wrong(field.name, *wanted, value);
    if constexpr (std::is_integral_v<std::decay_t<decltype(start.*field.member)>>) {
      if (field.most > 0 && static_cast<int64_t>(start.*field.member) > field.most)
        wrong(field.name, absl::StrCat("a whole number of at most ", field.most), value);
    }
  });
  if (!status.ok()) return status;
  return start;
}

std::string WithStartTable(const std::string& page) {
  constexpr char kHead[] = "| field | type | may be absent | set by | meaning |";
  std::vector<std::string> lines;
  bool is_in_table = false;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(page, '\n'))) {
    if (line == kHead) {
      is_in_table = true;
      lines.insert(lines.end(), {line, "| --- | --- | --- | --- | --- |"});
      ForEachField(kStartFields, [&lines](const auto& field) {
        lines.push_back(absl::StrCat("| `", field.name, "` | ", TypeWords(StartFile().*field.member, field.range),
                                     " | ", PresenceWords(field.presence), " | ", SourceWords(field.source), " | ",
                                     field.meaning, " |"));
      });
    }
    is_in_table = is_in_table && absl::StartsWith(line, "|");
    if (!is_in_table) lines.push_back(line);
  }
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) absl::StrAppend(&text, i == 0 ? "" : "\n", lines[i]);
  return text;
}

}  // namespace tacc::protocol
