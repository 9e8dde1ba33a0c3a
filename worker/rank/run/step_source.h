// Where the work of a training comes from, step by step: a folder of data, or a client.
#ifndef TACC_WORKER_RANK_RUN_STEP_SOURCE_H_
#define TACC_WORKER_RANK_RUN_STEP_SOURCE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tacc::worker {

// What a rank would do next. It is done when all ranks have the same.
struct Work {
  enum class Kind : uint64_t {
    kNothing,  // Not yet known.
    kStep,     // Launch; an update follows from it.
    kRequest,  // Serve.
    kEnd,      // The training is over.
    kGiveUp,   // So is this start, before its end; counts where one rank has it.
  };
  Kind kind = Kind::kNothing;
  uint64_t name = 0;        // Of this work, another one in each.
  uint64_t batch_hash = 0;  // Of this rank's part of the batch: the sum over ranks is that of the global batch.
};

class StepSource {
 public:
  virtual ~StepSource() = default;

  // What comes after `num_launched` steps; the same until it is done. Waits for it a little where `may_wait`: nothing
  // is in flight. Errors: of reading a batch.
  virtual absl::StatusOr<Work> Next(int64_t num_launched, bool may_wait) = 0;

  // The methods below do what Next gave last, when all ranks have it.

  // Launches the step on the executor. Errors: as Executor::Launch.
  virtual absl::Status Launch() = 0;
  // Nothing is in flight. `save` writes a checkpoint of the states as they are. Errors: as Executor's, of `save`.
  virtual absl::Status Serve(int64_t step, const std::function<absl::Status()>& save) = 0;
  // Whether some of the next step's micro-batches have been computed (what Serve did).
  virtual bool HasBegunStep() const { return false; }
  // The training ends, or stops.
  virtual void End() {}

  // The oldest step in flight is done, the `step`-th update; the executor has its outputs.
  virtual void Finished(int64_t step) = 0;

  // Whether the training ends after so many steps whatever comes.
  virtual bool IsLast(int64_t num_launched) const = 0;
  // Tokens of a sample in each micro-batch of the step launched last; none: all have as many as the job says.
  virtual std::vector<int64_t> Lengths() const { return {}; }
  // Why the ranks give up.
  virtual std::string GiveUpReason() const { return ""; }
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_RUN_STEP_SOURCE_H_
