#ifndef TACC_GRAPH_IR_WEIGHT_INIT_H_
#define TACC_GRAPH_IR_WEIGHT_INIT_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tacc::graph {

// What a state begins with, as State::init says it.
struct WeightInit {
  enum class Kind { kConstant, kNormal, kTruncatedNormal, kUniform };
  Kind kind = Kind::kConstant;
  double first = 0;   // The value, the standard deviation or the low end.
  double second = 0;  // The bound or the high end.
};

// Reads "zeros", "ones", "constant(VALUE)", "normal(STD)", "truncated_normal(STD,BOUND)", "uniform(LOW,HIGH)".
// InvalidArgument, with what may be written: something else, a number that f32 cannot hold, a negative deviation, a
// bound that is not above 0, or ends in the wrong order.
absl::StatusOr<WeightInit> ParseWeightInit(absl::string_view text);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_WEIGHT_INIT_H_
