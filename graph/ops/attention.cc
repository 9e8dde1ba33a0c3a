// rope_table rotary attention attention_grad. Dims: B batch, S queries, T keys, H query heads, K kv heads, D head dim.
#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"
#include "graph/ops/workspace.h"

namespace tacc::graph {
namespace {

void AddRopeTable(OpTable& table) {
  OpDef op;
  op.name = "rope_table";
  op.num_results = 2;
  op.attrs = {{"inv_freq", AttrKind::kFloats},
              {"length", AttrKind::kInt},
              {"attention_scale", AttrKind::kFloat, AttrSpec::kOptional},
              {"dtype", AttrKind::kString, AttrSpec::kOptional}};
  op.no_gradient = true;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const int64_t length = call.attr<int64_t>("length");
    if (length < 0) return absl::InvalidArgumentError(absl::StrCat("length=", length, "; wanted 0 or more"));
    const auto* inv_freq = std::get_if<std::vector<double>>(&call.attrs->at("inv_freq"));
    const TensorType type{DTypeAttr(call, DType::kF32),
                          {length, inv_freq == nullptr ? 0 : static_cast<int64_t>(inv_freq->size())}};
    if (AccumulationType(type.dtype) != type.dtype) return Wanted("the table", type, "f32 or f64 elements");
    return Types{type, type};
  };
  // The sequence is made from the shard's offset.
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    const int sequence = rule.AddFactor(call.out(0).dims[0]);
    rule.out = {{sequence, Rule::kNone}, {sequence, Rule::kNone}};
    return rule;
  };
  table.Add(op);
}

void AddRotary(OpTable& table) {
  OpDef op;
  op.name = "rotary";
  op.min_operands = op.max_operands = 3;
  op.attrs = {{"style", AttrKind::kString}, {"inverse", AttrKind::kBool, AttrSpec::kOptional}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType &x = call.in(0), &cos = call.in(1);
    TACC_RETURN_IF_ERROR(WantFloating("x", x));
    TACC_RETURN_IF_ERROR(WantRank("x", x, 4));
    TACC_RETURN_IF_ERROR(WantFloating("cos", cos));
    if (cos.rank() != 2 || cos.dims[0] != x.dims[1] || 2 * cos.dims[1] > x.dims[3]) {
      return Wanted("cos", cos, absl::StrCat("dims [", x.dims[1], ",up to ", x.dims[3] / 2, "] for x, ", x.ToString()));
    }
    TACC_RETURN_IF_ERROR(WantType("sin", call.in(2), cos));
    const std::string style = call.attr<std::string>("style");
    if (style != "half" && style != "interleaved") {
      return absl::InvalidArgumentError(absl::StrCat("style=", style, "; wanted half or interleaved"));
    }
    return Types{x};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    const std::vector<int> x = AddFactors(rule, call.in(0).dims);
    rule.factors[x[3]].replicate = true;
    rule.in = {x, {x[1], Rule::kNone}, {x[1], Rule::kNone}};
    rule.out = {x};
    rule.linear_in = {{0}};
    return rule;
  };
  op.reuses = ReuseIfSameType(0);
  op.derive = [](VjpCall& call) {
    if (call.needs(1) || call.needs(2))
      return absl::UnimplementedError("rotary has no derivative with respect to its tables");
    Builder& b = call.builder;
    const Node& node = call.node;
    Attrs attrs = node.attrs;
    attrs["inverse"] = !GetAttr<bool>(node.attrs, "inverse");
    const ValueId dy = b.Cast(call.cotangents[0], b.type(node.operands[0]).dtype);
    call.gradients[0] = b.Add("rotary", {dy, node.operands[1], node.operands[2]}, std::move(attrs));
    return absl::OkStatus();
  };
  table.Add(op);
}

// Checks q, k, v (operands `q` and the two after it) and the attributes.
absl::Status CheckAttention(const OpCall& call, int first) {
  const TensorType &q = call.in(first), &k = call.in(first + 1), &v = call.in(first + 2);
  TACC_RETURN_IF_ERROR(WantFloating("q", q));
  TACC_RETURN_IF_ERROR(WantRank("q", q, 4));
  TACC_RETURN_IF_ERROR(WantRank("k", k, 4));
  TensorType wanted = q;
  wanted.dims[1] = k.dims[1];
  wanted.dims[2] = k.dims[2];
  TACC_RETURN_IF_ERROR(WantType("k", k, wanted));
  TACC_RETURN_IF_ERROR(WantType("v", v, k));
  if (k.dims[2] <= 0 || q.dims[2] % k.dims[2] != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("q has ", q.dims[2], " heads and k ", k.dims[2], "; wanted a multiple"));
  }
  if (call.attr<bool>("causal") && q.dims[1] != k.dims[1]) {
    return absl::InvalidArgumentError(
        absl::StrCat("causal=true with ", q.dims[1], " queries and ", k.dims[1], " keys; wanted as many"));
  }
  if (call.attrs->count("alibi_slopes") > 0) {
    const auto* slopes = std::get_if<std::vector<double>>(&call.attrs->at("alibi_slopes"));
    const int64_t count = slopes == nullptr ? 0 : static_cast<int64_t>(slopes->size());
    if (count != q.dims[2])
      return absl::InvalidArgumentError(
          absl::StrCat("alibi_slopes has ", count, " entries; wanted one for each of ", q.dims[2], " heads"));
  }
  return absl::OkStatus();
}

TensorType LogSumExpType(const TensorType& q) { return {AccumulationType(q.dtype), {q.dims[0], q.dims[2], q.dims[1]}}; }

// Batch and heads may be split; sequences and the head dim are needed whole. Query heads follow their kv head, so with
// fewer kv heads only an even cut keeps groups together.
struct AttentionFactors {
  Rule rule;
  std::vector<int> q, k, lse;
};
AttentionFactors MakeAttentionFactors(const TensorType& q, const TensorType& k) {
  AttentionFactors f;
  const int batch = f.rule.AddFactor(q.dims[0]), heads = f.rule.AddFactor(q.dims[2]);
  if (q.dims[2] != k.dims[2]) {
    f.rule.factors[heads].even = true;
    f.rule.factors[heads].groups = k.dims[2];
  }
  const int queries = f.rule.AddFactor(q.dims[1]), keys = f.rule.AddFactor(k.dims[1]),
            depth = f.rule.AddFactor(q.dims[3]);
  for (int whole : {queries, keys, depth}) f.rule.factors[whole].replicate = true;
  f.q = {batch, queries, heads, depth};
  f.k = {batch, keys, heads, depth};
  f.lse = {batch, heads, queries};
  return f;
}

// `matmuls` products of [S,D] and [T,D] per head; a causal mask halves them.
double AttentionFlops(const TensorType& q, const TensorType& k, int matmuls, const OpCall& call) {
  const double product = 2.0 * static_cast<double>(q.num_elements()) * static_cast<double>(k.dims[1]);
  return matmuls * product * (call.attr<bool>("causal") ? 0.5 : 1.0);
}

void AddAttention(OpTable& table) {
  OpDef op;
  op.name = "attention";
  op.min_operands = op.max_operands = 3;
  op.num_results = 2;
  op.attrs = {{"causal", AttrKind::kBool},
              {"scale", AttrKind::kFloat},
              {"alibi_slopes", AttrKind::kFloats, AttrSpec::kOptional}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(CheckAttention(call, 0));
    return Types{call.in(0), LogSumExpType(call.in(0))};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    AttentionFactors f = MakeAttentionFactors(call.in(0), call.in(1));
    f.rule.in = {f.q, f.k, f.k};
    f.rule.out = {f.q, f.lse};
    return f.rule;
  };
  op.flops = [](const OpCall& call) { return AttentionFlops(call.in(0), call.in(1), 2, call); };
  op.is_matmul = true;
  op.workspace_bytes = [](const OpCall& call, int threads) {
    return AttentionWorkspaceBytes(call.in(0), call.in(1), threads);
  };
  op.derive = [](VjpCall& call) {
    TACC_RETURN_IF_ERROR(NoCotangent(call, 1, "lse"));
    Builder& b = call.builder;
    const Node& node = call.node;
    const ValueId q = node.operands[0];
    call.gradients = b.AddMany("attention_grad",
                               {b.Cast(call.cotangents[0], b.type(q).dtype), q, node.operands[1], node.operands[2],
                                node.results[0], node.results[1]},
                               node.attrs, 3);
    return absl::OkStatus();
  };
  table.Add(op);

  OpDef grad;
  grad.name = "attention_grad";
  grad.min_operands = grad.max_operands = 6;
  grad.num_results = 3;
  grad.attrs = op.attrs;
  grad.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(CheckAttention(call, 1));
    const TensorType& q = call.in(1);
    TACC_RETURN_IF_ERROR(WantType("dout", call.in(0), q));
    TACC_RETURN_IF_ERROR(WantType("out", call.in(4), q));
    TACC_RETURN_IF_ERROR(WantType("lse", call.in(5), LogSumExpType(q)));
    return Types{q, call.in(2), call.in(3)};
  };
  grad.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    AttentionFactors f = MakeAttentionFactors(call.in(1), call.in(2));
    f.rule.in = {f.q, f.q, f.k, f.k, f.q, f.lse};
    f.rule.out = {f.q, f.k, f.k};
    f.rule.linear_in = {{0}};
    return f.rule;
  };
  // Twice the forward's: the recomputation of the scores is not counted.
  grad.flops = [](const OpCall& call) { return AttentionFlops(call.in(1), call.in(2), 4, call); };
  grad.is_matmul = true;
  grad.workspace_bytes = [](const OpCall& call, int threads) {
    return AttentionGradWorkspaceBytes(call.in(1), call.in(2), threads);
  };
  table.Add(grad);
}

}  // namespace

void AddAttentionOps(OpTable& table) {
  AddRopeTable(table);
  AddRotary(table);
  AddAttention(table);
}

}  // namespace tacc::graph
