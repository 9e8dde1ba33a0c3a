#ifndef TACC_WORKER_RANK_RUN_LOSS_WATCH_H_
#define TACC_WORKER_RANK_RUN_LOSS_WATCH_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace tacc::worker {

// Notices a training that has learned less than how frequent each token is: a loss above the unigram entropy. Almost
// every model passes that in its first hundred steps.
class LossWatch {
 public:
  // Nothing is said of the training's steps before this one, counted from its beginning.
  static constexpr int64_t kFirstStep = 500;
  // Whose losses are put together, each with the weight of its targets, so that one batch's says little.
  static constexpr int64_t kNumSteps = 50;
  // Nats above the entropy of which nothing is said. Where there is no more to learn than the frequencies, the mean of
  // so many steps lies about as often above it as below, by the noise of its batches and of the entropy's sample.
  static constexpr double kMargin = 0.05;

  // `entropy`: that of the targets, in nats. It is asked at most once, when there is a mean to compare; where it is not
  // known, nothing is ever said.
  explicit LossWatch(std::function<absl::StatusOr<double>()> entropy) : entropy_(std::move(entropy)) {}

  // After each step, one that `loss` is no number of included. The warning, once; else empty.
  std::string Take(int64_t step, double loss, double target_tokens);

 private:
  struct Step {
    double loss_sum;
    double target_tokens;
  };

  const std::function<absl::StatusOr<double>()> entropy_;
  std::optional<absl::StatusOr<double>> known_;  // What it said, once asked.
  bool has_warned_ = false;
  std::deque<Step> steps_;  // The newest, with a loss, of this start.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_RUN_LOSS_WATCH_H_
