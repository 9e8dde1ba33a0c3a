#include "jobfile/job_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "jobfile/foreign_names.h"
#include "jobfile/scalar.h"
#include "jobfile/yaml_tree.h"
#include "machine/tacc_python.h"
#include "proto/tacc/v1/upload_name.h"
#include "proto/tacc/v1/validate_job.h"
#include "tacc/v1/options.pb.h"
#include "text/nearest_name.h"

namespace tacc::jobfile {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

constexpr size_t kMaxDiagnostics = 100;

std::string Join(absl::string_view path, absl::string_view name) {
  return path.empty() ? std::string(name) : absl::StrCat(path, ".", name);
}

// Text of the user's on one line, not too long for a message.
std::string Cut(const std::string& text) {
  const std::string cut = text.size() > 80 ? absl::StrCat(text.substr(0, 80), "...") : text;
  return absl::StrReplaceAll(cut, {{"\n", "\\n"}, {"\t", "\\t"}, {"\r", "\\r"}});
}

// The text of a key or value of the user's, for a message.
std::string Quoted(const std::string& text) { return absl::StrCat("\"", Cut(text), "\""); }

std::vector<std::string> FieldNames(const Descriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) names.emplace_back(type.field(i)->name());
  return names;
}

// Paths of all fields called `name`.
void FindField(const Descriptor& type, const std::string& path, const std::string& name,
               std::vector<std::string>* found) {
  for (int i = 0; i < type.field_count(); ++i) {
    const std::string field = Join(path, type.field(i)->name());
    if (type.field(i)->name() == name) found->push_back(field);
    if (type.field(i)->message_type() != nullptr && !type.field(i)->is_map())
      FindField(*type.field(i)->message_type(), field, name, found);
  }
}

// Ulysses (dist.sp) lies inside cp: a topology that names sp, as TorchAcc's does, and not cp, means cp there.
void PlaceUlysses(v1::DistSpec* dist) {
  auto* const topology = dist->mutable_topology();
  const auto sp = std::find(topology->begin(), topology->end(), "sp");
  if (sp != topology->end() && std::find(topology->begin(), topology->end(), "cp") == topology->end()) *sp = "cp";
}

class Reader {
 public:
  Reader(std::string directory, const JobFileOptions& options) : directory_(std::move(directory)), options_(options) {}

  JobFile Run(const std::string& text) {
    YamlNode root;
    v1::JobSpec spec;
    diagnostics_ = ParseYaml(text, &root);
    if (diagnostics_.empty()) {
      for (size_t i = 0; i < options_.sets.size(); ++i) Set(static_cast<int>(i) + 1, options_.sets[i], &root);
      if (root.kind != YamlNode::Kind::kMap) {
        diagnostics_.push_back(
            {root.place,
             absl::StrCat("a job file is a map of fields (name, model, data, train, ...), this is ", KindOf(root))});
      } else {
        ReadMessage(root, "", &spec);
        if (spec.has_dist()) PlaceUlysses(spec.mutable_dist());
        if (!spec.checkpoint().has_dir()) spec.mutable_checkpoint()->set_dir(Resolve("runs/" + spec.name()));
        Validate(spec);
      }
    }
    std::stable_sort(diagnostics_.begin(), diagnostics_.end(), [](const Diagnostic& a, const Diagnostic& b) {
      return std::tie(a.place.set, a.place.line, a.place.column) < std::tie(b.place.set, b.place.line, b.place.column);
    });
    return {std::move(spec), std::move(diagnostics_)};
  }

 private:
  void Add(const Place& place, const std::string& message, const std::string& field = "") {
    diagnostics_.push_back({place, message, field});
  }

  void Fail(const std::string& path, const Place& place, const std::string& message) {
    failed_.insert(path);
    Add(place, message, path);
  }

  // The value of --set number `number`; nothing when something is wrong with it. kNull: `null`.
  std::optional<YamlNode> ValueOf(int number, const std::string& text) {
    YamlNode value;
    if (text == "null") {
      value.place = Place{1, 1, number};
      return value;
    }
    const std::vector<Diagnostic> wrong = ParseYaml(text, &value);
    if (text.find_first_not_of(" ~") == std::string::npos) {
      Add(Place{1, 1, number}, "it has no value; `null` takes the field out of the job");
    } else {
      for (const Diagnostic& diagnostic : wrong) Add(Place{1, 1, number}, diagnostic.message);
      if (wrong.empty()) {
        PlaceInSet(number, &value);
        return value;
      }
    }
    return std::nullopt;
  }

  static void PlaceInSet(int number, YamlNode* node) {
    node->place = Place{1, 1, number};
    for (YamlNode& item : node->items) PlaceInSet(number, &item);
    for (YamlNode& key : node->keys) PlaceInSet(number, &key);
  }

  // Lays `--set FIELD=VALUE` over the file.
  void Set(int number, const std::string& text, YamlNode* node) {
    const Place place{1, 1, number};
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) return Add(place, "it is not FIELD=VALUE, as train.max_steps=200");
    std::optional<YamlNode> value = ValueOf(number, text.substr(equals + 1));
    if (!value.has_value()) return;
    std::string rest = text.substr(0, equals), path;
    // The schema says where a map's key begins, which may have dots.
    const Descriptor* type = v1::JobSpec::descriptor();
    bool is_map = false;
    while (true) {
      if (node->kind == YamlNode::Kind::kNull) node->kind = YamlNode::Kind::kMap;
      if (node->kind != YamlNode::Kind::kMap)
        return Add(place, path.empty()
                              ? absl::StrCat("the job file is ", KindOf(*node), "; it has no fields")
                              : absl::StrCat(path, " is ", KindOf(*node), " in the job file; it has no fields"));
      const size_t dot = is_map ? std::string::npos : rest.find('.');
      const std::string name = rest.substr(0, dot);
      const FieldDescriptor* field = type == nullptr ? nullptr : type->FindFieldByName(name);
      const auto found =
          std::find_if(node->keys.begin(), node->keys.end(), [&](const YamlNode& key) { return key.text == name; });
      const auto at = found - node->keys.begin();
      if (dot == std::string::npos && value->kind == YamlNode::Kind::kNull) {
        if (type != nullptr && field == nullptr)
          return UnknownKey({YamlNode::Kind::kPlain, place, name, {}, {}}, path, *type);
        if (found == node->keys.end()) return;
        node->keys.erase(found);
        node->items.erase(node->items.begin() + at);
        return;
      }
      if (found == node->keys.end()) {
        node->keys.push_back({YamlNode::Kind::kPlain, place, name, {}, {}});
        node->items.push_back({YamlNode::Kind::kMap, place, "", {}, {}});
      }
      if (dot == std::string::npos) {
        node->keys[at].place = place;
        node->items[at] = *std::move(value);
        return;
      }
      node = &node->items[at];
      path = Join(path, name);
      rest = rest.substr(dot + 1);
      is_map = field != nullptr && field->is_map();
      type = field == nullptr || is_map ? nullptr : field->message_type();
    }
  }

  void ReadMessage(const YamlNode& node, const std::string& path, Message* message) {
    if (node.kind != YamlNode::Kind::kMap) {
      const std::string names = absl::StrJoin(FieldNames(*message->GetDescriptor()), ", ");
      Fail(path, node.place,
           node.kind == YamlNode::Kind::kNull
               ? absl::StrCat(path, " is empty; give fields (", names, ") or delete the line")
               : absl::StrCat(path, " wants fields (", names, "), not ", KindOf(node)));
      return;
    }
    for (size_t i = 0; i < node.keys.size(); ++i) {
      const YamlNode& key = node.keys[i];
      const YamlNode& value = node.items[i];
      const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(key.text);
      if (field == nullptr) {
        UnknownKey(key, path, *message->GetDescriptor());
        continue;
      }
      const std::string name = Join(path, field->name());
      if (field->is_map()) {
        places_[name] = key.place;
        ReadMap(value, name, field, message);
      } else if (field->is_repeated()) {
        places_[name] = value.place;
        ReadList(value, name, field, message);
      } else if (field->message_type() != nullptr) {
        places_[name] = key.place;
        ReadMessage(value, name, message->GetReflection()->MutableMessage(message, field));
      } else {
        places_[name] = value.place;
        ReadScalar(value, name, field, message);
      }
    }
  }

  void UnknownKey(const YamlNode& key, const std::string& path, const Descriptor& type) {
    const std::string what =
        absl::StrCat("unknown field ", Quoted(key.text), path.empty() ? "" : absl::StrCat(" in ", path));
    // Nobody is shown so many, and what could be meant takes longest.
    if (diagnostics_.size() >= kMaxDiagnostics) return Add(key.place, what, Join(path, key.text));
    const std::string nearest = NearestSlip(key.text, FieldNames(type));
    std::vector<std::string> elsewhere;
    FindField(*v1::JobSpec::descriptor(), "", key.text, &elsewhere);
    const ForeignName* foreign = FindForeignName(key.text);
    if (!elsewhere.empty()) {
      for (const std::string& field : elsewhere) failed_.insert(field);
      Add(key.place, absl::StrCat(what, "; it belongs at ", absl::StrJoin(elsewhere, " or ")), Join(path, key.text));
    } else if (foreign != nullptr) {
      if (!foreign->field.empty()) failed_.insert(foreign->field);
      Add(key.place, absl::StrCat(what, "; ", WithTaccPython(foreign->text)), Join(path, key.text));
    } else if (!nearest.empty()) {
      failed_.insert(Join(path, nearest));
      Add(key.place, absl::StrCat(what, "; did you mean \"", nearest, "\"?"), Join(path, key.text));
    } else {
      Add(key.place, absl::StrCat(what, "; there are ", absl::StrJoin(FieldNames(type), ", ")), Join(path, key.text));
    }
  }

  void ReadScalar(const YamlNode& node, const std::string& name, const FieldDescriptor* field, Message* message) {
    const Reflection& reflection = *message->GetReflection();
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        if (const auto value = Take(ReadInt32(node, name), name, node)) reflection.SetInt32(message, field, *value);
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        if (const auto value = Take(ReadDouble(node, name), name, node)) reflection.SetDouble(message, field, *value);
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        if (const auto value = Take(ReadBool(node, name), name, node)) reflection.SetBool(message, field, *value);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        ReadEnum(node, name, field, message);
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        if (const std::string word = WordInsteadOfBoolean(node, *field); !word.empty()) {
          Fail(name, node.place,
               absl::StrCat(name, " = ", node.text, " is a boolean, wanted a path or a word; write ", word));
        } else if (const auto value = Take(ReadString(node, name), name, node)) {
          ReadText(node, *value, name, field, message);
        }
        break;
      default:
        Fail(name, node.place, absl::StrCat(name, " has a type that a job file cannot say"));
    }
  }

  template <typename T>
  std::optional<T> Take(absl::StatusOr<T> value, const std::string& name, const YamlNode& node) {
    if (value.ok()) return *std::move(value);
    Fail(name, node.place, std::string(value.status().message()));
    return std::nullopt;
  }

  // What a field that takes words means by true and false; "" for other fields and values.
  static std::string WordInsteadOfBoolean(const YamlNode& node, const FieldDescriptor& field) {
    const v1::FieldRule& rule = field.options().GetExtension(v1::rule);
    if (node.kind != YamlNode::Kind::kPlain && node.kind != YamlNode::Kind::kQuoted) return "";
    return node.text == "true" || node.text == "True"     ? rule.instead_of_true()
           : node.text == "false" || node.text == "False" ? rule.instead_of_false()
                                                          : "";
  }

  void ReadText(const YamlNode& node, const std::string& value, const std::string& name, const FieldDescriptor* field,
                Message* message) {
    const v1::FieldRule& rule = field->options().GetExtension(v1::rule);
    std::string text = value;
    if (rule.path() && !value.empty()) {
      if (value == "~" || absl::StartsWith(value, "~/")) {
        Fail(name, node.place,
             absl::StrCat(name, " = ", Quoted(value), " is not expanded; write the folder's whole path"));
        return;
      }
      const auto& words = rule.path_word();
      const bool is_upload = rule.upload() && absl::StartsWith(value, kUploadPrefix);
      if (!is_upload && std::find(words.begin(), words.end(), value) == words.end()) text = Resolve(value, node.place);
    }
    message->GetReflection()->SetString(message, field, text);
  }

  void ReadEnum(const YamlNode& node, const std::string& name, const FieldDescriptor* field, Message* message) {
    const EnumDescriptor& type = *field->enum_type();
    std::vector<std::string> names;
    for (int i = 0; i < type.value_count(); ++i) {
      if (type.value(i)->number() == 0) continue;
      names.push_back(EnumValueInJobFile(*type.value(i)));
      if ((node.kind == YamlNode::Kind::kPlain || node.kind == YamlNode::Kind::kQuoted) && node.text == names.back()) {
        message->GetReflection()->SetEnum(message, field, type.value(i));
        return;
      }
    }
    const std::string wanted = absl::StrJoin(names, ", ");
    if (node.kind == YamlNode::Kind::kNull) {
      Fail(name, node.place, absl::StrCat(name, " has no value; give one of ", wanted, " or delete the line"));
    } else if (node.kind == YamlNode::Kind::kList || node.kind == YamlNode::Kind::kMap) {
      Fail(name, node.place, absl::StrCat(name, " wants one of ", wanted, ", not ", KindOf(node)));
    } else {
      const std::string nearest = NearestSlip(node.text, names), foreign = ForeignValue(name, node.text);
      Fail(name, node.place,
           absl::StrCat(name, " = ", Quoted(node.text), " is not one of ", wanted,
                        !foreign.empty()  ? absl::StrCat("; ", foreign)
                        : nearest.empty() ? ""
                                          : absl::StrCat("; did you mean \"", nearest, "\"?")));
    }
  }

  // A list of texts or of numbers, or one.
  void ReadList(const YamlNode& node, const std::string& name, const FieldDescriptor* field, Message* message) {
    const bool has_names = field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
    const auto add = [&](const YamlNode& item, const std::string& item_name) {
      places_[item_name] = item.place;
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
        if (const auto value = Take(ReadDouble(item, item_name), item_name, item))
          message->GetReflection()->AddDouble(message, field, *value);
        return;
      }
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
        if (const auto value = Take(ReadInt32(item, item_name), item_name, item))
          message->GetReflection()->AddInt32(message, field, *value);
        return;
      }
      if (const auto value = Take(ReadString(item, item_name), item_name, item))
        message->GetReflection()->AddString(message, field, *value);
    };
    if (node.kind != YamlNode::Kind::kList) {
      if (node.kind == YamlNode::Kind::kMap) {
        Fail(name, node.place, absl::StrCat(name, " wants a list of ", has_names ? "names" : "numbers", ", not a map"));
      } else {
        add(node, name);
      }
      return;
    }
    for (size_t i = 0; i < node.items.size(); ++i) add(node.items[i], absl::StrCat(name, "[", i, "]"));
  }

  // A map of texts or of sections.
  void ReadMap(const YamlNode& node, const std::string& name, const FieldDescriptor* field, Message* message) {
    if (node.kind != YamlNode::Kind::kMap) {
      Fail(name, node.place,
           absl::StrCat(name, " wants a map of names to ",
                        field->message_type()->map_value()->message_type() == nullptr ? "texts" : "fields", ", not ",
                        KindOf(node)));
      return;
    }
    const Descriptor& entry = *field->message_type();
    for (size_t i = 0; i < node.keys.size(); ++i) {
      const std::string item_name = absl::StrCat(name, "[", Quoted(node.keys[i].text), "]");
      places_[item_name] = node.items[i].place;
      if (entry.map_value()->message_type() != nullptr) {
        Message* added = message->GetReflection()->AddMessage(message, field);
        added->GetReflection()->SetString(added, entry.map_key(), node.keys[i].text);
        ReadMessage(node.items[i], item_name, added->GetReflection()->MutableMessage(added, entry.map_value()));
        continue;
      }
      const auto value = Take(ReadString(node.items[i], item_name), item_name, node.items[i]);
      if (!value.has_value()) continue;
      Message* added = message->GetReflection()->AddMessage(message, field);
      added->GetReflection()->SetString(added, entry.FindFieldByName("key"), node.keys[i].text);
      added->GetReflection()->SetString(added, entry.FindFieldByName("value"), *value);
    }
  }

  std::string Resolve(const std::string& path, const Place& place = {}) const {
    std::error_code ignored;
    const std::filesystem::path folder = place.set > 0 ? std::filesystem::current_path(ignored) : directory_;
    std::string resolved = (folder / path).lexically_normal().string();
    if (resolved.size() > 1 && resolved.back() == '/') resolved.pop_back();
    return resolved;
  }

  // Whether something was already said about this field, a section it is in, or a field in it.
  bool Failed(const std::string& field) const {
    const std::string inside = field + ".";
    const auto first = failed_.lower_bound(inside);
    if (first != failed_.end() && absl::StartsWith(*first, inside)) return true;
    for (std::string path = field;; path.resize(path.rfind('.'))) {
      if (failed_.count(path) > 0) return true;
      if (path.find('.') == std::string::npos) return false;
    }
  }

  void Validate(const v1::JobSpec& spec) {
    for (const JobDiagnostic& diagnostic : ValidateJobSpec(spec)) {
      if (Failed(diagnostic.field) || std::any_of(diagnostic.related.begin(), diagnostic.related.end(),
                                                  [&](const auto& field) { return Failed(field); })) {
        continue;
      }
      // A missing field has the place of the section it is missing in.
      std::string field = diagnostic.field;
      while (!places_.count(field) && field.find('.') != std::string::npos) field.resize(field.rfind('.'));
      const auto place = places_.find(field);
      Add(place == places_.end() ? Place{} : place->second, diagnostic.message, diagnostic.field);
    }
  }

  const std::filesystem::path directory_;
  const JobFileOptions& options_;
  std::vector<Diagnostic> diagnostics_;
  // Where the fields of the file are: a section's key, a value.
  std::map<std::string, Place> places_;
  // Fields that something was said about.
  std::set<std::string> failed_;
};

}  // namespace

JobFile ReadJob(const std::string& text, const std::string& directory, const JobFileOptions& options) {
  return Reader(directory, options).Run(text);
}

absl::StatusOr<v1::JobSpec> ParseJobFile(const std::string& text, const std::string& file, const std::string& directory,
                                         const JobFileOptions& options) {
  JobFile job = ReadJob(text, directory, options);
  if (job.problems.empty()) return std::move(job.spec);
  std::vector<std::string> lines;
  for (const Diagnostic& problem : job.problems) {
    if (lines.size() == kMaxDiagnostics) {
      lines.push_back(absl::StrCat(file, ": and ", job.problems.size() - kMaxDiagnostics, " more"));
      break;
    }
    const Place& place = problem.place;
    const std::string where = place.set > 0 ? absl::StrCat("--set ", Cut(options.sets[place.set - 1]))
                                            : absl::StrCat(file, ":", place.line, ":", place.column);
    lines.push_back(absl::StrCat(where, ": ", problem.message));
  }
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

absl::StatusOr<v1::JobSpec> ReadJobFile(std::istream& stream, const std::string& file, const std::string& directory,
                                        const JobFileOptions& options) {
  std::string text(kMaxYamlBytes + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) return absl::InvalidArgumentError(absl::StrCat(file, ": cannot be read: ", strerror(errno)));
  text.resize(static_cast<size_t>(stream.gcount()));
  std::error_code ignored;
  return ParseJobFile(text, file, std::filesystem::absolute(directory, ignored).lexically_normal().string(), options);
}

absl::StatusOr<v1::JobSpec> LoadJobFile(const std::string& path, const JobFileOptions& options) {
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    return absl::NotFoundError(absl::StrCat(path, ": no such file; give the path of a job file (YAML)"));
  if (!std::filesystem::is_regular_file(path, error))
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a file; give the path of a job file (YAML)"));
  std::ifstream stream(path, std::ios::binary);
  if (!stream.is_open()) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read: ", strerror(errno)));
  return ReadJobFile(stream, path, std::filesystem::absolute(path, error).parent_path().string(), options);
}

}  // namespace tacc::jobfile
