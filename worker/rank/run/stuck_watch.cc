#include "worker/rank/run/stuck_watch.h"

#include <cmath>

namespace tacc::worker {

void StuckWatch::Take(double loss, double grad_norm, bool skipped) {
  num_skipped_ = skipped ? num_skipped_ + 1 : 0;
  // Comparisons with what is not a number are false.
  const bool has_no_gradient = grad_norm <= kNoGradient && loss > kNoLoss;
  if (first_loss_ == 0 && std::isfinite(loss)) first_loss_ = loss;
  const bool is_bad = skipped || has_no_gradient || !(loss <= kFarLoss * first_loss_);
  num_bad_ = is_bad ? num_bad_ + 1 : 0;
  if (!has_no_gradient) {
    num_steps_ = 0;
  } else if (num_steps_ > 0 && std::abs(loss - loss_) <= kSameLoss * loss_) {
    ++num_steps_;
  } else {
    num_steps_ = 1;
    loss_ = loss;
  }
}

}  // namespace tacc::worker
