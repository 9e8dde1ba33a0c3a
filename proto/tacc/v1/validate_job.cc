#include "proto/tacc/v1/validate_job.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/tacc/v1/job_validator.h"
#include "tacc/v1/options.pb.h"

namespace tacc {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void FillDefaults(Message* message) {
  const Descriptor& type = *message->GetDescriptor();
  const Reflection& reflection = *message->GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    if (field->is_repeated()) continue;
    if (field->message_type() != nullptr) {
      const bool is_absent = !reflection.HasField(*message, field);
      if (is_absent && field->options().GetExtension(v1::rule).presence()) continue;
      FillDefaults(reflection.MutableMessage(message, field));
    } else if (field->has_default_value() && !reflection.HasField(*message, field)) {
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_INT32:
          reflection.SetInt32(message, field, field->default_value_int32());
          break;
        case FieldDescriptor::CPPTYPE_DOUBLE:
          reflection.SetDouble(message, field, field->default_value_double());
          break;
        case FieldDescriptor::CPPTYPE_BOOL:
          reflection.SetBool(message, field, field->default_value_bool());
          break;
        case FieldDescriptor::CPPTYPE_ENUM:
          reflection.SetEnum(message, field, field->default_value_enum());
          break;
        case FieldDescriptor::CPPTYPE_STRING:
          reflection.SetString(message, field, std::string(field->default_value_string()));
          break;
        default:
          std::fprintf(stderr, "type of %s has no case here\n", std::string(field->full_name()).c_str());
          std::abort();
      }
    }
  }
}

}  // namespace

std::vector<JobDiagnostic> ValidateJobSpec(const v1::JobSpec& spec) { return JobValidator().Run(spec); }

v1::JobSpec WithDefaults(const v1::JobSpec& spec) {
  v1::JobSpec filled = spec;
  FillDefaults(&filled);
  return filled;
}

int RequestedWorld(const v1::JobSpec& spec) {
  if (spec.resources().has_workers()) return spec.resources().workers();
  const v1::DistSpec& dist = spec.dist();
  int64_t world = 0;  // nothing said
  const auto take = [&world](const auto& axis) {
    if (axis.has_size()) world = std::min<int64_t>(std::max<int64_t>(world, 1) * axis.size(), kMaxWorld);
  };
  take(dist.pp());
  take(dist.dp());
  take(dist.fsdp());
  take(dist.ep());
  if (dist.cp().has_size()) {
    take(dist.cp());
  } else {
    take(dist.sp());
  }
  take(dist.tp());
  return static_cast<int>(world);
}

std::string EnumValueInJobFile(const google::protobuf::EnumValueDescriptor& value) {
  // LrSchedulerType -> LR_SCHEDULER_TYPE_.
  std::string prefix;
  for (const char c : value.type()->name()) {
    if (absl::ascii_isupper(c) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(c);
  }
  prefix += '_';
  absl::string_view name = value.name();
  absl::ConsumePrefix(&name, prefix);
  return absl::AsciiStrToLower(name);
}

}  // namespace tacc
