#include "graph/passes/training/build_training.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "graph/ir/state_names.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "graph/ops/attention_operands.h"
#include "graph/ops/builder.h"
#include "graph/ops/input_axes.h"
#include "graph/passes/training/autodiff.h"
#include "graph/passes/training/changed_buffers.h"
#include "graph/passes/training/group_statistics.h"
#include "graph/passes/training/learning_rate.h"

namespace tacc::graph {
namespace {

struct Parameter {
  std::string name;
  WeightRole role = WeightRole::kTrained;
  TensorType type;          // of the master weight; of one that is frozen, of all that is kept of it
  DType use = DType::kF32;  // in which the model reads it
  Dims stored_dims;
  std::vector<std::string> axes;
  std::string init;
  bool is_table = false;  // its rows are looked up
  std::string optim;      // its own, where it has one; so those that follow
  std::optional<double> learning_rate, weight_decay;

  bool has_copy = false;

  TrainedParameter AsTrained(const TrainingOptions& options) const {
    const double decay = weight_decay.value_or(decays() ? options.weight_decay : 0.0);
    return {name, type, stored_dims, axes, is_table, optim, decay, use, has_copy};
  }
  bool is_frozen() const { return !IsTrained(role); }
  // Matrices do; each expert's row of a stack of biases is one of its own.
  bool decays() const { return stored_dims.size() >= (!axes.empty() && axes[0] == "experts" ? 3 : 2); }
};

std::string CounterState(const std::string& name) { return absl::StrCat("counters/", name); }

constexpr char kScaleState[] = "loss_scale/scale", kGoodStepsState[] = "loss_scale/good_steps",
               kSkippedState[] = "loss_scale/skipped";
constexpr double kLargestLossScale = 0x1p127;  // finite

State MakeState(std::string name, TensorType type, StateKind kind, std::string init) {
  State state;
  state.name = std::move(name);
  state.placement = {type, Sharding::Replicated(type.rank())};
  state.type = std::move(type);
  state.kind = kind;
  state.init = std::move(init);
  return state;
}

// The parameters in line order; `use` is a narrower type when every reader casts to it.
absl::StatusOr<std::vector<Parameter>> CollectParameters(const Graph& graph, const TrainingOptions& options) {
  std::vector<std::set<DType>> casts(graph.values.size());
  std::vector<char> plain_use(graph.values.size(), 0), is_table(graph.values.size(), 0);
  std::vector<ValueId> cast_from(graph.values.size(), kNoValue);
  for (const Node& node : graph.nodes) {
    if (node.op == "embedding") {
      for (ValueId v = node.operands[0]; v != kNoValue; v = cast_from[v]) is_table[v] = 1;
    }
    for (ValueId v : node.operands) {
      if (node.op == "cast") {
        cast_from[node.results[0]] = v;
        casts[v].insert(graph.type(node.results[0]).dtype);
      } else {
        plain_use[v] = 1;
      }
    }
  }
  std::vector<Parameter> parameters;
  std::set<std::string> names;
  const std::map<std::string, ValueId> changed = ChangedBuffers(graph);
  for (const Node& node : graph.nodes) {
    if (node.op != Op::kParam) continue;
    if (!names.insert(node.symbol).second) {
      return absl::InvalidArgumentError(absl::StrCat("parameter \"", node.symbol, "\" is declared twice"));
    }
    const ValueId v = node.results[0];
    Parameter p;
    p.name = node.symbol;
    p.type = graph.type(v);
    p.use = p.type.dtype;
    if (!plain_use[v] && casts[v].size() == 1 && ByteSize(*casts[v].begin()) < ByteSize(p.type.dtype))
      p.use = *casts[v].begin();
    const std::string role = GetAttr<std::string>(node.attrs, "role", std::string(Name(p.role)));
    if (!FindWeightRole(role).has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter \"", p.name, "\" has role=", role, "; wanted trained, frozen, adapter or buffer"));
    }
    p.role = *FindWeightRole(role);
    if (p.role == WeightRole::kFrozen) p.type.dtype = p.use;
    if (changed.count(p.name) > 0) p.use = p.type.dtype;  // It is written as it is kept.
    p.has_copy = options.keep_copies && p.use != p.type.dtype;
    p.stored_dims = GetAttr<std::vector<int64_t>>(node.attrs, "stored", p.type.dims);
    p.axes = GetAttr<std::vector<std::string>>(node.attrs, "axes");
    p.init = GetAttr<std::string>(node.attrs, "init", "normal(0.02)");
    p.is_table = is_table[v] != 0;
    p.optim = GetAttr<std::string>(node.attrs, "optim");
    if (!p.optim.empty()) TACC_RETURN_IF_ERROR(CheckOptimizer(p.optim));
    const auto number = [&](const char* attr) {
      return node.attrs.count(attr) > 0 ? std::optional<double>(GetAttr<double>(node.attrs, attr)) : std::nullopt;
    };
    p.learning_rate = number("learning_rate");
    p.weight_decay = number("weight_decay");
    parameters.push_back(std::move(p));
  }
  return parameters;
}

// Which state a graph reads a parameter that is trained from.
enum class ReadFrom { kWeights, kAverages };

// Replaces params by reads of states, and casts of params that have a copy by reads of the copy.
void BindParameters(const std::map<std::string, const Parameter*>& parameters, ReadFrom from, Graph& graph) {
  std::vector<ValueId> replacement(graph.values.size(), kNoValue);
  std::vector<Node> nodes;
  for (Node& node : graph.nodes) {
    for (ValueId& v : node.operands) {
      if (replacement[v] != kNoValue) v = replacement[v];
    }
    if (node.op == Op::kParam) {
      const Parameter& p = *parameters.at(node.symbol);
      const bool is_average = from == ReadFrom::kAverages && !p.is_frozen();
      node.op = Op::kRead;
      node.symbol = is_average ? AverageState(p.name) : p.has_copy ? CopyState(p.name) : WeightState(p.name);
      node.attrs.clear();
      graph.values[node.results[0]].type.dtype = p.has_copy && !is_average ? p.use : p.type.dtype;
    } else if (node.op == "cast" && graph.type(node.operands[0]).dtype == graph.type(node.results[0]).dtype) {
      replacement[node.results[0]] = node.operands[0];
      continue;
    }
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
}

// Forward as it is evaluated: dropout passes its operand through, and no batch makes its own statistics if there are
// running ones.
void MakeEvaluation(Graph& graph) {
  std::vector<ValueId> replacement(graph.values.size(), kNoValue);
  std::vector<Node> nodes;
  for (Node& node : graph.nodes) {
    for (ValueId& v : node.operands) {
      if (replacement[v] != kNoValue) v = replacement[v];
    }
    if (node.op == "dropout") {
      replacement[node.results[0]] = node.operands[0];
      continue;
    }
    if (node.op == "batch_moments" && node.operands.size() > 2) {
      ReadRunningStatistics(node, graph, replacement, nodes);
      continue;
    }
    RemoveAttentionDropout(node);
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
}

bool IsReturned(const Node& node) { return node.op == Op::kOutput && GetAttr<bool>(node.attrs, "returned"); }
bool IsChangedBuffer(const Node& node) { return node.op == Op::kOutput && !ChangedBuffer(node.symbol).empty(); }

void RemoveOutputs(Graph& graph) {
  std::erase_if(graph.nodes, [](const Node& node) { return node.op == Op::kOutput; });
}

class TrainingBuilder {
 public:
  TrainingBuilder(const Graph& forward, const OpTable& ops, const TrainingOptions& options)
      : forward_(forward), ops_(ops), options_(options) {}

  absl::StatusOr<Program> Build() {
    for (const char* output : {"loss", "target_tokens"}) {
      if (forward_.Output(output) != kNoValue) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("the forward graph has no output \"", output,
                       "\"; a training graph ends with `output \"loss\"` and `output \"target_tokens\"`"));
    }
    for (const Node& node : forward_.nodes) {
      if (node.op != Op::kOutput || IsReturned(node) || IsChangedBuffer(node)) continue;
      const TensorType& type = forward_.type(node.operands[0]);
      if (type.rank() != 0 || !IsFloating(type.dtype)) {
        return absl::InvalidArgumentError(
            absl::StrCat("output \"", node.symbol, "\" is ", type.ToString(), "; wanted a floating scalar"));
      }
      totals_[node.symbol] = type;
    }
    scalar_ = forward_.type(forward_.Output("loss"));
    TACC_RETURN_IF_ERROR(CheckOptimizer(options_.optim));
    seed_factor_ = std::exp2(-std::ceil(std::log2(static_cast<double>(options_.accumulation * NumTokens()))));
    TACC_ASSIGN_OR_RETURN(parameters_, CollectParameters(forward_, options_));
    if (parameters_.empty()) return absl::InvalidArgumentError("the forward graph has no param to train");
    for (const Parameter& p : parameters_) by_name_[p.name] = &p;
    if (std::all_of(parameters_.begin(), parameters_.end(), [](const Parameter& p) { return p.is_frozen(); }))
      return absl::InvalidArgumentError("every parameter is frozen, so nothing would be trained");
    AddStates();
    if (accumulates()) program_.graphs.push_back(Begin());
    TACC_ASSIGN_OR_RETURN(Graph forward_backward, ForwardBackward());
    program_.graphs.push_back(std::move(forward_backward));
    TACC_ASSIGN_OR_RETURN(Graph update, Update());
    program_.graphs.push_back(std::move(update));
    TACC_ASSIGN_OR_RETURN(Graph eval, Eval());
    program_.graphs.push_back(std::move(eval));
    if (accumulates()) program_.step.push_back({kBeginGraph, 0});
    for (int64_t m = 0; m < options_.accumulation; ++m) program_.step.push_back({"forward_backward", m});
    program_.step.push_back({"update", 0});
    program_.eval.push_back({"eval", 0});
    return std::move(program_);
  }

 private:
  bool accumulates() const { return options_.accumulation > 1 || options_.has_client; }
  TrainedParameter Trained(const Parameter& p) const { return p.AsTrained(options_); }
  TensorType GradientType(const Parameter& p) const { return StateType(Trained(p)); }

  void AddStates() {
    for (const Parameter& p : parameters_) {
      State weight = MakeState(WeightState(p.name), p.type, StateKind::kWeight, p.init);
      weight.stored_dims = p.stored_dims;
      weight.axes = p.axes;
      weight.role = p.role;
      program_.states.push_back(std::move(weight));
      if (p.is_frozen()) continue;
      if (p.has_copy)
        program_.states.push_back(MakeState(CopyState(p.name), {p.use, p.type.dims}, StateKind::kCopy, "copy"));
      for (State& state : OptimizerStates(options_, Trained(p))) program_.states.push_back(std::move(state));
      program_.states.push_back(MakeState(GradientState(p.name), GradientType(p), StateKind::kGradient, "zeros"));
    }
    for (const auto& [name, type] : totals_)
      program_.states.push_back(MakeState(CounterState(name), type, StateKind::kCounter, "zeros"));
    if (!options_.loss_scale.has_value()) return;
    const std::string init = absl::StrCat("constant(", Print(Attr(options_.loss_scale->init_scale)), ")");
    program_.states.push_back(MakeState(kScaleState, scalar_, StateKind::kLossScale, init));
    program_.states.push_back(MakeState(kGoodStepsState, scalar_, StateKind::kLossScale, "zeros"));
    program_.states.push_back(MakeState(kSkippedState, scalar_, StateKind::kLossScale, "zeros"));
  }

  // Of a micro-batch: its samples, each with all positions where it is a sequence.
  int64_t NumTokens() const {
    return std::max<int64_t>(1, ExtentOf(forward_, InputAxis::kBatch)) *
           std::max<int64_t>(1, ExtentOf(forward_, InputAxis::kSequence));
  }

  // The loss's cotangent: 1, or the loss scale for a mean over a step's tokens.
  ValueId Seed(Builder& b) const {
    return options_.loss_scale.has_value() ? b.Scale(b.Leaf(Op::kRead, kScaleState, scalar_), seed_factor_)
                                           : b.Constant(1.0, scalar_);
  }

  Graph Begin() {
    Graph graph;
    graph.name = kBeginGraph;
    Builder builder(graph, ops_);
    for (const State& state : program_.states) {
      if (state.kind != StateKind::kGradient && state.kind != StateKind::kCounter) continue;
      builder.End(Op::kStore, state.name, builder.Constant(0.0, state.type));
    }
    return graph;
  }

  void Accumulate(Builder& builder, const std::string& state, const TensorType& type, ValueId value) {
    if (accumulates()) value = builder.Add("add", {builder.Leaf(Op::kRead, state, type), value});
    builder.End(Op::kStore, state, value);
  }

  absl::StatusOr<Graph> ForwardBackward() {
    Graph graph = forward_;
    graph.name = "forward_backward";
    SeparateRunningStatistics(graph);
    TACC_RETURN_IF_ERROR(GroupStatistics(graph, ops_, options_.batch_norm_groups));
    MakeChangesEarly(graph);
    const ValueId loss = graph.Output("loss");
    std::map<std::string, ValueId> totals;
    for (const auto& [name, type] : totals_) totals[name] = graph.Output(name);
    const std::map<std::string, ValueId> buffers = ChangedBuffers(graph);
    RemoveOutputs(graph);
    std::map<std::string, ValueId> leaves;
    for (const Node& node : graph.nodes) {
      if (node.op == Op::kParam) leaves[node.symbol] = node.results[0];
    }
    std::vector<const Parameter*> trained;
    std::vector<ValueId> wanted;
    for (const Parameter& p : parameters_) {
      if (p.is_frozen()) continue;
      trained.push_back(&p);
      wanted.push_back(leaves.at(p.name));
    }
    Builder builder(graph, ops_);
    const ValueId seed = Seed(builder);
    TACC_RETURN_IF_ERROR(builder.status());
    TACC_ASSIGN_OR_RETURN(std::vector<ValueId> gradients, Differentiate(graph, ops_, loss, seed, wanted));

    // Each gradient goes to its accumulator where it is complete, so that its memory lives no longer.
    std::vector<std::vector<Node>> after(graph.nodes.size());
    const std::vector<int> producers = graph.Producers();
    auto put_behind = [&](ValueId value, const auto& add) {
      const size_t first = graph.nodes.size();
      builder.SetModule(graph.nodes[producers[value]].module);
      add();
      std::move(graph.nodes.begin() + first, graph.nodes.end(), std::back_inserter(after[producers[value]]));
      graph.nodes.resize(first);
    };
    auto accumulate = [&](const std::string& state, const TensorType& type, ValueId value) {
      put_behind(value, [&] { Accumulate(builder, state, type, builder.Cast(value, type.dtype)); });
    };
    for (size_t i = 0; i < trained.size(); ++i) {
      const Parameter& p = *trained[i];
      if (gradients[i] == kNoValue) {
        return absl::InvalidArgumentError(
            absl::StrCat("the loss does not depend on parameter \"", p.name, "\"; remove it from the graph"));
      }
      accumulate(GradientState(p.name), GradientType(p), gradients[i]);
    }
    for (const auto& [name, value] : totals) accumulate(CounterState(name), totals_.at(name), value);
    for (const auto& [name, value] : buffers)
      put_behind(value, [&, v = value] { builder.End(Op::kStore, WeightState(name), v); });
    TACC_RETURN_IF_ERROR(builder.status());
    std::vector<Node> nodes;
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      nodes.push_back(std::move(graph.nodes[i]));
      for (Node& node : after[i]) nodes.push_back(std::move(node));
    }
    graph.nodes = std::move(nodes);
    BindParameters(by_name_, ReadFrom::kWeights, graph);
    return graph;
  }

  absl::StatusOr<Graph> Update() {
    Graph graph;
    graph.name = "update";
    Builder b(graph, ops_);
    const ValueId step = b.Leaf(Op::kInput, "step", {DType::kI64, {}});
    std::map<std::string, ValueId> totals;
    for (const auto& [name, type] : totals_) totals[name] = b.Leaf(Op::kRead, CounterState(name), type);
    const ValueId target_tokens = totals.at("target_tokens");
    ValueId sum_squares = kNoValue;
    std::vector<const Parameter*> trained;
    std::vector<ValueId> gradients;
    for (const Parameter& p : parameters_) {
      if (p.is_frozen()) continue;
      trained.push_back(&p);
      gradients.push_back(b.Leaf(Op::kRead, GradientState(p.name), GradientType(p)));
      const ValueId squares = b.Add("sum_squares", {gradients.back()});
      sum_squares = sum_squares == kNoValue ? squares : b.Add("add", {sum_squares, squares});
    }
    // What the gradients' sum is over their mean.
    ValueId divisor = target_tokens;
    if (options_.loss_scale.has_value()) divisor = b.Add("mul", {target_tokens, Seed(b)});
    ValueId factor = kNoValue;
    if (options_.has_client) {
      factor = ClientScalar(b, kGradientFactorInput, 1.0);
      sum_squares = b.Add("mul", {sum_squares, b.Add("mul", {factor, factor})});
    }
    const ValueId grad_norm = b.Add("div", {b.Add("sqrt", {sum_squares}), divisor});
    const ValueId apply = b.Add("is_finite", {grad_norm});
    ValueId grad_scale = b.Add("reciprocal", {divisor});
    if (factor != kNoValue) grad_scale = b.Add("mul", {grad_scale, factor});
    if (options_.max_grad_norm > 0 || options_.has_client) {
      // min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_.
      const ValueId inverse = b.Add("reciprocal", {b.Add("add_scalar", {grad_norm}, {{"value", 1e-6}})});
      const ValueId ratio =
          options_.has_client ? b.Add("mul", {inverse, MaxGradNorm(b)}) : b.Scale(inverse, options_.max_grad_norm);
      grad_scale = b.Add("mul", {grad_scale, b.Add("minimum", {ratio, b.Constant(1.0, scalar_)})});
    }
    const ValueId learning_rate = LearningRate(b, step, options_.learning_rate);
    ValueId count = b.Add("add_scalar", {b.Cast(step, scalar_.dtype)}, {{"value", 1.0}});
    if (options_.loss_scale.has_value())
      count = b.Add("sub", {count, b.Leaf(Op::kRead, kSkippedState, scalar_)});  // the updates that were made
    std::map<double, ValueId> rates = {{options_.learning_rate, learning_rate}}, momenta;
    for (const Parameter* p : trained) {
      const double peak = RateOf(*p);
      if (rates.count(peak) == 0) rates[peak] = LearningRate(b, step, peak);
      if (HasMomentumInput(*p) && momenta.count(peak) == 0) momenta[peak] = Momentum(b, peak);
    }
    for (size_t i = 0; i < trained.size(); ++i) {
      const double peak = RateOf(*trained[i]);
      const ValueId momentum = HasMomentumInput(*trained[i]) ? momenta.at(peak) : kNoValue;
      AddOptimizerStep(options_, Trained(*trained[i]),
                       {gradients[i], rates.at(peak), grad_scale, apply, count, momentum}, b);
    }
    b.End(Op::kOutput, "loss", b.Add("div", {totals.at("loss"), target_tokens}));
    b.End(Op::kOutput, "grad_norm", grad_norm);
    b.End(Op::kOutput, "learning_rate", learning_rate);
    for (const auto& [name, value] : totals) {
      if (name != "loss") b.End(Op::kOutput, name, value);
    }
    const ValueId skipped = b.Add("add_scalar", {b.Add("neg", {apply})}, {{"value", 1.0}});
    b.End(Op::kOutput, "skipped", skipped);
    if (options_.loss_scale.has_value()) UpdateLossScale(b, apply, skipped);
    TACC_RETURN_IF_ERROR(b.status());
    return graph;
  }

  // The peak of the parameter's learning rate.
  double RateOf(const Parameter& p) const { return p.learning_rate.value_or(options_.learning_rate); }

  // The schedule with that peak.
  ValueId LearningRate(Builder& b, ValueId step, double peak) const {
    const ValueId rate = b.Cast(ScheduledRate(options_, step, peak, b), scalar_.dtype);
    if (!options_.has_client) return rate;
    return b.Add("mul", {rate, ClientScalar(b, absl::StrCat(kLearningRateFactorInput, Print(Attr(peak))), 1.0)});
  }

  // What a client may give with an update; where it does not, `absent`.
  ValueId ClientScalar(Builder& b, const std::string& input, double absent) const {
    return b.Cast(b.Leaf(Op::kInput, input, {DType::kF32, {}}, {{"default", absent}}), scalar_.dtype);
  }
  // Of parameters that have the training's optimizer. As a double: 1 - 0.9999 would lose most of a float's digits.
  bool HasMomentumInput(const Parameter& p) const {
    return options_.has_client && p.optim.empty() && MomentumOf(options_).has_value();
  }
  ValueId Momentum(Builder& b, double peak) const {
    return b.Leaf(Op::kInput, absl::StrCat(kMomentumInput, Print(Attr(peak))), {DType::kF64, {}},
                  {{"default", *MomentumOf(options_)}});
  }
  ValueId MaxGradNorm(Builder& b) const {
    constexpr double kNone = 3e38;  // clips nothing
    return ClientScalar(b, kMaxGradNormInput, options_.max_grad_norm > 0 ? options_.max_grad_norm : kNone);
  }

  // As torch.amp.GradScaler.update.
  void UpdateLossScale(Builder& b, ValueId apply, ValueId skipped) {
    const ValueId zero = b.Constant(0.0, scalar_);
    const ValueId scale = b.Leaf(Op::kRead, kScaleState, scalar_);
    const ValueId good_steps = b.Add("add_scalar", {b.Leaf(Op::kRead, kGoodStepsState, scalar_)}, {{"value", 1.0}});
    // 1 from growth_interval good steps on.
    const ValueId beyond =
        b.Add("add_scalar", {good_steps}, {{"value", 1.0 - static_cast<double>(options_.loss_scale->growth_interval)}});
    const ValueId grow = b.Add("clamp", {beyond}, {{"min", 0.0}, {"max", 1.0}});
    const ValueId after_good = b.Add("select", {grow, b.Scale(scale, 2.0), scale});
    const ValueId next = b.Add("clamp", {b.Add("select", {apply, after_good, b.Scale(scale, 0.5)})},
                               {{"min", kLeastLossScale}, {"max", kLargestLossScale}});
    const ValueId counted = b.Add("select", {apply, b.Add("select", {grow, zero, good_steps}), zero});
    const ValueId all_skipped = b.Add("add", {b.Leaf(Op::kRead, kSkippedState, scalar_), skipped});
    b.End(Op::kStore, kScaleState, next);
    b.End(Op::kStore, kGoodStepsState, counted);
    b.End(Op::kStore, kSkippedState, all_skipped);
    b.End(Op::kOutput, "loss_scale", next);
  }

  absl::StatusOr<Graph> Eval() {
    Graph graph = forward_;
    graph.name = "eval";
    std::erase_if(graph.nodes, IsChangedBuffer);
    MakeEvaluation(graph);
    TACC_RETURN_IF_ERROR(GroupStatistics(graph, ops_, options_.batch_norm_groups));
    if (!options_.has_client) std::erase_if(graph.nodes, IsReturned);
    BindParameters(by_name_, options_.ema_decay.has_value() ? ReadFrom::kAverages : ReadFrom::kWeights, graph);
    return graph;
  }

  const Graph& forward_;
  const OpTable& ops_;
  const TrainingOptions& options_;
  TensorType scalar_;
  double seed_factor_ = 1.0;                  // of the loss scale
  std::map<std::string, TensorType> totals_;  // the outputs of the forward graph, summed over a step
  std::vector<Parameter> parameters_;
  std::map<std::string, const Parameter*> by_name_;
  Program program_;
};

}  // namespace

absl::StatusOr<bool> BuildTraining(Program& program, const OpTable& ops, const TrainingOptions& options) {
  TACC_ASSIGN_OR_RETURN(program, TrainingBuilder(program.graphs[0], ops, options).Build());
  return true;
}

absl::StatusOr<double> OptimizerBytesOfElement(const Graph& forward, const TrainingOptions& options) {
  TACC_RETURN_IF_ERROR(CheckOptimizer(options.optim));
  TACC_ASSIGN_OR_RETURN(const std::vector<Parameter> parameters, CollectParameters(forward, options));
  double bytes = 0, elements = 0;
  for (const Parameter& p : parameters) {
    if (p.is_frozen()) continue;
    elements += static_cast<double>(p.type.num_elements());
    for (const State& state : OptimizerStates(options, p.AsTrained(options)))
      bytes += static_cast<double>(state.type.bytes());
  }
  return elements == 0 ? 0 : bytes / elements;
}

}  // namespace tacc::graph
