// The optimizers that a job may choose: of each the states that it keeps of a parameter, and its step as nodes. Who
// wants to know what an optimizer keeps asks here.
#ifndef TACC_GRAPH_PASSES_TRAINING_OPTIMIZERS_H_
#define TACC_GRAPH_PASSES_TRAINING_OPTIMIZERS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "graph/ir/program.h"
#include "graph/ops/builder.h"

namespace tacc::graph {

// Fields of TrainSpec (proto/tacc/v1/job.proto), which says what they mean.
struct OptimizerOptions {
  std::string optim = "adamw";
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  std::optional<double> momentum;
  double dampening = 0.0;
  std::optional<bool> nesterov;
  int64_t ns_steps = 5;
  std::string adjust_lr_fn = "original";
  std::optional<double> ema_decay;
};

// A parameter that is trained.
struct TrainedParameter {
  std::string name;
  TensorType type;                // of the master weight
  Dims stored_dims;               // in the model's files
  std::vector<std::string> axes;  // State::axes
  bool is_table = false;          // the model looks its rows up
  std::string optim;              // in place of OptimizerOptions::optim; or empty
  double weight_decay = 0;
  DType use = DType::kF32;  // in which the model reads it
  bool has_copy = false;    // in that type: it is written beside the weight
};

// What a parameter's step takes; all but the gradient are scalars.
struct StepValues {
  ValueId gradient = kNoValue;  // of the type StateType(parameter)
  ValueId learning_rate = kNoValue;
  ValueId grad_scale = kNoValue;  // the gradient is multiplied by it
  ValueId apply = kNoValue;       // 0: the step is skipped
  ValueId count = kNoValue;       // of steps that were made, this one included
  ValueId momentum = kNoValue;    // in place of MomentumOf(options)
};

// Gradients and optimizer states of a parameter are kept in the accumulation type of its weight.
TensorType StateType(const TrainedParameter& parameter);

// InvalidArgument: no optimizer has the name.
absl::Status CheckOptimizer(absl::string_view name);

// What the optimizer's mean of gradients keeps at a step: its momentum, or beta1 of Adam and Lion. Nothing: it has no
// such mean.
std::optional<double> MomentumOf(const OptimizerOptions& options);

// The states that the optimizer keeps of the parameter: of kind kOptimizer, and with ema_decay its average.
std::vector<State> OptimizerStates(const OptimizerOptions& options, const TrainedParameter& parameter);

// Adds to an update graph what reads the parameter's weight and states, makes the step and stores them, the
// copy and the average.
void AddOptimizerStep(const OptimizerOptions& options, const TrainedParameter& parameter, const StepValues& values,
                      Builder& builder);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_TRAINING_OPTIMIZERS_H_
