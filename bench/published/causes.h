#ifndef TACC_BENCH_PUBLISHED_CAUSES_H_
#define TACC_BENCH_PUBLISHED_CAUSES_H_

#include <string>
#include <vector>

#include "bench/published/fit.h"

namespace tacc::bench {

// What a step's seconds are for.
struct Cause {
  std::string name;
  double share = 0;      // of the predicted step, mean over the trials
  double missing = 0;    // of the cause's own predicted seconds: how much the measured steps have beyond them
  double deviation = 0;  // of `missing`: what the rows leave open
};

// The error of a table by cause: the signed residuals measured / predicted - 1 of the crossed trials, regressed on each
// trial's shares. A share is how the predicted step grows with the cause, d log(step) / d log(seconds of the cause):
//   attention    in one kernel, by attention_fraction
//   small        products: what filling and draining their tiles costs, by matmul_depth
//   products     the rest of them, by matmul_fraction
//   memory       kernels that memory binds, without the update
//   host         issue, and between micro-batches
// and of the parts that the estimate names, their part of the step: communication, bubble (with uneven stages), update.
// Each `missing` is drawn to 0 (one standard deviation is 0.3), errors are taken for 5 % and now and then far more
// (Huber's weights), and all trials of a row count as one. So a constant that is wrong shows as a cause whose `missing`
// is beyond its deviation; causes that always come together share what is missing.
std::vector<Cause> ErrorByCause(const Comparison& comparison);

}  // namespace tacc::bench

#endif  // TACC_BENCH_PUBLISHED_CAUSES_H_
