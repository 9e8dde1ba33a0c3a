#include "jobfile/job_docs.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "google/protobuf/compiler/importer.h"
#include "google/protobuf/descriptor.h"
#include "proto/tacc/v1/upload_name.h"
#include "proto/tacc/v1/validate_job.h"
#include "tacc/v1/options.pb.h"

namespace tacc::jobfile {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

constexpr char kIntroduction[] = R"(# The job file

<!-- Generated from proto/tacc/v1/job.proto; `ninja -C build docs` writes it. -->

A job file says what to train, on which data and for how long; the planner decides what it leaves out. This page lists
every field with its default and unit. A job file is YAML, and this one is complete:

```yaml
name: tiny
model:
  path: model
data:
  path: data
train: {max_steps: 1000}
```

Relative paths are taken from the folder of the job file. Every mistake is reported at once, with line and column,
before anything starts. YAML's surprises are errors: duplicate keys, `010`, `0x10`, `yes`, `on`, `~`, `.inf`, anchors,
tags, values over several lines, a second document.
)";

constexpr char kJsonIntroduction[] = R"(# The output as JSON

<!-- Generated from proto/tacc/v1/coordinator.proto; `ninja -C build docs` writes it. -->

A script reads what `taccctl` prints if it adds `-o json`. The command then prints lines on stdout, a JSON object each,
and nothing else there. This page lists the fields:

| command | a line is |
| --- | --- |
| `get`, `list`, `cancel` | a [Job](#job) |
| `submit` | a [Job](#job) with `"kind": "submitted"`; with `--follow` what `watch` prints after it |
| `watch` | with `kind`: `step` a [StepMetrics](#stepmetrics), `eval` an [EvalMetrics](#evalmetrics), `event` a [JobEvent](#jobevent), and at the end `job` a [Job](#job) |
| `events` | a [JobEvent](#jobevent) |
| `logs` | a [LogLine](#logline) |
| `workers` | a [WorkerView](#workerview) |
| `plan` | a candidate, the one to take first, then a loser each (`estimated`); `predicted_step_seconds_range`, `predicted_tokens_per_second_range`, `predicted_mfu_range` and, where bytes are not exact, `total_bytes_range` are `[least, most]` ([planning.md](planning.md#how-far-to-trust-it)); all else in [contracts.md](contracts.md#tacc-plan) |
| `up` | `address`, `metrics_address`, `workers`, `devices`, `state_dir` |
| `down` | `address`, `stopped` (processes) |
| `export` | `path`, `checkpoint` |
| `version` | `client`, `address`, and `coordinator`: a [GetVersionResponse](#getversionresponse), or `null` where there is none |

**Fields are only ever added**: a name keeps its meaning, type and unit, and is not taken away. A reader should pass by
fields and values of `type`, `kind` and `reason` that it does not know. Numbers are JSON numbers in full precision
(`null` where they are not finite), times are seconds since the epoch, enum values are in lower case without their
prefix. Fields marked *optional*, and sections, are left out when they are not set; all others are always there.
)";

class ErrorCollector : public google::protobuf::compiler::MultiFileErrorCollector {
 public:
  // As older and newer releases of Protocol Buffers call it: each has one of the two, so that neither is an override.
  void AddError(const std::string& file, int line, int column, const std::string& message) {
    RecordError(file, line, column, message);
  }
  void RecordError(absl::string_view file, int line, int column, absl::string_view message) {
    absl::StrAppend(&errors_, errors_.empty() ? "" : "\n", file, ":", line + 1, ":", column + 1, ": ", message);
  }
  const std::string& errors() const { return errors_; }

 private:
  std::string errors_;
};

// The path of a field below `path`.
std::string Join(const std::string& path, const FieldDescriptor& field) {
  return path.empty() ? std::string(field.name()) : absl::StrCat(path, ".", field.name());
}

// The schema under a folder, with its comments.
struct Schema {
  explicit Schema(const std::string& proto_root) : importer(&tree, &errors) {
    tree.MapPath("", proto_root);
    // Holds google/protobuf/descriptor.proto.
    tree.MapPath("", "/usr/include");
  }
  google::protobuf::compiler::DiskSourceTree tree;
  ErrorCollector errors;
  google::protobuf::compiler::Importer importer;
};

// In lines of at most 120 columns; all but the first begin with `indent`.
std::string Wrapped(const std::string& text, const std::string& indent = "") {
  constexpr size_t kColumns = 120;
  std::string out;
  size_t column = 0;
  for (const absl::string_view word : absl::StrSplit(text, ' ')) {
    const bool breaks = column > 0 && column + 1 + word.size() > kColumns;
    if (breaks) column = indent.size();
    absl::StrAppend(&out, breaks ? absl::StrCat("\n", indent) : out.empty() ? "" : " ", word);
    column += word.size() + (breaks || column == 0 ? 0 : 1);
  }
  return out;
}

class Writer {
 public:
  absl::StatusOr<std::string> Run(const Descriptor& job) {
    out_ = kIntroduction;
    Section(job, "");
    if (!uncommented_.empty())
      return absl::InvalidArgumentError(absl::StrCat("no comment: ", absl::StrJoin(uncommented_, ", ")));
    return out_;
  }

 private:
  template <typename D>
  std::string Comment(const D& descriptor) {
    google::protobuf::SourceLocation location;
    std::string text;
    if (descriptor.GetSourceLocation(&location)) text = location.leading_comments;
    text = absl::StrReplaceAll(text, {{"\n", " "}});
    absl::RemoveExtraAsciiWhitespace(&text);
    if (text.empty()) uncommented_.emplace_back(descriptor.full_name());
    return text;
  }

  void Section(const Descriptor& type, const std::string& path) {
    absl::StrAppend(&out_, path.empty() ? "\n## Top level\n" : absl::StrCat("\n## `", path, "`\n"), "\n",
                    Wrapped(Comment(type)), "\n\n",
                    "| field | value | default | meaning |\n| --- | --- | --- | --- |\n");
    std::vector<const EnumDescriptor*> enums;
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor* field = type.field(i);
      absl::StrAppend(&out_, "| `", field->name(), "` | ", Type(*field, path), " | ", Default(*field), " | ",
                      Escaped(Comment(*field)), " |\n");
      if (field->enum_type() != nullptr) enums.push_back(field->enum_type());
    }
    for (const EnumDescriptor* values : enums) {
      absl::StrAppend(&out_, "\n", Wrapped(Comment(*values)), "\n\n");
      for (int i = 0; i < values->value_count(); ++i) {
        if (values->value(i)->number() == 0) continue;
        const std::string name = EnumValueInJobFile(*values->value(i));
        // A further name of a value is the value.
        const auto* first = values->FindValueByNumber(values->value(i)->number());
        const std::string meaning = first == values->value(i) || HasComment(*values->value(i))
                                        ? Comment(*values->value(i))
                                        : absl::StrCat("the same as `", EnumValueInJobFile(*first), "`.");
        absl::StrAppend(&out_, Wrapped(absl::StrCat("- `", name, "`: ", meaning), "  "), "\n");
      }
    }
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor* field = type.field(i);
      const Descriptor* section = SectionOf(*field);
      if (section != nullptr) Section(*section, Join(path, *field));
    }
  }

  template <typename D>
  static bool HasComment(const D& descriptor) {
    google::protobuf::SourceLocation location;
    return descriptor.GetSourceLocation(&location) && !location.leading_comments.empty();
  }

  // What a field, or each entry of a map, holds fields of; null: none.
  static const Descriptor* SectionOf(const FieldDescriptor& field) {
    return field.is_map() ? field.message_type()->map_value()->message_type() : field.message_type();
  }

  static std::string Escaped(const std::string& text) { return absl::StrReplaceAll(text, {{"|", "\\|"}}); }

  std::string Type(const FieldDescriptor& field, const std::string& path) {
    const v1::FieldRule& rule = field.options().GetExtension(v1::rule);
    if (SectionOf(field) != nullptr) {
      // The anchor of a heading drops dots and backticks.
      const std::string section = Join(path, field);
      return absl::StrCat(field.is_map() ? "map of names to " : "", "[section", field.is_map() ? "s" : "", "](#",
                          absl::StrReplaceAll(section, {{".", ""}}), ")");
    }
    if (field.is_map()) return "map of names to texts";
    if (field.enum_type() != nullptr) {
      std::vector<std::string> names;
      for (int i = 0; i < field.enum_type()->value_count(); ++i) {
        const auto* value = field.enum_type()->value(i);
        if (value->number() != 0) names.push_back(absl::StrCat("`", EnumValueInJobFile(*value), "`"));
      }
      return absl::StrJoin(names, ", ");
    }
    std::string type;
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        type = "whole number";
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        type = "number";
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        type = "`true`, `false`";
        break;
      default:
        type = rule.path() ? "path" : "text";
    }
    if (field.is_repeated()) type = type == "text" ? "list of text" : absl::StrCat("list of ", type, "s");
    for (const std::string& word : rule.path_word()) absl::StrAppend(&type, ", `", word, "`");
    if (rule.upload()) absl::StrAppend(&type, ", `", kUploadPrefix, "ID`");
    std::vector<std::string> bounds;
    if (rule.has_min()) bounds.push_back(absl::StrCat("at least ", rule.min()));
    if (rule.has_above()) bounds.push_back(absl::StrCat("more than ", rule.above()));
    if (rule.has_max()) bounds.push_back(absl::StrCat("at most ", rule.max()));
    if (rule.has_below()) bounds.push_back(absl::StrCat("less than ", rule.below()));
    if (rule.has_unit()) absl::StrAppend(&type, " (", rule.unit(), ")");
    if (!bounds.empty()) absl::StrAppend(&type, ", ", absl::StrJoin(bounds, ", "));
    return type;
  }

  static std::string Default(const FieldDescriptor& field) {
    const v1::FieldRule& rule = field.options().GetExtension(v1::rule);
    if (rule.required()) return "required";
    if (rule.has_unset()) return rule.unset();
    if (!field.has_default_value()) return "";
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return absl::StrCat("`", field.default_value_int32(), "`");
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return absl::StrCat("`", field.default_value_double(), "`");
      case FieldDescriptor::CPPTYPE_BOOL:
        return field.default_value_bool() ? "`true`" : "`false`";
      case FieldDescriptor::CPPTYPE_ENUM:
        return absl::StrCat("`", EnumValueInJobFile(*field.default_value_enum()), "`");
      default:
        return absl::StrCat("`", field.default_value_string(), "`");
    }
  }

  std::string out_;
  std::vector<std::string> uncommented_;
};

// The comment of a field or message, above it or behind it, on one line.
template <typename D>
std::string CommentOf(const D& descriptor) {
  google::protobuf::SourceLocation location;
  std::string text;
  if (descriptor.GetSourceLocation(&location))
    text = absl::StrCat(location.leading_comments, location.trailing_comments);
  text = absl::StrReplaceAll(text, {{"\n", " "}, {"|", "\\|"}});
  absl::RemoveExtraAsciiWhitespace(&text);
  return text;
}

std::string Anchor(const Descriptor& type) { return absl::StrCat("#", absl::AsciiStrToLower(type.name())); }

std::string JsonType(const FieldDescriptor& field) {
  std::string type;
  if (field.enum_type() != nullptr) {
    std::vector<std::string> names;
    for (int i = 0; i < field.enum_type()->value_count(); ++i)
      names.push_back(absl::StrCat("`", EnumValueInJobFile(*field.enum_type()->value(i)), "`"));
    type = absl::StrJoin(names, ", ");
  } else if (field.message_type() != nullptr) {
    const Descriptor& of = *field.message_type();
    type = of.name() == "JobSpec" ? "[the job](job.md)" : absl::StrCat("[", of.name(), "](", Anchor(of), ")");
  } else {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_STRING:
        type = "text";
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        type = "`true`, `false`";
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
      case FieldDescriptor::CPPTYPE_FLOAT:
        type = "number";
        break;
      default:
        type = "whole number";
    }
  }
  if (field.is_repeated()) return absl::StrCat("list of ", type);
  return field.message_type() == nullptr && field.has_presence() ? absl::StrCat(type, ", optional") : type;
}

// The tables of these messages, and of those in them.
std::string MessageTables(std::vector<const Descriptor*> messages) {
  std::string out;
  for (size_t m = 0; m < messages.size(); ++m) {
    const Descriptor& type = *messages[m];
    const std::string comment = CommentOf(type);
    absl::StrAppend(&out, "\n## ", type.name(), "\n", Wrapped(comment), comment.empty() ? "" : "\n",
                    "\n| field | value | meaning |\n", "| --- | --- | --- |\n");
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      std::string value = field.is_map() ? absl::StrCat("map of ", JsonType(*field.message_type()->map_key()), " to ",
                                                        JsonType(*field.message_type()->map_value()))
                                         : JsonType(field);
      absl::StrAppend(&out, "| `", field.name(), "` | ", value, " | ", CommentOf(field), " |\n");
      const Descriptor* of = field.is_map() ? field.message_type()->map_value()->message_type() : field.message_type();
      if (of != nullptr && of->name() != "JobSpec" && std::find(messages.begin(), messages.end(), of) == messages.end())
        messages.push_back(of);
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> JobDocs(const std::string& proto_root) {
  Schema schema(proto_root);
  const auto* file = schema.importer.Import("tacc/v1/job.proto");
  if (file == nullptr) return absl::InvalidArgumentError(schema.errors.errors());
  return Writer().Run(*file->FindMessageTypeByName("JobSpec"));
}

absl::StatusOr<std::string> JsonDocs(const std::string& proto_root) {
  Schema schema(proto_root);
  const auto* file = schema.importer.Import("tacc/v1/coordinator.proto");
  if (file == nullptr) return absl::InvalidArgumentError(schema.errors.errors());
  std::vector<const Descriptor*> messages;
  for (const char* name :
       {"Job", "StepMetrics", "EvalMetrics", "JobEvent", "LogLine", "WorkerView", "GetVersionResponse"}) {
    messages.push_back(file->FindMessageTypeByName(name));
    if (messages.back() == nullptr)
      return absl::InvalidArgumentError(absl::StrCat("coordinator.proto has no message ", name));
  }
  return absl::StrCat(kJsonIntroduction, MessageTables(std::move(messages)));
}

}  // namespace tacc::jobfile
