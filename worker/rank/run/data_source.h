#ifndef TACC_WORKER_RANK_RUN_DATA_SOURCE_H_
#define TACC_WORKER_RANK_RUN_DATA_SOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/program/executor.h"
#include "worker/rank/run/step_source.h"
#include "worker/rank/state/batches.h"

namespace tacc::worker {

// The steps of a training on a data folder: a batch each, `max_steps` in all.
class DataSource : public StepSource {
 public:
  // `executor` must outlive the object.
  DataSource(std::unique_ptr<TrainBatches> batches, Executor* executor, int64_t max_steps)
      : batches_(std::move(batches)), executor_(*executor), max_steps_(max_steps) {}

  absl::StatusOr<Work> Next(int64_t num_launched, bool may_wait) override;
  absl::Status Launch() override { return executor_.Launch(batches_->inputs()); }
  absl::Status Serve(int64_t, const std::function<absl::Status()>&) override { return absl::OkStatus(); }
  void Finished(int64_t) override {}
  bool IsLast(int64_t num_launched) const override { return num_launched >= max_steps_; }

 private:
  const std::unique_ptr<TrainBatches> batches_;
  Executor& executor_;
  const int64_t max_steps_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_RUN_DATA_SOURCE_H_
