#include "worker/checkpoint/checkpoint_name.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace tacc::worker {

std::string CheckpointName(const CheckpointId& id) { return absl::StrFormat("step-%08d.a%d", id.step, id.attempt); }

std::string TemporaryCheckpointName(const CheckpointId& id) { return ".tmp-" + CheckpointName(id); }

absl::optional<CheckpointId> ParseCheckpointName(const std::string& name) {
  absl::string_view rest = name;
  if (!absl::ConsumePrefix(&rest, "step-")) return absl::nullopt;
  const size_t dot = rest.find(".a");
  if (dot == absl::string_view::npos) return absl::nullopt;
  CheckpointId id;
  if (!absl::SimpleAtoi(rest.substr(0, dot), &id.step) || !absl::SimpleAtoi(rest.substr(dot + 2), &id.attempt)) {
    return absl::nullopt;
  }
  // Writing it again refuses signs, spaces and unusual padding.
  if (id.step < 0 || id.attempt < 0 || id.attempt > kMaxAttempt || CheckpointName(id) != name) return absl::nullopt;
  return id;
}

}  // namespace tacc::worker
