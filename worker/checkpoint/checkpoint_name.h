// The names of checkpoint directories: step-00000200.a1 is step 200 of attempt 1.
#ifndef TACC_WORKER_CHECKPOINT_CHECKPOINT_NAME_H_
#define TACC_WORKER_CHECKPOINT_CHECKPOINT_NAME_H_

#include <cstdint>
#include <string>

#include "absl/types/optional.h"

namespace tacc::worker {

// The file in checkpoint.dir that says whose folder it is. The daemon of rank 0 writes it before the first attempt.
inline constexpr char kOwnerFileName[] = "job.json";

struct CheckpointId {
  int64_t step = 0;
  int64_t attempt = 0;
};
// Counted in 32 bits, with room to count on.
inline constexpr int64_t kMaxAttempt = int64_t{1} << 30;

// Returns "step-00000200.a1": the step in at least eight digits, the attempt in as many as it needs.
std::string CheckpointName(const CheckpointId& id);

// Returns ".tmp-" + CheckpointName(id): the directory in which a checkpoint is written before it is renamed.
std::string TemporaryCheckpointName(const CheckpointId& id);

// Returns the id when `name` is exactly what CheckpointName makes of it, else nothing.
absl::optional<CheckpointId> ParseCheckpointName(const std::string& name);

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_CHECKPOINT_NAME_H_
