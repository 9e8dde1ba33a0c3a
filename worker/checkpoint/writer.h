// Writing a checkpoint: every rank its shard, then rank 0 the manifest and the rename that makes it count.
//
// In `checkpoint_dir`, one directory on a file system that all ranks share:
//   1. each rank calls WriteShard: .tmp-step-N.aK/rank-R.safetensors and rank-R.json (what is in it);
//   2. all ranks agree that all shards are written (a barrier of the caller's);
//   3. rank 0 calls CommitCheckpoint: manifest.json is written last, the directory is renamed to step-N.aK.
// When any step fails anywhere, rank 0 calls AbandonCheckpoint after all ranks have left step 1. Failpoints, in order:
// before_shard_write after_shard_write | before_manifest after_manifest before_rename after_rename.
#ifndef TACC_WORKER_CHECKPOINT_WRITER_H_
#define TACC_WORKER_CHECKPOINT_WRITER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "failpoint/failpoint.h"
#include "worker/checkpoint/checkpoint_name.h"
#include "worker/checkpoint/manifest.h"

namespace tacc::worker {

// This rank's rectangle of a logical tensor.
struct ShardTensor {
  std::string name;                   // "weights/NAME", "exp_avg/NAME", "exp_avg_sq/NAME".
  std::string dtype;                  // As in safetensors: "F32".
  std::vector<int64_t> shape;         // Of the whole logical tensor.
  std::vector<int64_t> stored_shape;  // As in the model's safetensors.
  Rectangle rectangle;                // What `data` holds: dense, row-major, without padding.
  const void* data = nullptr;         // Read during the call only.
  int64_t merged_dims = 1;            // As ManifestTensor's: the rectangle is of the shape with these as one.
};

// Whether kOwnerFileName is in the folder, by a look at the file alone. NotFound where it is not: the folder is gone,
// or is the bare one under a mount point whose file system is away. Other codes as ErrnoStatus.
absl::Status CheckClaimed(const std::string& checkpoint_dir);

// Writes the rank's file and its description, both on the disk when it returns. Each rectangle must be written by one
// rank only; a rank without any calls it with no tensors. Any thread may call it; ranks call it at the same time.
// ResourceExhausted: the disk is full; InvalidArgument: a tensor's rectangle is not inside its shape; other codes as
// ErrnoStatus. After an error this rank's files are gone. `failpoints` may be null.
absl::Status WriteShard(const std::string& checkpoint_dir, const CheckpointId& id, int rank,
                        const std::vector<ShardTensor>& tensors, Failpoints* failpoints);

struct CommittedCheckpoint {
  std::string name;       // "step-00000200.a1".
  int64_t num_bytes = 0;  // Of all its files.
};

// Joins the shards of ranks 0..world-1 into a checkpoint. `manifest` gives everything but files and tensors; its step
// and attempt name the directory. FailedPrecondition: a shard is missing; InvalidArgument: the shards disagree about a
// tensor or do not hold all of it; AlreadyExists: there is another checkpoint of this name. After an error nothing of
// the checkpoint is left, but where only the rename could not be forced to the disk: then it is whole, and OK when it
// is written and committed again.
absl::StatusOr<CommittedCheckpoint> CommitCheckpoint(const std::string& checkpoint_dir, Manifest manifest, int world,
                                                     Failpoints* failpoints);

// Removes what WriteShard has left of a checkpoint that was not committed.
absl::Status AbandonCheckpoint(const std::string& checkpoint_dir, const CheckpointId& id);

// Removes everything that killed attempts up to `attempt` left half written (.tmp-step-*). Called by rank 0 of that
// attempt before its first checkpoint, when no earlier one runs; what a later one writes, which has taken the folder
// over, stays. A missing directory is fine.
absl::Status RemoveUnfinishedCheckpoints(const std::string& checkpoint_dir, int64_t attempt);

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_WRITER_H_
