// How often something may happen.
#ifndef TACC_MACHINE_TOKEN_BUCKET_H_
#define TACC_MACHINE_TOKEN_BUCKET_H_

#include <algorithm>

namespace tacc {

// So many a second, and of those that did not happen as many at once as `most`, from the start on.
class TokenBucket {
 public:
  TokenBucket(double per_second, double most) : per_second_(per_second), most_(most), tokens_(most) {}

  // Whether one may happen at `now` (steady seconds), which then has happened.
  bool Take(double now) {
    tokens_ = std::min(most_, tokens_ + std::max(0.0, now - last_) * per_second_);
    last_ = std::max(last_, now);
    if (tokens_ < 1) return false;
    tokens_ -= 1;
    return true;
  }

 private:
  double per_second_;
  double most_;
  double tokens_;
  double last_ = 0;
};

}  // namespace tacc

#endif  // TACC_MACHINE_TOKEN_BUCKET_H_
