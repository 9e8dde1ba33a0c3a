#include "jobfile/cluster_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "jobfile/scalar.h"
#include "text/nearest_name.h"

namespace tacc::jobfile {
namespace {

constexpr char kPrefix[] = "cluster: ";

bool IsIn(const std::string& name, const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string Unknown(const std::string& what, const std::string& name, const std::vector<std::string>& known) {
  const std::string nearest = NearestSlip(name, known);
  return absl::StrCat(what, " \"", name, "\" is not known",
                      nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?"),
                      nearest.empty() ? "; known: " : " Known: ", absl::StrJoin(known, ", "));
}

nlohmann::json ValueOf(const YamlNode& node) {
  int64_t whole = 0;
  double number = 0;
  if (node.kind == YamlNode::Kind::kPlain && absl::SimpleAtoi(node.text, &whole)) return whole;
  if (node.kind == YamlNode::Kind::kPlain && absl::SimpleAtod(node.text, &number)) return number;
  return node.text;
}

}  // namespace

std::string ClusterFile::Locate(const std::string& message) const {
  if (!absl::StartsWith(message, kPrefix)) return message;
  const std::string rest = message.substr(sizeof(kPrefix) - 1);
  const auto place = places.find(rest.substr(0, rest.find(' ')));
  const Place at = place == places.end() ? Place{} : place->second;
  return absl::StrCat(file, ":", at.line, ":", at.column, ": ", rest);
}

absl::StatusOr<ClusterFile> ParseClusterFile(const std::string& text, const std::string& file,
                                             const KnownMachines& known) {
  YamlNode root;
  std::vector<Diagnostic> diagnostics = ParseYaml(text, &root);
  if (!diagnostics.empty()) root = YamlNode();
  ClusterFile parsed;
  parsed.file = file;
  parsed.cluster = nlohmann::json::object();
  if (diagnostics.empty() && root.kind != YamlNode::Kind::kMap)
    diagnostics.push_back({root.place, absl::StrCat("a cluster file is a map of fields (machine, nodes or gpus, ...), "
                                                    "this is ",
                                                    KindOf(root))});
  for (size_t i = 0; root.kind == YamlNode::Kind::kMap && i < root.keys.size(); ++i) {
    const std::string& name = root.keys[i].text;
    const YamlNode& value = root.items[i];
    if (!IsIn(name, known.fields)) {
      diagnostics.push_back({root.keys[i].place, Unknown("field", name, known.fields)});
    } else if (value.kind != YamlNode::Kind::kPlain && value.kind != YamlNode::Kind::kQuoted) {
      diagnostics.push_back({value.place, absl::StrCat(name, " wants a name or a number, not ", KindOf(value))});
    } else if (name == "machine" && !IsIn(value.text, known.machines)) {
      diagnostics.push_back({value.place, Unknown("machine", value.text, known.machines)});
    }
    parsed.places[name] = value.place;
    parsed.cluster[name] = ValueOf(value);
  }
  if (diagnostics.empty()) return parsed;
  return absl::InvalidArgumentError(absl::StrJoin(diagnostics, "\n", [&](std::string* out, const Diagnostic& d) {
    absl::StrAppend(out, file, ":", d.place.line, ":", d.place.column, ": ", d.message);
  }));
}

absl::StatusOr<ClusterFile> LoadClusterFile(const std::string& path, const KnownMachines& known) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return absl::InvalidArgumentError(absl::StrCat(path, ": is a folder; give the path of a cluster file (YAML)"));
  std::ifstream stream(path, std::ios::binary);
  if (!stream)
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read; give the path of a cluster file (YAML)"));
  return ParseClusterFile(std::string(std::istreambuf_iterator<char>(stream), {}), path, known);
}

}  // namespace tacc::jobfile
