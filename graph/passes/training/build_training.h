// From a forward graph to the training: what it takes, and the program of its steps.
#ifndef TACC_GRAPH_PASSES_TRAINING_BUILD_TRAINING_H_
#define TACC_GRAPH_PASSES_TRAINING_BUILD_TRAINING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"
#include "graph/passes/training/optimizers.h"

namespace tacc::graph {

// What single types of schedules take: fields of LrSchedulerKwargs, and train.lr_factors.
struct LrScheduleOptions {
  std::optional<double> num_cycles;
  double power = 1.0;
  std::optional<int64_t> timescale;
  int64_t num_decay_steps = 0;
  std::string decay_type = "cosine";
  std::vector<double> factors;  // of type "table"
};

struct TrainingOptions : OptimizerOptions {
  int64_t accumulation = 1;    // micro-batches per step
  double weight_decay = 0.0;   // on weights stored with two dims or more
  double max_grad_norm = 1.0;  // clips the global norm; 0: off
  std::string lr_scheduler_type = "cosine";
  double learning_rate = 0.0;
  int64_t warmup_steps = 0;
  int64_t max_steps = 0;
  double min_lr_ratio = 0.0;
  LrScheduleOptions lr_schedule;
  // With f16, in which small gradients vanish and large ones overflow: the loss is scaled, as torch.amp.GradScaler does
  // with these arguments, growth_factor=2 and backoff_factor=0.5.
  struct LossScale {
    double init_scale = 65536;
    int64_t growth_interval = 2000;
  };
  std::optional<LossScale> loss_scale;
  // Keep narrower copies of the weights that are only read so, which the update writes. Without: such a weight is cast
  // where it is used.
  bool keep_copies = false;
  // How many groups the samples of a micro-batch are, each with statistics of its own in batch norms (GroupStatistics).
  int64_t batch_norm_groups = 1;
  // A client drives the steps, by parts if it likes: gradients add up whatever `accumulation` is, the update takes
  // kGradientFactorInput and others, and the graph `eval` has the outputs that the model returns (returned=true).
  bool has_client = false;
};

// Makes a whole training step of a logical program that is a forward graph, and returns true. Its outputs are "loss"
// (a sum over target tokens) and "target_tokens", and any further scalar whose sum over a step is wanted. An output
// with returned=true is none of these, and "buffer:NAME" is what a micro-batch makes of the buffer NAME: a state that
// `forward_backward` stores and `eval` reads. Graphs of the step: `begin` (zeroes the accumulators; only with
// accumulation, or a client), `forward_backward`, `update`, `eval`.
//
// - `param "W"` becomes `read "weights/W"`; with keep_copies a param that is only ever cast to a narrower type is read
//   from "copies/W" in that type, which the update writes beside the fp32 master.
// - A param with learning_rate=, weight_decay= or optim= has its own; else weights stored with two dims or more decay.
// - A param with role=frozen has no gradient and no optimizer states, and the backward computes nothing that only its
//   gradient would need; so with role=buffer. A frozen one rests in the type in which it is read where that is one and
//   narrower: that is exact, as no update would be lost.
// - The backward's seed is 1 and losses are sums; the update divides by the global batch's target tokens, which are
//   known only after the last micro-batch. So any split of a global batch gives the same update.
// - With loss_scale the seed is the state "loss_scale/scale" over the power of two at or above the tokens of a step, so
//   that the scale means what it does for a mean loss, and scaling is exact. The update takes it out of the gradients'
//   norm and of the gradients. A finite norm grows the scale after growth_interval such steps in a row
//   ("loss_scale/good_steps"), one that is not halves it, down to 1; optimizers count the updates that were made, as
//   "loss_scale/skipped" says. Output "loss_scale" is that of the next step.
// - With ema_decay the update keeps an average "ema/W" of each weight, which `eval` reads.
// - Gradients accumulate in fp32 into "gradients/W".
// - The update: global norm, clipping as torch.nn.utils.clip_grad_norm_, learning rate, the optimizer's step
//   (optimizers.h). A norm that is not finite leaves every state as it is and sets output "skipped".
//
// Errors: InvalidArgument when an output is missing or the loss does not depend on a parameter that is trained, naming
// it; when every parameter is frozen; CheckOptimizer.
absl::StatusOr<bool> BuildTraining(Program& program, const OpTable& ops, const TrainingOptions& options);

// Bytes of the optimizer's states, all of a forward graph's parameters together, over their trained elements; 0 where
// none is trained. Errors: InvalidArgument as BuildTraining of parameters.
absl::StatusOr<double> OptimizerBytesOfElement(const Graph& forward, const TrainingOptions& options);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_TRAINING_BUILD_TRAINING_H_
