#ifndef TACC_GRAPH_IR_STATE_NAMES_H_
#define TACC_GRAPH_IR_STATE_NAMES_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "graph/ir/program.h"

namespace tacc::graph {

// The names of states are made and taken apart here alone. What a state is for, its kind says, not its name.

// The names of the states of a parameter of the model.
std::string WeightState(absl::string_view parameter);        // weights/W
std::string CopyState(absl::string_view parameter);          // copies/W
std::string GradientState(absl::string_view parameter);      // gradients/W
std::string FirstMomentState(absl::string_view parameter);   // exp_avg/W
std::string SecondMomentState(absl::string_view parameter);  // exp_avg_sq/W
std::string MomentumState(absl::string_view parameter);      // momentum_buffer/W
std::string RowMomentState(absl::string_view parameter);     // exp_avg_sq_row/W
std::string ColumnMomentState(absl::string_view parameter);  // exp_avg_sq_col/W
std::string AverageState(absl::string_view parameter);       // ema/W

// The buffer that an output of a model's graph says the new value of, by its name "buffer:NAME"; of another one: "".
std::string ChangedBuffer(absl::string_view output);

// The parameter that a state belongs to: W of weights/W. Of a state of no parameter: its name after the slash.
std::string ParameterOf(const State& state);

// What names of that kind begin with, one or more: "weights/".
std::vector<absl::string_view> StateNamePrefixes(StateKind kind);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_STATE_NAMES_H_
