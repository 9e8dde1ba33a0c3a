#ifndef TACC_WORKER_RANK_CHECKPOINTER_H_
#define TACC_WORKER_RANK_CHECKPOINTER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "failpoint/failpoint.h"
#include "graph/ir/program.h"
#include "worker/rank/collectives.h"
#include "worker/rank/events.h"
#include "worker/rank/start_file.h"
#include "worker/rank/states.h"

namespace tacc::worker {

// Writes the checkpoints of one attempt. All ranks call Save at the same steps; each writes its shard, rank 0 commits.
class Checkpointer {
 public:
  // All must outlive the object.
  Checkpointer(const StartFile* start, const graph::Program* program, const RankStates* states,
               Collectives* collectives, EventWriter* events, Failpoints* failpoints)
      : start_(*start),
        program_(*program),
        states_(*states),
        collectives_(*collectives),
        events_(*events),
        failpoints_(failpoints) {}

  // Writes the states as they are after `step` updates. A failure on any rank leaves no checkpoint and is a warning
  // event, not an error: training can go on, and last_saved_step stays. Unavailable: another rank does not answer.
  absl::Status Save(int64_t step);

  // The step of the newest checkpoint of this attempt, -1 when there is none.
  int64_t last_saved_step() const { return last_saved_step_; }
  // Its path.
  const std::string& last_saved_path() const { return last_saved_path_; }

 private:
  absl::Status Commit(int64_t step, double begin_seconds);

  const StartFile& start_;
  const graph::Program& program_;
  const RankStates& states_;
  Collectives& collectives_;
  EventWriter& events_;
  Failpoints* failpoints_;
  bool is_clean_ = false;
  int64_t last_saved_step_ = -1;
  std::string last_saved_path_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CHECKPOINTER_H_
