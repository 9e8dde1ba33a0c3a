#include "coordinator/core/check_spec.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "tacc/v1/options.pb.h"

namespace tacc::coordinator {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr size_t kMaxNameBytes = 63;
constexpr size_t kMaxStringBytes = 4096;

void CheckNumber(const std::string& name, double value, const v1::FieldRule& rule, std::vector<std::string>* errors) {
  auto bad = [&](const std::string& wanted) {
    errors->push_back(absl::StrCat(name, " = ", value, ": must be ", wanted, rule.unit().empty() ? "" : " ", rule.unit()));
  };
  if (!std::isfinite(value)) return bad("finite");
  if (rule.has_min() && value < rule.min()) bad(absl::StrCat("at least ", rule.min()));
  if (rule.has_max() && value > rule.max()) bad(absl::StrCat("at most ", rule.max()));
  if (rule.has_above() && value <= rule.above()) bad(absl::StrCat("above ", rule.above()));
  if (rule.has_below() && value >= rule.below()) bad(absl::StrCat("below ", rule.below()));
}

void CheckString(const std::string& name, const std::string& value, const v1::FieldRule& rule,
                 std::vector<std::string>* errors) {
  if (value.size() > kMaxStringBytes) {
    errors->push_back(absl::StrCat(name, ": ", value.size(), " bytes, at most ", kMaxStringBytes));
    return;
  }
  if (value.find('\0') != std::string::npos) errors->push_back(absl::StrCat(name, ": has a NUL byte"));
  if (!rule.path()) return;
  for (const std::string& word : rule.path_word()) {
    if (value == word) return;
  }
  if (value.empty() || value[0] != '/') {
    errors->push_back(absl::StrCat(name, ": \"", value, "\" is not an absolute path; taccctl resolves paths against the job file"));
  }
}

void CheckMessage(const std::string& prefix, const Message& message, std::vector<std::string>* errors) {
  const auto* reflection = message.GetReflection();
  const auto* descriptor = message.GetDescriptor();
  if (reflection->GetUnknownFields(message).field_count() != 0) {
    errors->push_back(absl::StrCat(prefix.empty() ? "job" : prefix, ": fields that this coordinator does not know; is the client newer?"));
  }
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    const std::string name = prefix.empty() ? field->name() : absl::StrCat(prefix, ".", field->name());
    const v1::FieldRule& rule = field->options().GetExtension(v1::rule);
    if (field->is_repeated()) {
      for (int k = 0; k < reflection->FieldSize(message, field); ++k) {
        if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
          CheckString(absl::StrCat(name, "[", k, "]"), reflection->GetRepeatedString(message, field, k), rule, errors);
        }
      }
      continue;
    }
    if (!reflection->HasField(message, field)) {
      if (rule.required()) errors->push_back(absl::StrCat(name, ": missing"));
      continue;
    }
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        CheckMessage(name, reflection->GetMessage(message, field), errors);
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        CheckString(name, reflection->GetString(message, field), rule, errors);
        break;
      case FieldDescriptor::CPPTYPE_INT32:
        CheckNumber(name, reflection->GetInt32(message, field), rule, errors);
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        CheckNumber(name, static_cast<double>(reflection->GetInt64(message, field)), rule, errors);
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        CheckNumber(name, reflection->GetDouble(message, field), rule, errors);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        if (reflection->GetEnumValue(message, field) == 0) errors->push_back(absl::StrCat(name, ": unspecified"));
        break;
      default:
        break;
    }
  }
}

bool GoodName(const std::string& name) {
  if (name.empty() || name.size() > kMaxNameBytes || !absl::ascii_isalnum(name[0])) return false;
  for (char c : name) {
    if (!absl::ascii_isalnum(c) && c != '.' && c != '_' && c != '-') return false;
  }
  return true;
}

}  // namespace

absl::Status CheckSpec(const v1::JobSpec& spec) {
  std::vector<std::string> errors;
  CheckMessage("", spec, &errors);
  if (spec.has_name() && !GoodName(spec.name())) {
    errors.push_back(absl::StrCat("name: \"", spec.name().substr(0, kMaxNameBytes),
                                  "\" must be 1 to 63 letters, digits, '.', '_' or '-', the first a letter or digit"));
  }
  if (spec.has_model() && spec.model().has_path() == spec.model().has_graph()) {
    errors.push_back(absl::StrCat("model: ", spec.model().has_path() ? "both" : "neither", " path and graph given; give one"));
  }
  if (!spec.checkpoint().has_dir()) errors.push_back("checkpoint.dir: missing; taccctl fills in runs/NAME");
  const v1::DistSpec& dist = spec.dist();
  if (spec.resources().has_workers() && dist.dp().has_size() && dist.fsdp().has_size() &&
      static_cast<int64_t>(dist.dp().size()) * dist.fsdp().size() != spec.resources().workers()) {
    errors.push_back(absl::StrCat("resources.workers = ", spec.resources().workers(), ", but dist.dp.size x dist.fsdp.size = ",
                                  dist.dp().size(), " x ", dist.fsdp().size(), "; make them equal or leave one out"));
  }
  if (errors.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
}

}  // namespace tacc::coordinator
