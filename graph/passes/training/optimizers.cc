#include "graph/passes/training/optimizers.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/ir/state_names.h"
#include "graph/ops/builder.h"

namespace tacc::graph {
namespace {

// The name of a state of a parameter.
using StateName = std::string (*)(absl::string_view parameter);

struct StateOf {
  StateName name;
  Dims dims;
};

// One optimizer: everything that the rest of the program must know of it.
struct Optimizer {
  // The states that it keeps of a parameter.
  std::vector<StateOf> (*states)(const OptimizerOptions& options, const TrainedParameter& parameter);
  std::optional<double> (*momentum)(const OptimizerOptions& options);
  // Returns the new weight.
  ValueId (*add_step)(const OptimizerOptions& options, const TrainedParameter& parameter, const StepValues& values,
                      Builder& builder);
};

ValueId ReadState(StateName name, const TrainedParameter& p, const Dims& dims, Builder& b) {
  return b.Leaf(Op::kRead, name(p.name), {StateType(p).dtype, dims});
}

// --- Those that work element by element, by one op, with states like the weight.

std::vector<StateOf> LikeWeight(const TrainedParameter& p, std::vector<StateName> names) {
  std::vector<StateOf> states;
  for (StateName name : names) states.push_back({name, p.type.dims});
  return states;
}

// `weight_decay` and the gradient are those of the parameter and of the step, or others.
ValueId AddUpdate(absl::string_view op, Attrs attrs, const std::vector<StateOf>& states, const TrainedParameter& p,
                  const StepValues& step, Builder& b) {
  std::vector<ValueId> operands = {b.Leaf(Op::kRead, WeightState(p.name), p.type)};
  for (const StateOf& state : states) operands.push_back(ReadState(state.name, p, state.dims, b));
  for (ValueId v : {step.gradient, step.learning_rate, step.grad_scale, step.apply, step.count}) operands.push_back(v);
  if (step.momentum != kNoValue) operands.push_back(step.momentum);
  attrs["weight_decay"] = p.weight_decay;
  if (p.has_copy) attrs["copy"] = std::string(Name(p.use));
  const int num_results = 1 + static_cast<int>(states.size()) + (p.has_copy ? 1 : 0);
  const std::vector<ValueId> results = b.AddMany(op, std::move(operands), std::move(attrs), num_results);
  b.End(Op::kStore, WeightState(p.name), results[0]);
  for (size_t i = 0; i < states.size(); ++i) b.End(Op::kStore, states[i].name(p.name), results[1 + i]);
  if (p.has_copy) b.End(Op::kStore, CopyState(p.name), results.back());
  return results[0];
}

std::vector<StateOf> AdamStates(const OptimizerOptions& /*options*/, const TrainedParameter& p) {
  return LikeWeight(p, {FirstMomentState, SecondMomentState});
}
std::optional<double> AdamMomentum(const OptimizerOptions& o) { return o.adam_beta1; }
ValueId AddAdamOf(absl::string_view op, const OptimizerOptions& o, const TrainedParameter& p, const StepValues& step,
                  Builder& b) {
  return AddUpdate(op, {{"beta1", o.adam_beta1}, {"beta2", o.adam_beta2}, {"epsilon", o.adam_epsilon}},
                   AdamStates(o, p), p, step, b);
}
ValueId AddAdamW(const OptimizerOptions& o, const TrainedParameter& p, const StepValues& step, Builder& b) {
  return AddAdamOf("adamw", o, p, step, b);
}
ValueId AddAdam(const OptimizerOptions& o, const TrainedParameter& p, const StepValues& step, Builder& b) {
  return AddAdamOf("adam", o, p, step, b);
}

std::vector<StateOf> LionStates(const OptimizerOptions& /*options*/, const TrainedParameter& p) {
  return LikeWeight(p, {FirstMomentState});
}
ValueId AddLion(const OptimizerOptions& o, const TrainedParameter& p, const StepValues& step, Builder& b) {
  return AddUpdate("lion", {{"beta1", o.adam_beta1}, {"beta2", o.adam_beta2}}, LionStates(o, p), p, step, b);
}

std::vector<StateOf> SgdStates(const OptimizerOptions& o, const TrainedParameter& p) {
  return o.momentum.value_or(0) == 0 ? std::vector<StateOf>() : LikeWeight(p, {MomentumState});
}
std::optional<double> SgdMomentum(const OptimizerOptions& o) {
  return o.momentum.value_or(0) == 0 ? std::nullopt : o.momentum;
}
ValueId AddSgd(const OptimizerOptions& o, const TrainedParameter& p, const StepValues& step, Builder& b) {
  Attrs attrs;
  if (const double momentum = o.momentum.value_or(0); momentum != 0)
    attrs = {{"momentum", momentum}, {"dampening", o.dampening}, {"nesterov", o.nesterov.value_or(false)}};
  return AddUpdate("sgd", std::move(attrs), SgdStates(o, p), p, step, b);
}

// --- Muon: matrices by orthogonal updates, all else by AdamW.

// Matrices inside the model: no tables, no head over a vocabulary.
bool IsHidden(const TrainedParameter& p) {
  const bool is_stack = !p.axes.empty() && p.axes[0] == "experts";
  const bool has_vocabulary = std::find(p.axes.begin(), p.axes.end(), "vocab") != p.axes.end();
  return !p.is_table && !has_vocabulary && p.stored_dims.size() == (is_stack ? 3 : 2);
}

std::vector<StateOf> MuonStates(const OptimizerOptions& o, const TrainedParameter& p) {
  return IsHidden(p) ? LikeWeight(p, {MomentumState}) : AdamStates(o, p);
}

std::optional<double> MuonMomentum(const OptimizerOptions& o) { return o.momentum.value_or(0.95); }

// As torch.optim.Muon, but that matrices are multiplied in the type that the job computes in, f16 excepted.
ValueId AddMuon(const OptimizerOptions& o, const TrainedParameter& p, const StepValues& step, Builder& b) {
  StepValues plain = step;
  plain.momentum = kNoValue;  // That of matrices is no beta1.
  if (!IsHidden(p)) return AddAdamW(o, p, plain, b);
  const TensorType scalar = b.type(step.learning_rate);
  const ValueId momentum = step.momentum != kNoValue ? step.momentum : b.Constant(*MuonMomentum(o), scalar);
  const auto average = [&](ValueId of) {
    return b.Add("moving_average", {of, step.gradient, momentum, step.grad_scale, step.apply, step.count});
  };
  ValueId update = average(ReadState(MomentumState, p, p.type.dims, b));
  b.End(Op::kStore, MomentumState(p.name), update);
  if (o.nesterov.value_or(true)) update = average(update);
  if (p.use == DType::kBF16) update = b.Cast(update, DType::kBF16);
  update = b.Add("newton_schulz", {update}, {{"stored", p.stored_dims}, {"steps", o.ns_steps}});
  const auto rows = static_cast<double>(p.stored_dims[p.stored_dims.size() - 2]);
  const auto columns = static_cast<double>(p.stored_dims.back());
  const double scale = o.adjust_lr_fn == "match_rms_adamw" ? 0.2 * std::sqrt(std::max(rows, columns))
                                                           : std::sqrt(std::max(1.0, rows / columns));
  StepValues orthogonal = plain;
  orthogonal.gradient = update;
  orthogonal.grad_scale = b.Constant(scale, scalar);
  return AddUpdate("sgd", {}, {}, p, orthogonal, b);
}

// --- Adafactor: second moments by row and by column of a matrix; of vectors whole.

struct Sums {
  StateOf state;
  double averaged = 1;  // elements that each sum is of
};

std::vector<Sums> AdafactorSums(const TrainedParameter& p) {
  const Dims& stored = p.stored_dims;
  if (stored.size() < 2) return {{{SecondMomentState, stored}}};
  const Dims row(stored.begin(), stored.end() - 1);
  Dims column(stored.begin(), stored.end() - 2);
  column.push_back(stored.back());
  return {{{RowMomentState, row}, static_cast<double>(stored.back())},
          {{ColumnMomentState, column}, static_cast<double>(stored[stored.size() - 2])}};
}

std::vector<StateOf> AdafactorStates(const OptimizerOptions& /*options*/, const TrainedParameter& p) {
  std::vector<StateOf> states;
  for (const Sums& sums : AdafactorSums(p)) states.push_back(sums.state);
  return states;
}

std::optional<double> NoMomentum(const OptimizerOptions& /*options*/) { return std::nullopt; }

// As transformers' Adafactor with scale_parameter=False and relative_step=False, which TrainingArguments means.
ValueId AddAdafactor(const OptimizerOptions& /*options*/, const TrainedParameter& p, const StepValues& step,
                     Builder& b) {
  constexpr double kDecayRate = -0.8, kEpsilon = 1e-30, kClipThreshold = 1.0;
  const TensorType scalar = b.type(step.learning_rate);
  const ValueId power = b.Add("exp", {b.Scale(b.Add("log", {step.count}), kDecayRate)});
  const ValueId decay = b.Add("add_scalar", {b.Add("neg", {power})}, {{"value", 1.0}});
  const std::vector<Sums> all = AdafactorSums(p);
  const std::vector<ValueId> sums =
      b.AddMany("square_sums", {step.gradient, step.grad_scale}, {{"stored", p.stored_dims}, {"epsilon", kEpsilon}},
                static_cast<int>(all.size()));
  std::vector<ValueId> squares_of = {step.gradient, step.grad_scale}, moments;
  for (size_t i = 0; i < all.size(); ++i) {
    const StateOf& state = all[i].state;
    moments.push_back(b.Add("moving_average", {ReadState(state.name, p, state.dims, b), sums[i], decay,
                                               b.Constant(1 / all[i].averaged, scalar), step.apply, step.count}));
    b.End(Op::kStore, state.name(p.name), moments.back());
  }
  squares_of.insert(squares_of.end(), moments.begin(), moments.end());
  const ValueId squares = b.Add("adafactor_squares", std::move(squares_of), {{"stored", p.stored_dims}});
  std::vector<ValueId> operands = {b.Leaf(Op::kRead, WeightState(p.name), p.type),
                                   step.gradient,
                                   step.learning_rate,
                                   step.grad_scale,
                                   step.apply,
                                   squares};
  operands.insert(operands.end(), moments.begin(), moments.end());
  Attrs attrs = {{"stored", p.stored_dims}, {"clip_threshold", kClipThreshold}, {"weight_decay", p.weight_decay}};
  if (p.has_copy) attrs["copy"] = std::string(Name(p.use));
  const std::vector<ValueId> results =
      b.AddMany("adafactor", std::move(operands), std::move(attrs), p.has_copy ? 2 : 1);
  b.End(Op::kStore, WeightState(p.name), results[0]);
  if (p.has_copy) b.End(Op::kStore, CopyState(p.name), results[1]);
  return results[0];
}

const std::map<absl::string_view, Optimizer>& Optimizers() {
  static const std::map<absl::string_view, Optimizer> optimizers = {
      {"adafactor", {AdafactorStates, NoMomentum, AddAdafactor}},
      {"adam", {AdamStates, AdamMomentum, AddAdam}},
      {"adamw", {AdamStates, AdamMomentum, AddAdamW}},
      {"lion", {LionStates, AdamMomentum, AddLion}},
      {"muon", {MuonStates, MuonMomentum, AddMuon}},
      {"sgd", {SgdStates, SgdMomentum, AddSgd}},
  };
  return optimizers;
}

const Optimizer& OptimizerOf(const OptimizerOptions& options, const TrainedParameter& p) {
  return Optimizers().at(p.optim.empty() ? options.optim : p.optim);
}

}  // namespace

TensorType StateType(const TrainedParameter& p) { return {AccumulationType(p.type.dtype), p.type.dims}; }

absl::Status CheckOptimizer(absl::string_view name) {
  if (Optimizers().count(name) > 0) return absl::OkStatus();
  std::vector<absl::string_view> names;
  for (const auto& [known, optimizer] : Optimizers()) names.push_back(known);
  return absl::InvalidArgumentError(
      absl::StrCat("no optimizer is named \"", name, "\"; wanted ", absl::StrJoin(names, ", ")));
}

std::optional<double> MomentumOf(const OptimizerOptions& options) {
  return Optimizers().at(options.optim).momentum(options);
}

std::vector<State> OptimizerStates(const OptimizerOptions& options, const TrainedParameter& p) {
  std::vector<State> states;
  const auto add = [&](std::string name, const Dims& dims, StateKind kind, const char* init) {
    State state;
    state.name = std::move(name);
    state.type = {StateType(p).dtype, dims};
    state.placement = {state.type, Sharding::Replicated(state.type.rank())};
    state.kind = kind;
    state.init = init;
    states.push_back(std::move(state));
  };
  for (const StateOf& of : OptimizerOf(options, p).states(options, p))
    add(of.name(p.name), of.dims, StateKind::kOptimizer, "zeros");
  if (options.ema_decay.has_value()) add(AverageState(p.name), p.type.dims, StateKind::kAverage, "copy");
  return states;
}

void AddOptimizerStep(const OptimizerOptions& options, const TrainedParameter& p, const StepValues& step, Builder& b) {
  const ValueId weight = OptimizerOf(options, p).add_step(options, p, step, b);
  if (!options.ema_decay.has_value()) return;
  const TensorType scalar = b.type(step.learning_rate);
  const ValueId average = b.Add(
      "moving_average", {ReadState(AverageState, p, p.type.dims, b), weight, b.Constant(*options.ema_decay, scalar),
                         b.Constant(1.0, scalar), step.apply, step.count});
  b.End(Op::kStore, AverageState(p.name), average);
}

}  // namespace tacc::graph
