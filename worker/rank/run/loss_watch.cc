#include "worker/rank/run/loss_watch.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tacc::worker {

std::string LossWatch::Take(int64_t step, double loss, double target_tokens) {
  if (has_warned_ || !std::isfinite(loss) || target_tokens <= 0) return "";
  steps_.push_back({loss * target_tokens, target_tokens});
  if (static_cast<int64_t>(steps_.size()) > kNumSteps) steps_.pop_front();
  if (step < kFirstStep || static_cast<int64_t>(steps_.size()) < kNumSteps) return "";
  if (!known_.has_value()) known_ = entropy_();
  if (!known_->ok()) return "";
  double loss_sum = 0, tokens = 0;
  for (const Step& taken : steps_) {
    loss_sum += taken.loss_sum;
    tokens += taken.target_tokens;
  }
  const double mean = loss_sum / tokens, entropy = **known_;
  if (mean <= entropy + kMargin) return "";
  has_warned_ = true;
  return absl::StrCat(
      "step ", step, ": the mean loss of the last ", kNumSteps, " steps is ",
      absl::StrFormat("%.3f, above %.3f", mean, entropy),
      ", the entropy (in nats) of the data's single tokens: the model predicts worse than one that knows "
      "only how frequent each token is; look at train.learning_rate (far too low, or too high), "
      "train.warmup_steps, and at what is trained on: whether the data was prepared with this model's "
      "tokenizer, and with `taccctl data show`, whether its text is in order");
}

}  // namespace tacc::worker
