#include "jobfile/job_paths.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "machine/tacc_python.h"
#include "proto/tacc/v1/upload_name.h"
#include "tacc/v1/options.pb.h"

namespace tacc::jobfile {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

void CheckPaths(const Message& message, const std::string& path, std::vector<std::string>* wrong) {
  const Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    const std::string name = path.empty() ? std::string(field->name()) : absl::StrCat(path, ".", field->name());
    if (field->is_repeated() || !message.GetReflection()->HasField(message, field)) continue;
    if (field->message_type() != nullptr) {
      CheckPaths(message.GetReflection()->GetMessage(message, field), name, wrong);
      continue;
    }
    const v1::FieldRule& rule = field->options().GetExtension(v1::rule);
    if (!rule.has_is_read()) continue;
    const std::string value = message.GetReflection()->GetString(message, field);
    if (rule.upload() && absl::StartsWith(value, kUploadPrefix)) continue;
    std::error_code ignored;
    const auto& words = rule.path_word();
    if (std::find(words.begin(), words.end(), value) == words.end() &&
        std::filesystem::status(value, ignored).type() == std::filesystem::file_type::not_found)
      wrong->push_back(absl::StrCat(name, " = ", value, " does not exist; it is ", WithTaccPython(rule.is_read())));
  }
}

// What is there and cannot be what the job takes it for.
void CheckCheckpointPaths(const v1::CheckpointSpec& checkpoint, std::vector<std::string>* wrong) {
  std::error_code ignored;
  const auto is_folder = [&](const std::string& path) { return std::filesystem::is_directory(path, ignored); };
  if (const std::string& dir = checkpoint.dir(); std::filesystem::exists(dir, ignored) && !is_folder(dir)) {
    wrong->push_back(absl::StrCat("checkpoint.dir = ", dir,
                                  " is no folder; name one, which need not be there yet, or leave it out"));
  }
  if (const std::string& from = checkpoint.resume_from_checkpoint();  // or a word
      absl::StartsWith(from, "/") && is_folder(from) &&
      !std::filesystem::exists(absl::StrCat(from, "/manifest.json"), ignored)) {
    wrong->push_back(absl::StrCat("checkpoint.resume_from_checkpoint = ", from,
                                  " is no checkpoint: it has no manifest.json; name a folder such as "
                                  "runs/NAME/step-00000200.a1"));
  }
}

}  // namespace

absl::Status CheckPaths(const v1::JobSpec& spec) {
  std::vector<std::string> wrong;
  CheckPaths(spec, "", &wrong);
  CheckCheckpointPaths(spec.checkpoint(), &wrong);
  return wrong.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrJoin(wrong, "\n"));
}

}  // namespace tacc::jobfile
