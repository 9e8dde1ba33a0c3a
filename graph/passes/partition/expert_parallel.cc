#include "graph/passes/partition/expert_parallel.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"

namespace tacc::graph {
namespace {

// A rank's slots of a group of tokens: on average, the most that there can be, and the rows that its buffer has.
struct SlotCounts {
  double average = 0;
  int64_t most = 0, capacity = 0;
};
SlotCounts SlotsOf(int64_t tokens, int64_t experts_of_token, int64_t num_experts,
                   const ExpertParallelOptions& options) {
  SlotCounts slots;
  slots.average = static_cast<double>(tokens * experts_of_token) / static_cast<double>(options.ranks);
  slots.most = tokens * std::min(experts_of_token, num_experts / options.ranks);
  const double capacity = std::min(static_cast<double>(slots.most), std::ceil(options.buffer_factor * slots.average));
  slots.capacity = static_cast<int64_t>(capacity);
  return slots;
}

// The buffers of the slots whose ids are one value.
struct Buffers {
  ValueId places = kNoValue, row_ids = kNoValue;
  Attrs attrs;      // of dispatch
  double fill = 1;  // expected share of rows that are used
};

class ExpertParallelBuilder {
 public:
  ExpertParallelBuilder(const Graph& forward, const OpTable& ops, const ExpertParallelOptions& options)
      : forward_(forward), options_(options), b_(graph_, ops) {
    graph_.name = forward.name;
    tokens_.resize(forward.values.size(), kNoValue);
    rows_.resize(forward.values.size(), {kNoValue, kNoValue});
    FindAddedSums();
  }

  absl::StatusOr<Graph> Build() {
    for (const Node& node : forward_.nodes) {
      b_.SetModule(node.module);
      TACC_RETURN_IF_ERROR(Visit(node));
      TACC_RETURN_IF_ERROR(b_.status());
    }
    b_.SetModule("");
    if (overflow_ == kNoValue) {
      return absl::InvalidArgumentError(
          absl::StrCat("dist.ep.size = ", options_.ranks, ": the model has no experts to share; use 1"));
    }
    b_.End(Op::kOutput, "expert_overflow", overflow_);
    TACC_RETURN_IF_ERROR(b_.status());
    return std::move(graph_);
  }

 private:
  // A value in the rows of buffers: of which ids, and the value.
  struct Rows {
    ValueId ids, value;
  };

  // Sums over the same slots that nothing but their sum reads: they are added in their rows, which are sent back once.
  void FindAddedSums() {
    std::vector<int> num_readers(forward_.values.size(), 0);
    std::map<ValueId, ValueId> ids;  // of sums
    for (const Node& node : forward_.nodes) {
      for (ValueId v : node.operands) ++num_readers[v];
      if (node.op == "expert_matmul" && GetAttr<bool>(node.attrs, "sum_slots")) ids[node.results[0]] = node.operands[1];
    }
    for (const Node& node : forward_.nodes) {
      if (node.op != "add") continue;
      const auto a = ids.find(node.operands[0]), b = ids.find(node.operands[1]);
      if (a == ids.end() || b == ids.end() || a->second != b->second) continue;
      if (num_readers[a->first] == 1 && num_readers[b->first] == 1) added_sums_.insert({a->first, b->first});
    }
  }

  absl::Status Visit(const Node& node) {
    if (node.op == Op::kOutput) {
      b_.End(node.op, node.symbol, tokens_[node.operands[0]], node.attrs);
      return absl::OkStatus();
    }
    if (node.op == Op::kInput || node.op == Op::kParam) {
      tokens_[node.results[0]] = b_.Leaf(node.op, node.symbol, forward_.type(node.results[0]), node.attrs);
      return absl::OkStatus();
    }
    if (node.op == Op::kConstant) constants_[node.results[0]] = GetAttr<double>(node.attrs, "value");
    if (node.op == "expert_matmul") return VisitExpertMatmul(node);
    if (added_sums_.count(node.operands.empty() ? kNoValue : node.operands[0]) > 0) {
      const Rows &a = rows_[node.operands[0]], &b = rows_[node.operands[1]];
      tokens_[node.results[0]] = Combined(b_.Add("add", {a.value, b.value}), buffers_.at(a.ids));
      return absl::OkStatus();
    }
    const auto in_rows =
        std::find_if(node.operands.begin(), node.operands.end(), [&](ValueId v) { return rows_[v].value != kNoValue; });
    if (in_rows != node.operands.end()) return VisitRows(node, rows_[*in_rows].ids);
    std::vector<ValueId> operands;
    for (ValueId v : node.operands) operands.push_back(tokens_[v]);
    const std::vector<ValueId> results =
        b_.AddMany(node.op, std::move(operands), node.attrs, static_cast<int>(node.results.size()));
    for (size_t i = 0; i < results.size(); ++i) tokens_[node.results[i]] = results[i];
    return absl::OkStatus();
  }

  absl::Status VisitExpertMatmul(const Node& node) {
    const ValueId x = node.operands[0], ids = node.operands[1], w = node.operands[2];
    TACC_ASSIGN_OR_RETURN(const Buffers* buffers, BuffersOf(ids, GetAttr<int64_t>(node.attrs, "num_experts")));
    Attrs attrs = node.attrs;
    const bool sums = attrs.erase("sum_slots") > 0;
    attrs["ranges_dim"] = int64_t{2};
    attrs["fill"] = buffers->fill;
    const ValueId y =
        b_.Add("expert_matmul", {RowsOf(x, ids, *buffers), buffers->row_ids, tokens_[w]}, std::move(attrs));
    if (!sums || added_sums_.count(node.results[0]) > 0) {
      rows_[node.results[0]] = {ids, y};
    } else {
      tokens_[node.results[0]] = Combined(y, *buffers);
    }
    return absl::OkStatus();
  }

  ValueId Combined(ValueId rows, const Buffers& buffers) {
    return b_.Add("combine", {rows, buffers.places}, {{"sum_slots", true}});
  }

  // An op between two products, done on each row by itself.
  absl::Status VisitRows(const Node& node, ValueId ids) {
    const Buffers& buffers = buffers_.at(ids);
    std::vector<ValueId> operands;
    const Dims& slots = forward_.type(ids).dims;
    for (ValueId v : node.operands) {
      const Dims& dims = forward_.type(v).dims;
      if (dims.size() < slots.size() || !std::equal(slots.begin(), slots.end(), dims.begin())) return RowsError(node);
      operands.push_back(dims.size() == slots.size() ? NumbersOf(v, ids, buffers) : RowsOf(v, ids, buffers));
    }
    const ValueId y = b_.Add(node.op, std::move(operands), AttrsOfRows(node, slots, buffers));
    TACC_RETURN_IF_ERROR(b_.status());
    const Dims& rows = b_.type(buffers.row_ids).dims;
    const Dims& dims = b_.type(y).dims;
    if (node.results.size() != 1 || dims.size() <= rows.size() || !std::equal(rows.begin(), rows.end(), dims.begin()))
      return RowsError(node);
    rows_[node.results[0]] = {ids, y};
    return absl::OkStatus();
  }

  // Of ops whose attributes speak of dims: rows have others in place of the slots'.
  Attrs AttrsOfRows(const Node& node, const Dims& slots, const Buffers& buffers) const {
    Attrs attrs = node.attrs;
    const Dims& rows = b_.type(buffers.row_ids).dims;
    const auto num_slot_dims = static_cast<int64_t>(slots.size());
    if (node.op == "slice") {
      const int64_t dim = GetAttr<int64_t>(attrs, "dim");
      if (dim >= num_slot_dims) attrs["dim"] = dim - num_slot_dims + static_cast<int64_t>(rows.size());
    }
    if (node.op == "reshape") {
      const auto shape = GetAttr<std::vector<int64_t>>(attrs, "shape");
      if (shape.size() > slots.size() && std::equal(slots.begin(), slots.end(), shape.begin())) {
        Dims of_rows = rows;
        of_rows.insert(of_rows.end(), shape.begin() + num_slot_dims, shape.end());
        attrs["shape"] = of_rows;
      }
    }
    return attrs;
  }

  absl::Status RowsError(const Node& node) const {
    return absl::UnimplementedError(absl::StrCat(node.op.name(), " at ", node.module,
                                                 ": it stands between the products of experts, but is not done row by "
                                                 "row; expert parallelism needs that"));
  }

  // The value in buffers, which has a row a token, [B,S,N], or a slot, [B,S,K,N].
  ValueId RowsOf(ValueId v, ValueId ids, const Buffers& buffers) {
    if (rows_[v].value != kNoValue) return rows_[v].value;
    auto [it, inserted] = dispatched_.try_emplace({v, ids}, kNoValue);
    if (!inserted) return it->second;
    if (const auto constant = constants_.find(v); constant != constants_.end()) {  // no need to send it
      const TensorType& type = forward_.type(v);
      Dims rows = b_.type(buffers.row_ids).dims;
      rows.push_back(type.dims.back());
      return it->second = b_.Constant(constant->second, {type.dtype, std::move(rows)});
    }
    return it->second = b_.Add("dispatch", {tokens_[v], buffers.places}, buffers.attrs);
  }

  // The same for a number a slot, [B,S,K].
  ValueId NumbersOf(ValueId v, ValueId ids, const Buffers& buffers) {
    auto [it, inserted] = dispatched_.try_emplace({v, ids}, kNoValue);
    if (!inserted) return it->second;
    Dims column = forward_.type(v).dims;
    column.push_back(1);
    const ValueId rows = b_.Add("dispatch", {b_.Reshape(tokens_[v], column), buffers.places}, buffers.attrs);
    return it->second = b_.Reshape(rows, b_.type(buffers.row_ids).dims);
  }

  absl::StatusOr<const Buffers*> BuffersOf(ValueId ids, int64_t num_experts) {
    auto [it, inserted] = buffers_.try_emplace(ids);
    Buffers& buffers = it->second;
    if (!inserted) return &buffers;
    const Dims& dims = forward_.type(ids).dims;
    if (dims.size() != 3) {
      return absl::UnimplementedError(
          absl::StrCat("experts of tokens ", forward_.type(ids).ToString(), "; wanted ids of dims [B,S,K]"));
    }
    if (num_experts % options_.ranks != 0) {
      return absl::InvalidArgumentError(absl::StrCat("dist.ep.size = ", options_.ranks, " does not divide the ",
                                                     num_experts, " experts of ", b_.module()));
    }
    if (dims[1] % options_.sequence_groups != 0) {
      return absl::InvalidArgumentError(absl::StrCat("the ", options_.sequence_groups,
                                                     " ranks that share a sequence do not divide its ", dims[1],
                                                     " tokens, which expert parallelism needs"));
    }
    const SlotCounts slots = SlotsOf(dims[1] / options_.sequence_groups, dims[2], num_experts, options_);
    buffers.attrs = {
        {"groups", options_.sequence_groups}, {"destinations", options_.ranks}, {"capacity", slots.capacity}};
    buffers.fill = std::min(1.0, slots.average / static_cast<double>(slots.capacity));
    Attrs attrs = buffers.attrs;
    attrs["num_experts"] = num_experts;
    const std::vector<ValueId> results = b_.AddMany("dispatch_slots", {tokens_[ids]}, std::move(attrs), 3);
    buffers.places = results[0];
    buffers.row_ids = results[1];
    overflow_ = overflow_ == kNoValue ? results[2] : b_.Add("add", {overflow_, results[2]});
    return &buffers;
  }

  const Graph& forward_;
  const ExpertParallelOptions& options_;
  Graph graph_;
  Builder b_;
  std::vector<ValueId> tokens_;  // forward value -> the same value, as tokens have it
  std::vector<Rows> rows_;       // forward value -> the same value in rows of buffers
  std::set<ValueId> added_sums_;
  std::map<ValueId, double> constants_;
  std::map<ValueId, Buffers> buffers_;
  std::map<std::pair<ValueId, ValueId>, ValueId> dispatched_;  // (value, ids)
  ValueId overflow_ = kNoValue;
};

}  // namespace

absl::StatusOr<bool> ExpertParallel(Graph& forward, const OpTable& ops, const ExpertParallelOptions& options) {
  if (options.ranks == 1) return false;
  TACC_ASSIGN_OR_RETURN(forward, ExpertParallelBuilder(forward, ops, options).Build());
  return true;
}

bool BuffersSuffice(const Graph& forward, const ExpertParallelOptions& options) {
  const auto ranks = static_cast<double>(options.ranks);
  return std::all_of(forward.nodes.begin(), forward.nodes.end(), [&](const Node& node) {
    if (node.op != "expert_matmul") return true;
    // Of a token, on one rank: the slots there when experts are used equally, and the most that there can be.
    const auto slots = static_cast<double>(forward.type(node.operands[1]).dims.back());
    const auto experts = static_cast<double>(GetAttr<int64_t>(node.attrs, "num_experts"));
    return options.buffer_factor * slots / ranks >= std::min(slots, experts / ranks);
  });
}

double OverflowAtRandom(const Graph& forward, const ExpertParallelOptions& options) {
  double all = 0, left_out = 0;
  for (const Node& node : forward.nodes) {
    if (node.op != "expert_matmul") continue;
    const Dims& dims = forward.type(node.operands[1]).dims;  // of the ids, [B,S,K]
    const int64_t tokens = dims[1] / options.sequence_groups, num_experts = GetAttr<int64_t>(node.attrs, "num_experts");
    const SlotCounts slots = SlotsOf(tokens, dims[2], num_experts, options);
    all += slots.average;
    if (slots.capacity == slots.most) continue;
    const double chosen = static_cast<double>(dims[2]), experts = static_cast<double>(num_experts),
                 share = 1 / static_cast<double>(options.ranks);
    const double deviation =
        std::sqrt(static_cast<double>(tokens) * chosen * share * (1 - share) * (experts - chosen) / (experts - 1));
    const double room = static_cast<double>(slots.capacity) - slots.average, z = room / deviation;
    // What a normal variable is on average above the buffer's end.
    const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::acos(-1.0)),
                 above = std::erfc(z / std::sqrt(2.0)) / 2;
    left_out += std::max(0.0, deviation * density - room * above);
  }
  return all > 0 ? left_out / all : 0;
}

}  // namespace tacc::graph
