#ifndef TACC_WORKER_RANK_RUN_STUCK_WATCH_H_
#define TACC_WORKER_RANK_RUN_STUCK_WATCH_H_

#include <algorithm>
#include <cstdint>

namespace tacc::worker {

// Notices a training that no longer learns. Either steps in a row have no gradient and a loss that does not move: so
// ends, as a rule, one whose learning rate was too high: the activations have left the range of floating point, the
// model answers every batch alike, and no step brings it back. A loss of 0 is no such case: there is nothing left to
// learn. Or the updates of steps in a row were skipped: in float16, where no loss scale is found.
class StuckWatch {
 public:
  // A norm up to this is none, a loss up to this is 0, and losses that differ by less of their size are one.
  static constexpr double kNoGradient = 1e-12, kNoLoss = 1e-6, kSameLoss = 1e-6;

  // A loss so many times the first one is that of weights that have broken.
  static constexpr double kFarLoss = 3;

  // Skipped steps in a row that are a search for the loss scale, which each halves: 2^40 is beyond all that any model's
  // gradients bear.
  static constexpr int64_t kLongestSearch = 40;

  // Stuck after `limit` such steps, skipped ones at least kLongestSearch; 0: never.
  explicit StuckWatch(int64_t limit) : limit_(limit) {}

  // After each step, with what every rank has alike.
  void Take(double loss, double grad_norm, bool skipped);

  // Steps in a row, up to now, in which the weights may have been broken already: without a gradient, skipped, or with
  // a loss that is no number or far above the first one.
  int64_t num_bad() const { return num_bad_; }
  // Steps in a row without a gradient whose loss did not move, up to now.
  int64_t num_steps() const { return num_steps_; }
  // Steps in a row whose update was skipped, up to now.
  int64_t num_skipped() const { return num_skipped_; }
  bool is_stuck() const {
    return limit_ > 0 && (num_steps_ >= limit_ || num_skipped_ >= std::max(limit_, kLongestSearch));
  }
  // The states may be those of a training that is lost already (a skipped update leaves them as they were); without a
  // limit that is the user's business.
  bool is_in_doubt() const { return limit_ > 0 && num_steps_ > 0; }

 private:
  const int64_t limit_;
  int64_t num_bad_ = 0, num_steps_ = 0, num_skipped_ = 0;
  double loss_ = 0;        // Of the first of num_steps_.
  double first_loss_ = 0;  // That is a number and above 0; 0: none yet.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_RUN_STUCK_WATCH_H_
