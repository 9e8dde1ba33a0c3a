#include "worker/rank/protocol/failure_codes.h"

#include "absl/strings/cord.h"
#include "worker/checkpoint/files/posix_file.h"

namespace tacc::worker {
namespace {

constexpr absl::string_view kPayload = "tacc/failure-code";

}  // namespace

int ExitCode(absl::string_view code) {
  if (code == "bad_input") return kExitBadInput;
  if (code == "stuck") return kExitStuck;
  if (code == "export") return kExitExport;
  return code == "nonfinite" ? kExitNonfinite : kExitError;
}

absl::Status WithFailureCode(absl::Status status, absl::string_view code) {
  if (!status.GetPayload(kPayload).has_value()) status.SetPayload(kPayload, absl::Cord(code));
  return status;
}

absl::Status OfFiles(absl::Status status) {
  return IsOutage(status) ? WithFailureCode(std::move(status), kUnavailableCode) : status;
}

std::string GivenFailureCode(const absl::Status& status) {
  const auto given = status.GetPayload(kPayload);
  return given.has_value() ? std::string(*given) : std::string();
}

std::string FailureCode(const absl::Status& status) {
  if (std::string given = GivenFailureCode(status); !given.empty()) return given;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return "collective";
    case absl::StatusCode::kResourceExhausted:
      return "memory";
    default:
      return "internal";
  }
}

std::string LoadFailureCode(const absl::Status& status) {
  std::string code = FailureCode(status);
  if (code != "internal") return code;
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kPermissionDenied:
      return "bad_input";
    default:
      return code;
  }
}

}  // namespace tacc::worker
