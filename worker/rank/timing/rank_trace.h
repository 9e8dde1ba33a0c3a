#ifndef TACC_WORKER_RANK_TIMING_RANK_TRACE_H_
#define TACC_WORKER_RANK_TIMING_RANK_TRACE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/program/step_timer.h"
#include "worker/rank/protocol/events.h"

namespace tacc::worker {

// A step of this rank as one process of a trace (graph/trace/step_trace.h); `origin`: SteadySeconds() at its start.
std::string MeasuredProcess(const graph::Program& program, const graph::OpTable& ops, int rank, const StepTimes& times,
                            double origin);

// The trace of one step, with all ranks in it, that a start leaves behind where any of them was asked for it.
class RankTrace {
 public:
  // Processes of more ranks are left out.
  static constexpr int kMaxRanks = 64;

  struct Request {
    std::string path;  // Empty: this rank writes none.
    int64_t step = 1;  // Which one, counted from the start; the last if there are fewer.
    // The text of the predicted trace, written beside it: as FOLDER/trace.predicted.json for FOLDER/trace.json. Empty:
    // none.
    std::string predicted = {};
  };

  // All must outlive the object.
  RankTrace(Request request, const graph::Program* program, const graph::OpTable* ops, Collectives* collectives,
            EventWriter* events)
      : request_(std::move(request)), program_(*program), ops_(*ops), collectives_(*collectives), events_(*events) {}

  // All ranks call it, before the step after `steps_done`. Errors: of the talk between ranks.
  absl::Status Agree(int64_t steps_done, int64_t max_steps);
  // The step to time and to hand to Finish; 0: none.
  int64_t step() const { return step_; }

  // All ranks call it with their own times. The ranks that were asked for a trace write it and say so, or warn that
  // they could not. Errors: of the talk between ranks.
  absl::Status Finish(const StepTimes& times);

 private:
  absl::Status WritePrediction() const;

  const Request request_;
  const graph::Program& program_;
  const graph::OpTable& ops_;
  Collectives& collectives_;
  EventWriter& events_;
  int64_t step_ = 0;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TIMING_RANK_TRACE_H_
