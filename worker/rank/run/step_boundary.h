// What ranks agree on between two steps: stopping, checkpoints, errors.
#ifndef TACC_WORKER_RANK_RUN_STEP_BOUNDARY_H_
#define TACC_WORKER_RANK_RUN_STEP_BOUNDARY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/protocol/commands.h"
#include "worker/rank/run/step_source.h"
#include "worker/rank/state/checkpointer.h"

namespace tacc::worker {

// What the ranks have agreed on between two steps; the same on all of them.
struct BoundaryDecision {
  bool stops = false;
  bool saves = false;  // A command asked for a checkpoint.
  // What all ranks have to do next; nothing where they do not have the same.
  Work::Kind work = Work::Kind::kNothing;
  uint64_t batch_hash = 0;  // Of the global batch that was read last.
  // Of the rank whose threads waited longest for a processor, as each said of itself.
  int64_t waiting_rank = 0;
  double cpu_wait_share = 0;
};

// The one exchange of the ranks at each step boundary: they tell each other what they were asked for, what they have
// read, how far their part of a checkpoint is, and for how much of the time they had no processor.
class StepBoundary {
 public:
  // All must outlive the object.
  StepBoundary(Collectives* collectives, CommandReader* commands, Checkpointer* checkpointer)
      : collectives_(*collectives), commands_(*commands), checkpointer_(*checkpointer) {}

  // All ranks call it. `work`: what this rank has to do next; `cpu_wait_share`: as CpuWatch says. Errors: those of
  // `work`, the same on every rank (AgreeOnStatus); of the talk between ranks.
  absl::StatusOr<BoundaryDecision> Agree(const absl::StatusOr<Work>& work, double cpu_wait_share);

 private:
  Collectives& collectives_;
  CommandReader& commands_;
  Checkpointer& checkpointer_;
  uint64_t checkpoints_done_ = 0;  // Of the commands.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_RUN_STEP_BOUNDARY_H_
