#include "graph/passes/partition/graph_partitioner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/state_names.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/input_axes.h"
#include "graph/passes/partition/axis_list.h"
#include "graph/passes/partition/factor_axes.h"
#include "graph/passes/partition/pins.h"

namespace tacc::graph {

GraphPartitioner::GraphPartitioner(const Graph& logical, const Program& program, const StateIndex& states,
                                   const OpTable& ops, const PartitionOptions& options, const ParameterForms& forms,
                                   PendingByState* sums)
    : nodes_(logical.nodes),
      producers_(logical.Producers()),
      states_(states),
      ops_(ops),
      options_(options),
      mesh_(options.mesh),
      forms_(forms),
      sums_(sums),
      units_(options.units) {
  logical_.name = logical.name;
  logical_.values = logical.values;
  out_.name = logical.name;
  homes_.resize(logical.values.size(), kNoValue);
  pinned_ = PinnedValues(program, logical, options.pinned_results);
  FindGradients();
}

absl::StatusOr<Graph> GraphPartitioner::Run() {
  int unit = -2;
  for (const Node& node : nodes_) {
    node_ = &node;
    if (const int next = units_.Of(node.module); !IsLeaf(node) && next != unit) {
      unit = next;
      ++run_;
    }
    if (absl::Status status = Visit(node); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(logical_.name, ": ", node.op.name(), " at ",
                                       node.module.empty() ? "the top level" : node.module, ": ", status.message()));
    }
  }
  return std::move(out_);
}

absl::Status GraphPartitioner::Visit(const Node& node) {
  if (node.op == Op::kInput) {
    const std::vector<InputAxis> axes = InputAxes(logical_, node);
    Sharding s = Sharding::Replicated(static_cast<int>(axes.size()));
    for (size_t d = 0; d < axes.size(); ++d) {
      if (axes[d] == InputAxis::kBatch) s.dims[d] = options_.batch_axes;
      if (axes[d] == InputAxis::kSequence) s.dims[d] = options_.sequence_axes;
    }
    homes_[node.results[0]] = EmitLeaf(node, s);
    return absl::OkStatus();
  }
  if (node.op == Op::kRead || node.op == Op::kStore) {
    const State* state = states_.Find(node.symbol);
    if (state == nullptr) return absl::InvalidArgumentError(absl::StrCat("no state is named \"", node.symbol, "\""));
    return node.op == Op::kRead ? VisitRead(node, *state) : VisitStore(node, *state);
  }
  if (node.op == Op::kOutput) {
    Sharding s = Sharding::Replicated(logical_.type(node.operands[0]).rank());
    // What the model returns of its samples stays with the rank that has them.
    const std::vector<AxisList>& made = home(node.operands[0]).dims;
    if (GetAttr<bool>(node.attrs, "returned") && !made.empty() && made[0] == options_.batch_axes) s.dims[0] = made[0];
    EmitEnd(node, Reshard(node.operands[0], s));
    return absl::OkStatus();
  }
  if (sums_ != nullptr && node.op == "add" && IsCarriedSum(node.operands[0])) {
    homes_[node.results[0]] = homes_[node.operands[1]];
    return absl::OkStatus();
  }
  TACC_RETURN_IF_ERROR(VisitOp(node));
  if (IsMerge(node)) {
    weight_of_[node.results[0]] = weight_of_[node.operands[0]];
    BringToUpdate(node.results[0]);
    return absl::OkStatus();
  }
  TACC_RETURN_IF_ERROR(MoveBack(node));
  return ApplyHome(node);
}

absl::Status GraphPartitioner::MoveBack(const Node& node) {
  TACC_ASSIGN_OR_RETURN(const Rule rule, ops_.Find(node.op)->rule(CallOf(logical_, node)));
  if (std::none_of(rule.factors.begin(), rule.factors.end(), [](const Factor& f) { return f.move_to >= 0; }))
    return absl::OkStatus();
  for (size_t r = 0; r < node.results.size(); ++r) {
    const auto like = std::find(rule.in.begin(), rule.in.end(), rule.out[r]);
    if (like == rule.in.end()) continue;
    Sharding target = {home(node.operands[like - rule.in.begin()]).dims, home(node.results[r]).pending};
    std::erase_if(target.pending, [&](int axis) { return target.Uses(axis); });
    const ValueId made = homes_[node.results[r]];
    homes_[node.results[r]] = Reshard(node.results[r], target);
    AddForm(node.results[r], made);
  }
  return absl::OkStatus();
}

absl::Status GraphPartitioner::VisitRead(const Node& node, const State& state) {
  const ValueId v = node.results[0];
  homes_[v] = EmitLeaf(node, state.placement.sharding);
  const bool is_weight =
      state.kind == StateKind::kWeight || state.kind == StateKind::kCopy || state.kind == StateKind::kAverage;
  // The update works on weights where they rest.
  if (is_weight && logical_.name != kUpdateGraph) weight_of_[v] = ParameterOf(state);
  BringToUpdate(v);
  return absl::OkStatus();
}

void GraphPartitioner::BringToUpdate(ValueId v) {
  if (logical_.name != kUpdateGraph || gradient_of_[v].empty()) return;
  std::vector<std::string> candidates;
  for (absl::string_view prefix : StateNamePrefixes(StateKind::kOptimizer))
    candidates.push_back(absl::StrCat(prefix, gradient_of_[v]));
  candidates.push_back(WeightState(gradient_of_[v]));
  for (const std::string& name : candidates) {
    const State* state = states_.Find(name);
    if (state == nullptr || state->logical_dims() != forms_.at(gradient_of_[v]).dims) continue;
    if (state->placement.global.dims == logical_.type(v).dims) homes_[v] = Reshard(v, state->placement.sharding);
    return;
  }
}

absl::Status GraphPartitioner::VisitStore(const Node& node, const State& state) {
  if (sums_ != nullptr && (state.kind == StateKind::kGradient || state.kind == StateKind::kCounter)) {
    AxisList& sum = (*sums_)[state.name];
    for (int axis : home(node.operands[0]).pending) {
      if (!Contains(sum, axis)) sum.push_back(axis);
    }
    return absl::OkStatus();
  }
  const ValueId v = Reshard(node.operands[0], state.placement.sharding);
  if (sharding(v) != state.placement.sharding) {
    return absl::InternalError(absl::StrCat("the value for \"", node.symbol, "\" is ", sharding(v).ToString(mesh_),
                                            " and cannot become ", state.placement.sharding.ToString(mesh_)));
  }
  EmitEnd(node, v);
  return absl::OkStatus();
}

bool GraphPartitioner::IsCarriedSum(ValueId logical) const {
  const Node* producer = Producer(logical);
  if (producer == nullptr || producer->op != Op::kRead) return false;
  const State* state = states_.Find(producer->symbol);
  return state != nullptr && (state->kind == StateKind::kGradient || state->kind == StateKind::kCounter);
}

absl::Status GraphPartitioner::ApplyHome(const Node& node) {
  // In a ring each rank works on its own positions.
  if (node.op == "positions" && IsLeaf(node) && GetAttr<int64_t>(node.attrs, "zigzag") > 1)
    homes_[node.results[0]] = Reshard(node.results[0], {{options_.sequence_axes}, {}});
  for (ValueId v : node.results) {
    if (const auto pin = pinned_.find(v); pin != pinned_.end()) homes_[v] = Reshard(v, {pin->second, {}});
  }
  if (!options_.residual.has_value() || node.module != options_.residual->module) return absl::OkStatus();
  for (ValueId v : node.results) {
    if (static_cast<size_t>(logical_.type(v).rank()) != options_.residual->dims.size()) continue;
    homes_[v] = Reshard(v, {options_.residual->dims, {}});
    residual_dims_ = logical_.type(v).dims;
  }
  return absl::OkStatus();
}

absl::Status GraphPartitioner::VisitOp(const Node& node) {
  const OpDef* def = ops_.Find(node.op);
  if (def == nullptr) return absl::InvalidArgumentError("unknown op");
  if (!def->rule) return absl::InternalError("the op has no sharding rule");
  OpCall call = CallOf(logical_, node);
  TACC_ASSIGN_OR_RETURN(const Rule rule, def->rule(call));
  TACC_RETURN_IF_ERROR(CheckRule(rule, call));

  if (NarrowsWeight(node, rule, call)) {
    weight_of_[node.results[0]] = weight_of_[node.operands[0]];
    const Sharding rests = home(node.operands[0]);
    Node emitted = node;
    emitted.operands = {homes_[node.operands[0]]};
    emitted.results = {AddValue(logical_.values[node.results[0]].name, call.out(0), rests)};
    homes_[node.results[0]] = emitted.results[0];
    out_.nodes.push_back(std::move(emitted));
    return absl::OkStatus();
  }
  std::vector<AxisList> axes = AssignFactors(node, rule, call);
  AxisList kept = KeptPending(node, rule, axes);
  if (ResolveAtHome(node, rule, call, kept, axes)) kept = KeptPending(node, rule, axes);
  for (size_t f = 0; f < axes.size(); ++f) {
    if (rule.factors[f].expandable && !axes[f].empty()) return Expand(node, *def, axes);
  }

  std::vector<ValueId> operands;
  AxisList reduced;  // axes of factors that operands have
  for (size_t i = 0; i < node.operands.size(); ++i) {
    Sharding target = Sharding::Replicated(call.in(i).rank());
    for (int d = 0; d < call.in(i).rank(); ++d) {
      const int f = rule.in[i][d];
      if (f == Rule::kNone) continue;
      target.dims[d] = DimAxes(rule.factors[f], call.in(i).dims[d], axes[f], mesh_);
      for (int axis : axes[f]) {
        if (!Contains(reduced, axis)) reduced.push_back(axis);
      }
    }
    for (int axis : kept) {
      if (home(node.operands[i]).IsPending(axis)) target.pending.push_back(axis);
    }
    ValueId v = Reshard(node.operands[i], target);
    if (!rule.self_masking) v = MaskReducedPadding(v, rule, static_cast<int>(i), call, axes);
    operands.push_back(v);
  }

  Node emitted = node;
  emitted.operands = std::move(operands);
  if (def->is_collective) {  // one with a rule moves data along its dim, over what splits that
    const int f = rule.in[0][GetAttr<int64_t>(node.attrs, "dim")];
    emitted.attrs["over"] = AxisNames(mesh_, axes[f]);
  }
  for (size_t r = 0; r < node.results.size(); ++r) {
    Sharding s = Sharding::Replicated(call.out(r).rank());
    for (int d = 0; d < call.out(r).rank(); ++d) {
      const int f = rule.out[r][d];
      if (f != Rule::kNone) s.dims[d] = DimAxes(rule.factors[f], call.out(r).dims[d], axes[f], mesh_);
    }
    s.pending = kept;
    for (int axis : reduced) {
      if (!s.Uses(axis)) s.pending.push_back(axis);
    }
    std::sort(s.pending.begin(), s.pending.end());
    emitted.results[r] = AddValue(logical_.values[node.results[r]].name, call.out(r), s);
    homes_[node.results[r]] = emitted.results[r];
  }
  out_.nodes.push_back(std::move(emitted));
  return absl::OkStatus();
}

absl::Status GraphPartitioner::Expand(const Node& node, const OpDef& def, const std::vector<AxisList>& axes) {
  std::vector<int64_t> shards;
  for (const AxisList& list : axes) shards.push_back(NumShards(mesh_, list));
  std::vector<ValueId> results(node.results.size(), kNoValue);
  Builder builder(logical_, ops_);
  builder.SetModule(node.module);
  builder.SetRecompute(node.recompute);
  ExpandCall call{builder, node, shards, results};
  TACC_RETURN_IF_ERROR(def.expand(call));
  TACC_RETURN_IF_ERROR(builder.status());
  const std::vector<Node> made = std::move(logical_.nodes);
  logical_.nodes.clear();
  homes_.resize(logical_.values.size(), kNoValue);
  gradient_of_.resize(logical_.values.size());
  weight_of_.resize(logical_.values.size());
  producers_.resize(logical_.values.size(), -1);
  for (const Node& part : made) TACC_RETURN_IF_ERROR(VisitOp(part));
  for (size_t r = 0; r < results.size(); ++r) homes_[node.results[r]] = homes_[results[r]];
  return absl::OkStatus();
}

absl::Status GraphPartitioner::CheckRule(const Rule& rule, const OpCall& call) {
  auto fits = [&](const std::vector<std::vector<int>>& maps, const std::vector<TensorType>& types) {
    if (maps.size() != types.size()) return false;
    for (size_t i = 0; i < maps.size(); ++i) {
      if (static_cast<int>(maps[i].size()) != types[i].rank()) return false;
      for (size_t d = 0; d < maps[i].size(); ++d) {
        const int f = maps[i][d];
        if (f == Rule::kNone) continue;
        if (f < 0 || f >= static_cast<int>(rule.factors.size())) return false;
        const Factor& factor = rule.factors[f];
        const bool multiple = factor.even && factor.size > 0 && types[i].dims[d] % factor.size == 0;
        const bool groups = factor.groups > 0 && types[i].dims[d] == factor.groups;
        if (factor.size != types[i].dims[d] && !multiple && !groups) return false;
      }
    }
    return true;
  };
  if (!fits(rule.in, call.operands) || !fits(rule.out, call.results)) {
    return absl::InternalError("the sharding rule does not fit the operands or results");
  }
  return absl::OkStatus();
}

std::vector<AxisList> GraphPartitioner::AssignFactors(const Node& node, const Rule& rule, const OpCall& call) const {
  std::vector<FactorProposal> proposals;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    const Sharding* in_use = InUse(node.operands[i]);
    proposals.push_back({in_use != nullptr, call.in(i).bytes(), &rule.in[i],
                         in_use != nullptr ? &in_use->dims : &home(node.operands[i]).dims});
  }
  for (size_t r = 0; r < node.results.size(); ++r) {
    const Sharding* in_use = FormInUse(gradient_of_[node.results[r]], node.results[r]);
    if (in_use != nullptr) proposals.push_back({true, call.out(r).bytes(), &rule.out[r], &in_use->dims});
  }
  return ChooseFactorAxes(rule, mesh_, std::move(proposals));
}

bool GraphPartitioner::ResolveAtHome(const Node& node, const Rule& rule, const OpCall& call, const AxisList& kept,
                                     std::vector<AxisList>& axes) const {
  const std::vector<AxisList> before = axes;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    if (residual_dims_.empty() || call.in(i).dims != residual_dims_) continue;
    for (int axis : home(node.operands[i]).pending) {
      if (Contains(kept, axis)) continue;
      TakeProposal({false, 0, &rule.in[i], &options_.residual->dims}, rule, mesh_, axes);
      break;
    }
  }
  return axes != before;
}

const Sharding* GraphPartitioner::FormInUse(const std::string& parameter, ValueId logical) const {
  const auto it = forms_.find(parameter);
  if (it == forms_.end()) return nullptr;
  const Dims& dims = logical_.type(logical).dims;
  if (dims == it->second.dims) return &it->second.in_use;
  return dims == it->second.merged_dims ? &it->second.merged_in_use : nullptr;
}

bool GraphPartitioner::IsMerge(const Node& node) const {
  return node.op == "reshape" &&
         (IsMergeOf(node, weight_of_[node.operands[0]]) || IsMergeOf(node, gradient_of_[node.results[0]]));
}

bool GraphPartitioner::IsMergeOf(const Node& reshape, const std::string& parameter) const {
  return FormInUse(parameter, reshape.operands[0]) != nullptr && FormInUse(parameter, reshape.results[0]) != nullptr;
}

bool GraphPartitioner::NarrowsWeight(const Node& node, const Rule& rule, const OpCall& call) const {
  return node.operands.size() == 1 && node.results.size() == 1 && InUse(node.operands[0]) != nullptr &&
         rule.in[0] == rule.out[0] && call.out(0).bytes() < call.in(0).bytes();
}

const Node* GraphPartitioner::Producer(ValueId logical) const {
  return producers_[logical] < 0 ? nullptr : &nodes_[producers_[logical]];
}

std::optional<bool> GraphPartitioner::StaysPending(const Node& node, int axis) const {
  for (ValueId v : node.results) {
    const auto found = options_.pending_gradients.find(gradient_of_[v]);
    if (found != options_.pending_gradients.end()) return Contains(found->second, axis);
  }
  return std::nullopt;
}

AxisList GraphPartitioner::KeptPending(const Node& node, const Rule& rule, const std::vector<AxisList>& axes) const {
  AxisList kept;
  int64_t result_bytes = 0;
  for (ValueId v : node.results) result_bytes = std::max(result_bytes, logical_.type(v).bytes());
  for (int axis = 0; axis < static_cast<int>(mesh_.axes.size()); ++axis) {
    std::vector<int> pending;
    int64_t pending_bytes = 0;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (!home(node.operands[i]).IsPending(axis)) continue;
      pending.push_back(static_cast<int>(i));
      pending_bytes = std::max(pending_bytes, logical_.type(node.operands[i]).bytes());
    }
    if (pending.empty()) continue;
    const bool held = std::any_of(axes.begin(), axes.end(), [axis](const AxisList& a) { return Contains(a, axis); });
    const bool linear = std::find(rule.linear_in.begin(), rule.linear_in.end(), pending) != rule.linear_in.end();
    if (!held && linear && StaysPending(node, axis).value_or(result_bytes <= pending_bytes)) kept.push_back(axis);
  }
  return kept;
}

ValueId GraphPartitioner::MaskReducedPadding(ValueId v, const Rule& rule, int operand, const OpCall& call,
                                             const std::vector<AxisList>& axes) {
  for (size_t d = 0; d < rule.in[operand].size(); ++d) {
    const int f = rule.in[operand][d];
    if (f == Rule::kNone || axes[f].empty()) continue;
    const bool reduced = std::any_of(rule.out.begin(), rule.out.end(), [f](const std::vector<int>& dims) {
      return std::find(dims.begin(), dims.end(), f) == dims.end();
    });
    if (!reduced || !IsPadded(call.in(operand).dims[d], axes[f], mesh_)) continue;
    return emitter().Emit(Op::kMaskPadding, v, call.in(operand), sharding(v), {});
  }
  return v;
}

ValueId GraphPartitioner::Reshard(ValueId logical, const Sharding& target) {
  if (sharding(homes_[logical]) == target) return homes_[logical];
  const Node* producer = Producer(logical);
  const bool lasts = (producer != nullptr && IsLeaf(*producer)) || InUse(logical) != nullptr;
  int times = 0;
  for (const Resharded& r : resharded_[logical]) {
    if (r.sharding != target) continue;
    if (lasts || r.run == run_ || IsKept(logical, r.value)) return r.value;
    ++times;
  }
  ValueId v = kNoValue;
  if (producer != nullptr && CanBeMadeAnywhere(*producer, target)) {
    v = EmitLeaf(*producer, target);
  } else {
    const size_t first = out_.nodes.size();
    const bool narrows = !gradient_of_[logical].empty();
    v = emitter().Reshard(StartOf(logical, target), target,
                          narrows ? std::optional<DType>(options_.reduce_dtype) : std::nullopt);
    for (size_t i = first; i < out_.nodes.size(); ++i) {
      Node& node = out_.nodes[i];
      node.recompute += times;
      const bool is_narrowed = out_.type(node.results[0]).dtype != logical_.type(logical).dtype;
      if (node.results[0] != v && !is_narrowed) AddForm(logical, node.results[0]);
    }
  }
  AddForm(logical, v);
  return v;
}

bool GraphPartitioner::IsKept(ValueId logical, ValueId form) const {
  return out_.type(form).num_elements() <= out_.type(homes_[logical]).num_elements();
}

ValueId GraphPartitioner::StartOf(ValueId logical, const Sharding& target) const {
  const auto gathers_to = [&target](const Sharding& s) {
    bool gathers = s.pending == target.pending;
    for (size_t d = 0; d < target.dims.size(); ++d) gathers = gathers && IsPrefix(target.dims[d], s.dims[d]);
    return gathers;
  };
  const auto it = resharded_.find(logical);
  if (it == resharded_.end() || gathers_to(home(logical))) return homes_[logical];
  for (const Resharded& r : it->second) {
    if (gathers_to(r.sharding) && IsKept(logical, r.value)) return r.value;
  }
  return homes_[logical];
}

void GraphPartitioner::FindGradients() {
  gradient_of_.assign(homes_.size(), "");
  weight_of_.assign(homes_.size(), "");
  for (const Node& node : nodes_) {
    if (node.op != Op::kRead && node.op != Op::kStore) continue;
    const State* state = states_.Find(node.symbol);
    if (state == nullptr || state->kind != StateKind::kGradient) continue;
    const ValueId v = node.op == Op::kRead ? node.results[0] : node.operands[0];
    // And what it is the sum of: a table that is used twice has the sum of two.
    for (std::vector<ValueId> terms = {v}; !terms.empty();) {
      const ValueId term = terms.back();
      terms.pop_back();
      gradient_of_[term] = ParameterOf(*state);
      const Node* producer = Producer(term);
      const bool is_merge =
          producer != nullptr && producer->op == "reshape" && IsMergeOf(*producer, gradient_of_[term]);
      if (producer != nullptr && (producer->op == "add" || is_merge))
        terms.insert(terms.end(), producer->operands.begin(), producer->operands.end());
    }
  }
  for (const Node& node : nodes_) {  // in the update, from how it was stored
    if (node.op == "reshape" && IsMergeOf(node, gradient_of_[node.operands[0]]))
      gradient_of_[node.results[0]] = gradient_of_[node.operands[0]];
  }
}

bool GraphPartitioner::CanBeMadeAnywhere(const Node& node, const Sharding& target) {
  if (!node.operands.empty() || !node.symbol.empty() || node.results.size() != 1) return false;
  return target.pending.empty() || (node.op == Op::kConstant && GetAttr<double>(node.attrs, "value") == 0.0);
}

ValueId GraphPartitioner::AddValue(const std::string& name, const TensorType& global, Sharding s) {
  return AddLocalValue(out_, mesh_, name, global, std::move(s));
}

ValueId GraphPartitioner::EmitLeaf(const Node& node, const Sharding& s) {
  Node leaf = node;
  leaf.results = {AddValue(logical_.values[node.results[0]].name, logical_.type(node.results[0]), s)};
  out_.nodes.push_back(leaf);
  return leaf.results[0];
}

void GraphPartitioner::EmitEnd(const Node& node, ValueId value) {
  Node end = node;
  end.operands = {value};
  out_.nodes.push_back(std::move(end));
}

}  // namespace tacc::graph
