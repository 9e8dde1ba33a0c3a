#include "graph/planner/cost/analyze.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "graph/analysis/cost.h"
#include "graph/ir/state_names.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/input_axes.h"
#include "graph/passes/modules/units.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/rewrite/fuse.h"
#include "graph/passes/rewrite/join_products.h"
#include "graph/passes/training/narrow_residual.h"
#include "graph/passes/training/remat.h"
#include "graph/planner/cost/kernel_work.h"
#include "graph/planner/cost/logical_program.h"

namespace tacc::graph {
namespace {

class Analysis {
 public:
  Analysis(const Program& program, const std::vector<std::string>& units, DType residual, const OpTable& ops)
      : states_(program),
        program_(program),
        graph_(*program.FindGraph("forward_backward")),
        units_(units),
        residual_(residual),
        ops_(ops),
        kinds_(graph_.values.size()),
        pending_(graph_.values.size(), 0),
        root_(graph_.values.size()),
        maker_(graph_.values.size(), -1),
        taken_by_(NormsThatTake(graph_)),
        work_(units.size() + 2) {
    for (size_t v = 0; v < root_.size(); ++v) root_[v] = static_cast<ValueId>(v);
    // The forward ends where it counts the loss.
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.op == Op::kStore && states_.Find(node.symbol)->kind == StateKind::kCounter) last_forward_ = i;
    }
  }

  absl::StatusOr<std::vector<UnitWork>> Run() {
    FindParts();
    FindRepeated();
    const std::vector<int> makers = graph_.Producers();
    for (const Node& node : graph_.nodes) {
      if (node.op != Op::kStore) continue;
      const State& state = *states_.Find(node.symbol);
      if (state.kind == StateKind::kGradient) gradient_makers_[ParameterOf(state)] = makers[node.operands[0]];
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) TACC_RETURN_IF_ERROR(Visit(i));
    Activations();
    const std::vector<double> shares = GradientShares(graph_, last_forward_ + 1, part_, gradient_makers_, ops_);
    for (size_t u = 0; u < shares.size(); ++u) work_[u].gradients_share = shares[u];
    std::vector<UnitWork> merged;
    for (size_t u = 0; u < work_.size(); ++u) {
      work_[u].is_layer = u > 0 && u + 1 < work_.size();
      if (!merged.empty() && work_[u].is_layer && KeyOf(merged.back()) == KeyOf(work_[u])) {
        ++merged.back().count;
      } else {
        merged.push_back(work_[u]);
      }
    }
    return merged;
  }

  // Of ModelWork.
  const ParameterCount& tied() const { return tied_; }
  bool tied_are_frozen() const { return tied_are_frozen_; }

 private:
  // Of the forward's nodes those without which the backward of their part lacks an operand. A layer's last product is
  // none: what it adds to the residual stream only the next layer reads.
  void FindRepeated() {
    is_repeated_.resize(graph_.nodes.size());
    const std::vector<int> makers = graph_.Producers();
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      const bool reads = i > last_forward_ || is_repeated_[i];
      for (ValueId v : graph_.nodes[i].operands) {
        const int maker = makers[v];
        if (reads && maker >= 0 && maker <= static_cast<int>(last_forward_) && part_[maker] == part_[i])
          is_repeated_[maker] = true;
      }
    }
  }

  // 0: before the layers, then the layers, then after. A module outside the layers lies where its first node does.
  void FindParts() {
    bool past_first = false;
    int last = 0;
    part_.resize(graph_.nodes.size());
    std::map<std::string, int> outside;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const std::string& module = graph_.nodes[i].module;
      const int unit = units_.Of(module);
      if (unit >= 0) {
        part_[i] = last = unit + 1;
        past_first = true;
      } else if (module.empty()) {
        part_[i] = i > last_forward_ ? last : 0;
      } else {
        const int here = past_first ? static_cast<int>(work_.size()) - 1 : 0;
        part_[i] = last = outside.try_emplace(module, here).first->second;
      }
    }
    // A leaf without a module belongs to its first reader.
    std::vector<int> reader(graph_.values.size(), -1);
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      const Node& node = graph_.nodes[i];
      if (node.operands.empty() && node.module.empty() && node.results.size() == 1 && reader[node.results[0]] >= 0) {
        part_[i] = part_[reader[node.results[0]]];
      }
      for (ValueId v : node.operands) reader[v] = static_cast<int>(i);
    }
  }

  absl::Status Visit(size_t i) {
    const Node& node = graph_.nodes[i];
    const OpDef* def = ops_.Find(node.op);
    if (def == nullptr) return absl::InternalError(absl::StrCat("analyze: no op ", node.op.name()));
    const OpCall call = CallOf(graph_, node);
    for (ValueId result : node.results) {
      kinds_[result].assign(graph_.type(result).dims.size(), Kind::kPlain);
      maker_[result] = static_cast<int>(i);
    }
    if (node.op == Op::kInput) {
      const std::vector<InputAxis> axes = InputAxes(graph_, node);
      for (size_t d = 0; d < axes.size(); ++d) {
        if (axes[d] != InputAxis::kNone) kinds_[node.results[0]][d] = Kind::kToken;
      }
      return absl::OkStatus();
    }
    if (node.op == Op::kRead) {
      Read(node, i);
      return absl::OkStatus();
    }
    Tie(node, i);
    if (!def->rule || node.results.empty()) return absl::OkStatus();
    TACC_ASSIGN_OR_RETURN(const Rule rule, def->rule(call));
    Kinds factors(rule.factors.size(), Kind::kPlain);
    for (size_t o = 0; o < rule.in.size(); ++o) {
      for (size_t d = 0; d < rule.in[o].size(); ++d) {
        const int f = rule.in[o][d];
        if (f != Rule::kNone && factors[f] == Kind::kPlain) factors[f] = kinds_[node.operands[o]][d];
      }
    }
    for (size_t r = 0; r < rule.out.size(); ++r) {
      for (size_t d = 0; d < rule.out[r].size(); ++d) {
        if (rule.out[r][d] != Rule::kNone) kinds_[node.results[r]][d] = factors[rule.out[r][d]];
      }
    }
    Communicate(node, i, rule, factors, Phase(i));
    if (def->aliases) {
      const std::vector<int> aliases = def->aliases(call);
      if (!aliases.empty() && aliases[0] >= 0) {
        root_[node.results[0]] = root_[node.operands[aliases[0]]];
        return absl::OkStatus();
      }
    }
    if (taken_by_[i] >= 0 && part_[taken_by_[i]] == part_[i]) {  // across parts equal layers would differ
      AddToNorm(i, factors, Phase(i));
    } else {
      AddKernel(node, *def, call, rule, factors, Phase(i));
      KernelWork& kernel = Phase(i).kernels.back();
      kernel.is_repeated = is_repeated_[i];
      if (node.op == "cast" && IsWeight(node.operands[0])) kernel.purpose = KernelWork::Purpose::kCast;
      if (sums_of_tied_.count(static_cast<int>(i)) > 0) kernel.purpose = KernelWork::Purpose::kTiedSum;
    }
    return absl::OkStatus();
  }

  void Read(const Node& node, size_t i) {
    const std::string parameter = ParameterOf(*states_.Find(node.symbol));
    const State* weight = states_.Find(WeightState(parameter));
    if (weight == nullptr) return;
    Kinds& kinds = kinds_[node.results[0]];
    for (size_t d = 0; d < kinds.size() && d < weight->axes.size(); ++d) kinds[d] = KindOf(weight->axes[d]);
    if (!counted_.insert(parameter).second) return;
    UnitWork& unit = work_[part_[i]];
    const double elements = static_cast<double>(weight->type.num_elements());
    ParameterCount count;
    (Has(kinds, Kind::kExpert) ? count.expert : Has(kinds, Kind::kTensor) ? count.tensor : count.whole) = elements;
    ++unit.num_parameters;
    const bool is_frozen = !IsTrained(weight->role);
    if (is_frozen) {
      ++unit.num_frozen;
      unit.frozen.Add(count, 1);
      if (ByteSize(weight->type.dtype) < ByteSize(DType::kF32)) unit.narrow.Add(count, 1);
    }
    WeightDims& dims = (is_frozen ? unit.frozen_weights : unit.weights).emplace_back();
    for (size_t d = 0; d < kinds.size(); ++d) {
      const Split split = kinds[d] == Kind::kTensor   ? Split::kTensor
                          : kinds[d] == Kind::kExpert ? Split::kExpert
                                                      : Split::kNone;
      dims.push_back({static_cast<double>(weight->type.dims[d]), split});
    }
    unit.parameters.Add(count, 1);
    AddAccumulation(parameter, count, unit.backward);
    if (part_[i] > 0) return;
    weight_of_[node.results[0]] = parameter;
    before_layers_[parameter] = count;
  }

  // What a gradient takes on its way to the sum of those of all micro-batches.
  void AddAccumulation(const std::string& parameter, const ParameterCount& count, PhaseWork& phase) {
    const int gradient = GradientMaker(parameter);
    if (gradient < 0) return;
    KernelWork k;
    k.purpose = KernelWork::Purpose::kAccumulation;
    k.is_of_product = absl::StartsWith(graph_.nodes[gradient].op, "einsum");
    k.region = count.expert > 0 ? Split::kExpert : count.tensor > 0 ? Split::kTensor : Split::kHome;
    k.weight_bytes = 3.0 * ByteSize(DType::kF32) * count.total();  // two are read, their sum is written
    phase.kernels.push_back(k);
  }

  // The node that makes that parameter's gradient; -1: none.
  int GradientMaker(const std::string& parameter) const {
    const auto maker = gradient_makers_.find(parameter);
    return maker == gradient_makers_.end() ? -1 : maker->second;
  }

  // A read, or what only gives it other dims.
  bool IsWeight(ValueId v) const {
    while (maker_[v] >= 0 && graph_.nodes[maker_[v]].op == "reshape") v = graph_.nodes[maker_[v]].operands[0];
    return maker_[v] >= 0 && graph_.nodes[maker_[v]].op == Op::kRead;
  }

  // Adds up what the forward uses after the layers of the weights that it used before them.
  void Tie(const Node& node, size_t i) {
    for (ValueId v : node.operands) {
      const auto weight = weight_of_.find(v);
      if (i > last_forward_ || weight == weight_of_.end()) continue;
      if (node.op == "cast") {
        weight_of_[node.results[0]] = weight->second;
      } else if (part_[i] + 1 == static_cast<int>(work_.size())) {
        ParameterCount& count = before_layers_[weight->second];
        if (count.total() > 0) sums_of_tied_.insert(GradientMaker(weight->second));
        if (count.total() > 0) tied_are_frozen_ = GradientMaker(weight->second) < 0;
        tied_.Add(count, 1);
        count = {};
      }
    }
  }

  PhaseWork& Phase(size_t i) {
    UnitWork& unit = work_[part_[i]];
    return i <= last_forward_ ? unit.forward : unit.backward;
  }

  bool IsActivation(ValueId v) const {
    const TensorType& type = graph_.type(v);
    return type.rank() >= 3 && IsFloating(type.dtype) && Has(kinds_[v], Kind::kToken);
  }
  double Bytes(ValueId v) const { return static_cast<double>(graph_.type(v).bytes()); }

  // What tp, cp and ep send around this node.
  void Communicate(const Node& node, size_t i, const Rule& rule, const Kinds& factors, PhaseWork& phase) {
    const bool tensor = Has(factors, Kind::kTensor);
    // A sum over tp goes on through ops that are linear in it; else it is scattered where it was made.
    std::vector<int> pending;
    for (size_t o = 0; o < node.operands.size(); ++o) {
      if (pending_[node.operands[o]] > 0) pending.push_back(static_cast<int>(o));
    }
    const bool passes = !pending.empty() && !tensor &&
                        std::find(rule.linear_in.begin(), rule.linear_in.end(), pending) != rule.linear_in.end();
    if (!passes) {
      for (int o : pending) {
        const ValueId v = node.operands[o];
        Phase(maker_[v]).scatters.push_back({pending_[v], is_repeated_[maker_[v]]});
        pending_[v] = 0;
      }
    }
    if (tensor) {
      for (ValueId v : node.operands) {
        if (!IsActivation(v) || Has(kinds_[v], Kind::kTensor)) continue;
        const auto [gather, is_new] = gathered_.try_emplace({v, &phase}, phase.gathers.size());
        if (is_new) {
          const auto before = gathered_.find({v, &work_[part_[i]].forward});
          const bool is_shared = i > last_forward_ && before != gathered_.end() &&
                                 work_[part_[i]].forward.gathers[before->second].is_repeated;
          phase.gathers.push_back({Bytes(v), false, is_shared});
        }
        phase.gathers[gather->second].is_repeated |= is_repeated_[i];
      }
    }
    for (size_t r = 0; r < rule.out.size(); ++r) {
      const ValueId v = node.results[r];
      bool reduced = false;
      for (size_t f = 0; f < factors.size(); ++f) {
        if (factors[f] != Kind::kTensor) continue;
        reduced |= std::find(rule.out[r].begin(), rule.out[r].end(), static_cast<int>(f)) == rule.out[r].end();
      }
      if (!IsActivation(v) || Has(kinds_[v], Kind::kTensor) || !(passes || reduced)) continue;
      // What is cast to a wider type is scattered before.
      const bool is_one = passes && pending.size() == 1;
      pending_[v] = is_one ? std::min(pending_[node.operands[pending[0]]], Bytes(v)) : Bytes(v);
    }
    if (absl::StartsWith(node.op, "attention")) {
      const bool gradient = absl::EndsWith(node.op, "_grad");
      const size_t queries = gradient ? 1 : 0;
      const double keys = BytesOfKeysAndValues(node, queries);
      phase.ring.keys += keys;
      if (gradient) {
        const double width = static_cast<double>(ByteSize(DType::kF32)) /
                             static_cast<double>(ByteSize(graph_.type(node.operands[queries]).dtype));
        const bool is_joined = absl::StrContains(node.op, "joined");
        phase.ring.key_gradients += width * keys;
        phase.ring.query_gradients += width * (Bytes(node.operands[queries]) - (is_joined ? keys : 0));
      }
    }
    // A buffer, that is sent once it is full or before it is emptied.
    const auto exchange = [&](ValueId buffer) { phase.exchanges.push_back({Bytes(buffer), is_repeated_[i]}); };
    if (node.op == "dispatch_slots") exchange(node.results[1]);
    if (node.op == "dispatch") exchange(node.results[0]);
    if (node.op == "combine") exchange(node.operands[0]);
  }

  // Of an attention whose queries, or they with keys and values behind, are that operand.
  double BytesOfKeysAndValues(const Node& node, size_t queries) const {
    if (absl::StrContains(node.op, "joined")) {
      return Bytes(node.operands[queries]) * 2 / static_cast<double>(GetAttr<int64_t>(node.attrs, "group") + 2);
    }
    return Bytes(node.operands[queries + 1]) + Bytes(node.operands[queries + 2]);
  }

  void CountBytes(ValueId v, KernelWork& k) const {
    const bool is_whole = k.region != Split::kHome && !Has(kinds_[v], Kind::kTensor);
    (!Has(kinds_[v], Kind::kToken) ? k.weight_bytes : is_whole ? k.whole_bytes : k.sample_bytes) += Bytes(v);
  }

  // An add in a norm's kernel, which counts the sum as what it reads; or in its gradient's, which counts the sum as the
  // gradient that it writes, and what a cast before it reads as if it had been cast. A cast after it writes more.
  void AddToNorm(size_t taken, const Kinds& factors, PhaseWork& phase) {
    const Node& node = graph_.nodes[taken];
    const bool is_cast = node.op == "cast";
    if (is_cast && static_cast<int>(taken) < taken_by_[taken]) return;
    KernelWork k;
    k.is_launched = false;
    k.region = RegionOf(factors);
    CountBytes(is_cast ? node.results[0] : node.operands[0], k);
    if (!is_cast && !absl::EndsWith(graph_.nodes[taken_by_[taken]].op, "_grad")) CountBytes(node.operands[1], k);
    phase.kernels.push_back(k);
  }

  void AddKernel(const Node& node, const OpDef& def, const OpCall& call, const Rule& rule, const Kinds& factors,
                 PhaseWork& phase) {
    KernelWork k;
    k.dtype = def.is_matmul ? ProductType(call) : call.operands.empty() ? DType::kF32 : call.in(0).dtype;
    k.region = RegionOf(factors);
    for (ValueId v : node.operands) CountBytes(v, k);
    for (ValueId v : node.results) CountBytes(v, k);
    if (def.is_matmul && def.flops) {
      k.flops = def.flops(call);
      if (absl::StartsWith(node.op, "einsum")) {
        const size_t a = node.op == "einsum_accumulate" ? 1 : 0;  // which has the sum before
        ProductExtents(rule, rule.in[a], rule.in[a + 1], factors, k);
        if (node.op == "einsum_joined") JoinedParts(rule, call, k);
      } else if (node.op == "expert_matmul" || node.op == "expert_matmul_grad") {
        GroupedExtents(node, call, kinds_, k);
      } else if (const auto mask = MaskOfAttention(node.op, call); mask.has_value()) {
        k.mask = *mask;
        const AttentionExtras extras = ExtrasOfAttention(node.op, call, k.flops);
        k.exponentials = extras.exponentials;
        k.repeated_flops = extras.repeated_flops;
        k.weight_bytes = 0;
      }
    }
    phase.kernels.push_back(k);
  }

  // What each unit takes in, keeps for its backward, and needs beside at the backward's peak.
  void Activations() {
    std::vector<int> last_use(graph_.values.size(), -1);
    std::set<std::pair<ValueId, int>> entered;
    const std::vector<char> stream = ResidualStream(graph_, ForwardNodes(program_, graph_));
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      for (ValueId operand : graph_.nodes[i].operands) {
        const ValueId v = root_[operand];
        last_use[v] = static_cast<int>(i);
        if (i <= last_forward_ && IsActivation(v) && maker_[v] >= 0 && part_[maker_[v]] != part_[i] &&
            entered.insert({v, part_[i]}).second) {
          work_[part_[i]].input_bytes += Bytes(v);
          const double narrow = static_cast<double>(graph_.type(v).num_elements() * ByteSize(residual_));
          if (stream[v]) work_[part_[i]].narrowed_bytes += std::max(0.0, Bytes(v) - narrow);
        }
      }
    }
    std::map<int, std::vector<ValueId>> ends;  // values by the node that reads them last
    std::vector<double> saved_home(work_.size(), 0), saved_tensor(work_.size(), 0);  // still
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      const int made = maker_[v];
      if (root_[v] != static_cast<ValueId>(v) || made < 0 || !Has(kinds_[v], Kind::kToken)) continue;
      if (!graph_.nodes[made].symbol.empty()) continue;
      if (static_cast<size_t>(made) <= last_forward_) {
        if (last_use[v] <= static_cast<int>(last_forward_)) continue;
        UnitWork& unit = work_[part_[made]];
        (Has(kinds_[v], Kind::kTensor) ? unit.saved_tensor_bytes : unit.saved_home_bytes) += Bytes(v);
        (Has(kinds_[v], Kind::kTensor) ? saved_tensor : saved_home)[part_[made]] += Bytes(v);
      }
      ends[last_use[v]].push_back(static_cast<ValueId>(v));
    }
    std::map<int, double> makes_gradient;  // by node, elements
    for (const auto& [parameter, maker] : gradient_makers_)
      makes_gradient[maker] = static_cast<double>(states_.Find(GradientState(parameter))->type.num_elements());
    std::vector<double> gradients(work_.size(), 0);  // elements that have been made
    double home = 0, tensor = 0;
    for (size_t i = last_forward_ + 1; i < graph_.nodes.size(); ++i) {
      for (ValueId v : graph_.nodes[i].results) {
        if (root_[v] == v && Has(kinds_[v], Kind::kToken)) (Has(kinds_[v], Kind::kTensor) ? tensor : home) += Bytes(v);
      }
      const int part = part_[i];
      UnitWork& unit = work_[part];
      if (home + tensor > unit.working_home_bytes + unit.working_tensor_bytes) {
        unit.working_home_bytes = home;
        unit.working_tensor_bytes = tensor;
      }
      const double overwritten = OverwrittenBytes(graph_.nodes[i], i, last_use);
      const double all_home = home + saved_home[part], all_tensor = tensor + saved_tensor[part];
      if (const auto made = makes_gradient.find(static_cast<int>(i)); made != makes_gradient.end())
        gradients[part] += made->second;
      const double scale = all_home + all_tensor > 0 ? 1 - overwritten / (all_home + all_tensor) : 0;
      const double trained = unit.trained().total();
      const double share = trained > 0 ? std::min(1.0, gradients[part] / trained) : 0;
      AddInstant({scale * all_home, scale * all_tensor, share}, unit.instants);
      for (ValueId v : ends[static_cast<int>(i)]) {
        const bool is_tensor = Has(kinds_[v], Kind::kTensor), is_saved = maker_[v] <= static_cast<int>(last_forward_);
        const int of = part_[maker_[v]];
        (is_saved ? (is_tensor ? saved_tensor : saved_home)[of] : is_tensor ? tensor : home) -= Bytes(v);
      }
    }
  }

  // Of the results of node i, those that lie where an operand did.
  double OverwrittenBytes(const Node& node, size_t i, const std::vector<int>& last_use) const {
    const OpDef* def = ops_.Find(node.op);
    if (def == nullptr || !def->reuses) return 0;
    const std::vector<int> reuses = def->reuses(CallOf(graph_, node));
    double bytes = 0;
    for (size_t r = 0; r < reuses.size() && r < node.results.size(); ++r) {
      if (reuses[r] < 0) continue;
      const ValueId operand = root_[node.operands[reuses[r]]];
      if (last_use[operand] == static_cast<int>(i) && Has(kinds_[operand], Kind::kToken))
        bytes += std::min(Bytes(operand), Bytes(node.results[r]));
    }
    return bytes;
  }

  const StateIndex states_;
  const Program& program_;
  const Graph& graph_;
  Units units_;
  const DType residual_;
  const OpTable& ops_;
  size_t last_forward_ = 0;
  std::vector<int> part_;  // of a node
  std::vector<bool> is_repeated_;
  std::vector<Kinds> kinds_;                                         // of a value's dims
  std::vector<double> pending_;                                      // sums over tp: bytes that are scattered
  std::vector<ValueId> root_;                                        // what it aliases
  std::vector<int> maker_;                                           // node
  std::vector<int> taken_by_;                                        // of an add or a cast, the norm
  std::map<std::pair<ValueId, const PhaseWork*>, size_t> gathered_;  // which of the phase's gathers it is
  std::map<std::string, int> gradient_makers_;                       // by parameter, the node
  std::set<std::string> counted_;
  std::map<ValueId, std::string> weight_of_;             // a weight, maybe cast -> its parameter
  std::set<int> sums_of_tied_;                           // nodes: of the gradients of both uses
  std::map<std::string, ParameterCount> before_layers_;  // while they are not tied
  ParameterCount tied_;
  bool tied_are_frozen_ = false;
  std::vector<UnitWork> work_;
};

}  // namespace

absl::StatusOr<ModelWork> AnalyzeModel(const Graph& forward, const std::vector<std::string>& units, DType compute,
                                       const OpTable& ops, DType residual, const ExpertParallelOptions& experts) {
  TACC_ASSIGN_OR_RETURN(const Program program, LogicalProgram(forward, compute, residual, experts, ops));
  ModelWork model;
  model.expert_ranks = experts.ranks;
  Analysis analysis(program, units, residual, ops);
  TACC_ASSIGN_OR_RETURN(model.units, analysis.Run());
  model.tied = analysis.tied();
  model.tied_are_frozen = analysis.tied_are_frozen();
  model.seq_len = ExtentOf(forward, InputAxis::kSequence);
  model.num_heads = LeastExtent(program, "heads");
  model.num_kv_heads = LeastExtent(program, "kv_heads");
  model.num_experts = LeastExtent(program, "experts");
  model.num_layers = static_cast<int64_t>(units.size());
  model.model_flops = ModelFlops(program, ops);
  return model;
}

}  // namespace tacc::graph
