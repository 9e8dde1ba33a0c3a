// attention attention_bias_grad attention_continue attention_grad attention_joined attention_joined_grad. Dims:
// B batch, S queries, T keys, H query heads, K kv heads, D head dim of queries and keys, V of values and results.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/attention_operands.h"
#include "graph/ops/attention_ring.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"
#include "graph/ops/target.h"

namespace tacc::graph {
namespace {

// What the attention ops share. Attributes:
//   causal         a query sees the keys at its own position and before
//   alibi_slopes   slope of the head times (key's position - query's) is added to the scores
//   zigzag         order of the sequence (graph/ir/sequence_order.h), for a ring of as many blocks. A split of the
//                  sequence makes ring attention of it; what the ring does not take moves to the heads (Ulysses).
//   block, shift   a step of the ring: queries see keys of their own block of `block` indices only, and k, v were
//                  rotated by `shift` blocks: block b holds the keys of block b - shift, around
//   wide           results have the accumulation type of q's: they are summed further
//   window         a query sees as many of the keys that it would see, its own position and those before it; 0: all
//   softcap        a scaled score s becomes softcap * tanh(s / softcap), before ALiBi; 0: it does not
//   dropout        rate at which probabilities are dropped, the others divided by 1 - rate, after the softmax; 0: none.
//                  The operands `step` i64[] and `sample` i64[B] precede document_start. Whether the probability of a
//                  head, a query's position and a key's is kept depends on them, dropout_key and dropout_seed as
//                  element [head, query, key] of a sample [H,S,T] does in the op `dropout`
//   sinks          of a forward: the operand `sinks` [H] follows v, the score of one more key of each head that every
//                  query sees, whose value is 0. A gradient needs them not: lse counts them
//   key_bias       the operand `key_bias` f32 [B,T], right before bias, is added to all scores of a key, after softcap.
//                  -inf hides the key. +inf outweighs its products: its scores are 0, with the derivative of others;
//                  where all keys have it, results are the mean of all values. It has no derivative itself
//   bias           the operand `bias` [B,H,S,T], whose B and H may be 1, right before document_start, is added to the
//                  scores as key_bias is. What key_bias hides stays hidden. A split of the sequence moves to the heads
//   bias_yields    with a bias: it has no derivative where a +inf outweighs its score
std::vector<AttrSpec> AttentionAttrs() {
  return {{"causal", AttrKind::kBool},
          {"scale", AttrKind::kFloat},
          {"alibi_slopes", AttrKind::kFloats, AttrSpec::kOptional},
          {"window", AttrKind::kInt, AttrSpec::kOptional},
          {"softcap", AttrKind::kFloat, AttrSpec::kOptional},
          {"dropout", AttrKind::kFloat, AttrSpec::kOptional},
          {"dropout_key", AttrKind::kInt, AttrSpec::kOptional},
          {"dropout_seed", AttrKind::kInt, AttrSpec::kOptional},
          {"sinks", AttrKind::kBool, AttrSpec::kOptional},
          {"key_bias", AttrKind::kBool, AttrSpec::kOptional},
          {"bias", AttrKind::kBool, AttrSpec::kOptional},
          {"bias_yields", AttrKind::kBool, AttrSpec::kOptional},
          {"zigzag", AttrKind::kInt, AttrSpec::kOptional},
          {"block", AttrKind::kInt, AttrSpec::kOptional},
          {"shift", AttrKind::kInt, AttrSpec::kOptional},
          {"wide", AttrKind::kBool, AttrSpec::kOptional}};
}

// The operands of a call of `op`, heads apart.
AttentionOperands Of(const char* op, const OpCall& call) {
  return *AttentionOperandsOf(op, *call.attrs, call.operands.size());
}

// Checks window, softcap and what belongs to dropout.
absl::Status CheckScores(const OpCall& call, const AttentionOperands& at) {
  const int64_t window = call.attr<int64_t>("window");
  if (window < 0 || (window > 0 && !call.attr<bool>("causal"))) {
    return absl::InvalidArgumentError(
        absl::StrCat("window=", window, window < 0 ? "; wanted 0 or more" : " without causal=true"));
  }
  const double softcap = call.attr<double>("softcap"), dropout = call.attr<double>("dropout");
  if (!(softcap >= 0)) return absl::InvalidArgumentError(absl::StrCat("softcap=", softcap, "; wanted 0 or more"));
  if (!(dropout >= 0 && dropout < 1))
    return absl::InvalidArgumentError(absl::StrCat("dropout=", dropout, "; wanted at least 0 and below 1"));
  if (at.step < 0) return absl::OkStatus();
  TACC_RETURN_IF_ERROR(WantType("step", call.in(at.step), {DType::kI64, {}}));
  return WantType("sample", call.in(at.sample), {DType::kI64, {call.in(at.q).dims[0]}});
}

TensorType WithHeadDim(TensorType type, int64_t head_dim) {
  type.dims[3] = head_dim;
  return type;
}

absl::Status CheckBias(const OpCall& call, const AttentionOperands& at) {
  const TensorType &bias = call.in(at.bias), &q = call.in(at.q);
  TACC_RETURN_IF_ERROR(WantFloating("bias", bias));
  TACC_RETURN_IF_ERROR(WantRank("bias", bias, 4));
  TensorType wanted = {bias.dtype, {q.dims[0], q.dims[2], q.dims[1], call.in(at.k).dims[1]}};
  for (int d : {0, 1}) {
    if (bias.dims[d] == 1) wanted.dims[d] = 1;
  }
  TACC_RETURN_IF_ERROR(WantType("bias", bias, wanted));
  if (call.attr<int64_t>("block") > 0) return absl::InvalidArgumentError("bias=true with block; a ring has no bias");
  return absl::OkStatus();
}

// Checks the number of operands, q, k, v, sinks, document_start and the attributes.
absl::Status CheckAttention(const OpCall& call, const AttentionOperands& at) {
  const size_t count = static_cast<size_t>(at.count);
  if (call.operands.size() < count || call.operands.size() > count + 1)
    return absl::InvalidArgumentError(
        absl::StrCat(call.operands.size(), " operands; wanted ", count, ", or document_start behind them"));
  const TensorType &q = call.in(at.q), &k = call.in(at.k), &v = call.in(at.v);
  TACC_RETURN_IF_ERROR(WantFloating("q", q));
  TACC_RETURN_IF_ERROR(WantRank("q", q, 4));
  TACC_RETURN_IF_ERROR(WantRank("k", k, 4));
  TensorType wanted = q;
  wanted.dims[1] = k.dims[1];
  wanted.dims[2] = k.dims[2];
  TACC_RETURN_IF_ERROR(WantType("k", k, wanted));
  TACC_RETURN_IF_ERROR(WantRank("v", v, 4));
  TACC_RETURN_IF_ERROR(WantType("v", v, WithHeadDim(k, v.dims[3])));
  if (k.dims[2] <= 0 || q.dims[2] % k.dims[2] != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("q has ", q.dims[2], " heads and k ", k.dims[2], "; wanted a multiple"));
  }
  if (at.is_gradient && call.attr<bool>("sinks"))
    return absl::InvalidArgumentError("sinks=true; a gradient takes no sinks");
  if (at.sinks >= 0) {
    TACC_RETURN_IF_ERROR(WantFloating("sinks", call.in(at.sinks)));
    TACC_RETURN_IF_ERROR(WantDims("sinks", call.in(at.sinks), {q.dims[2]}));
  }
  if (at.key_bias >= 0)
    TACC_RETURN_IF_ERROR(WantType("key_bias", call.in(at.key_bias), {DType::kF32, {k.dims[0], k.dims[1]}}));
  if (at.bias >= 0) TACC_RETURN_IF_ERROR(CheckBias(call, at));
  const bool causal = call.attr<bool>("causal");
  const bool ordered = causal || call.attr<int64_t>("zigzag") != 0 || call.attr<int64_t>("block") != 0;
  if (ordered && q.dims[1] != k.dims[1]) {
    return absl::InvalidArgumentError(absl::StrCat(causal ? "causal=true" : "zigzag or block", " with ", q.dims[1],
                                                   " queries and ", k.dims[1], " keys; wanted as many"));
  }
  TACC_RETURN_IF_ERROR(CheckZigzag(call, q.dims[1]));
  TACC_RETURN_IF_ERROR(CheckBlock(call, q.dims[1]));
  TACC_RETURN_IF_ERROR(CheckScores(call, at));
  if (at.document_start >= 0) {
    if (!causal) return absl::InvalidArgumentError("document_start without causal=true");
    TACC_RETURN_IF_ERROR(WantType("document_start", call.in(at.document_start), {DType::kI32, {q.dims[0], q.dims[1]}}));
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

TensorType ResultType(const OpCall& call, const TensorType& operand) {
  return {call.attr<bool>("wide") ? AccumulationType(operand.dtype) : operand.dtype, operand.dims};
}

// Batch, heads and queries may be split; keys are needed whole (a causal mask and ALiBi know the shard's offset), and
// the head dim. With zigzag or block, queries and keys may be split together, between blocks. Query heads follow their
// kv head, so with fewer kv heads only an even cut keeps groups together.
struct AttentionFactors {
  Rule rule;
  std::vector<int> q, k, v, out, sinks, lse, sample, key_bias, bias, start;
  // Those of the operands behind the last that all calls have.
  void AddTrailing(const AttentionOperands& at) {
    if (at.step >= 0) rule.in.insert(rule.in.end(), {{}, sample});
    if (at.key_bias >= 0) rule.in.push_back(key_bias);
    if (at.bias >= 0) rule.in.push_back(bias);
    if (at.document_start >= 0) rule.in.push_back(start);
  }
};
AttentionFactors MakeAttentionFactors(const OpCall& call, const AttentionOperands& at) {
  const TensorType &q = call.in(at.q), &k = call.in(at.k), &v = call.in(at.v);
  AttentionFactors f;
  const int64_t block = call.attr<int64_t>("block");
  const int batch = f.rule.AddFactor(q.dims[0]), heads = f.rule.AddFactor(q.dims[2]);
  if (q.dims[2] != k.dims[2]) {
    f.rule.factors[heads].even = true;
    f.rule.factors[heads].groups = k.dims[2];
  }
  const int64_t ring = at.bias >= 0 ? 0 : block > 0 ? q.dims[1] / block : call.attr<int64_t>("zigzag");
  const int queries = f.rule.AddFactor(ring > 0 ? ring : q.dims[1]);
  const int keys = ring > 0 ? queries : f.rule.AddFactor(k.dims[1]), depth = f.rule.AddFactor(q.dims[3]);
  const int value_depth = v.dims[3] == q.dims[3] ? depth : f.rule.AddFactor(v.dims[3]);
  f.rule.factors[depth].replicate = f.rule.factors[value_depth].replicate = true;
  if (ring == 0) {
    f.rule.factors[keys].replicate = true;
    if (at.bias >= 0) {
      f.rule.factors[queries].replicate = true;
      f.rule.factors[queries].move_to = heads;
    }
  } else {
    f.rule.factors[queries].even = true;
    f.rule.factors[queries].move_to = heads;
    f.rule.factors[queries].replicate = f.rule.factors[queries].expandable = block == 0;
  }
  f.q = {batch, queries, heads, depth};
  f.k = {batch, keys, heads, depth};
  f.v = {batch, keys, heads, value_depth};
  f.out = {batch, queries, heads, value_depth};
  f.sinks = {heads};
  f.lse = {batch, heads, queries};
  f.sample = {batch};
  f.key_bias = {batch, keys};
  if (at.bias >= 0) {
    const std::vector<int64_t>& dims = call.in(at.bias).dims;
    f.bias = {dims[0] == q.dims[0] ? batch : Rule::kNone, dims[1] == q.dims[2] ? heads : Rule::kNone, queries, keys};
  }
  f.start = {batch, queries};
  f.rule.self_masking = true;
  return f;
}

// The share of the keys that a query sees on average: of a causal mask half, of a window in it less. A step of a ring
// has a block of the keys, and counts its share of all steps.
double VisibleShare(const TensorType& k, const OpCall& call) {
  if (!call.attr<bool>("causal")) return 1;
  const int64_t block = call.attr<int64_t>("block"), window = call.attr<int64_t>("window");
  const int64_t length = block > 0 ? block * std::max<int64_t>(1, call.attr<int64_t>("zigzag")) : k.dims[1];
  if (window == 0 || window >= length) return 0.5;
  const double part = static_cast<double>(window) / static_cast<double>(length);
  return part * (1 - part / 2);
}

// `pairs` times a product of queries and keys, and one of probabilities and values, of the keys that are seen.
double AttentionFlops(const TensorType& q, const TensorType& k, const TensorType& v, int pairs, const OpCall& call) {
  const int64_t block = call.attr<int64_t>("block");
  const double keys = static_cast<double>(block > 0 ? block : k.dims[1]);
  const double rows = static_cast<double>(q.dims[0] * q.dims[1] * q.dims[2]);
  return pairs * 2.0 * rows * static_cast<double>(q.dims[3] + v.dims[3]) * keys * VisibleShare(k, call);
}

// Pieces of the keys whose positions follow each other.
int64_t KeyRuns(const TensorType& k, const OpCall& call) {
  const int64_t block = call.attr<int64_t>("block"), zigzag = call.attr<int64_t>("zigzag");
  return block > 0 ? k.dims[1] / block * (zigzag > 1 ? 2 : 1) : std::max<int64_t>(1, 2 * zigzag);
}

std::vector<int> ExactOperands(const char* name, const OpCall& call) {
  const AttentionOperands at = Of(name, call);
  std::vector<int> exact;
  for (int i : {at.key_bias, at.bias}) {
    if (i >= 0) exact.push_back(i);
  }
  return exact;
}

// Those of attention_grad and attention_bias_grad, which differ in their results.
AttentionFactors GradientFactors(const char* name, const OpCall& call) {
  const AttentionOperands at = Of(name, call);
  AttentionFactors f = MakeAttentionFactors(call, at);
  f.rule.in = {f.out, f.q, f.k, f.v, f.out, f.lse};
  f.AddTrailing(at);
  f.rule.linear_in = {{0}};
  return f;
}

// attention or attention_continue.
OpDef AttentionForward(const char* name) {
  OpDef op;
  op.name = name;
  const int num_required = AttentionOperandsOf(name, {}, 0)->count;
  op.min_operands = num_required;
  op.max_operands = num_required + 6;
  op.num_results = 2;
  op.attrs = AttentionAttrs();
  op.positional = true;
  op.infer = [=](const OpCall& call) -> absl::StatusOr<Types> {
    const AttentionOperands at = Of(name, call);
    TACC_RETURN_IF_ERROR(CheckAttention(call, at));
    const TensorType out = WithHeadDim(call.in(0), call.in(2).dims[3]);
    const Types types{ResultType(call, out), LogSumExpType(call.in(0))};
    if (at.earlier_out >= 0) {
      TACC_RETURN_IF_ERROR(WantFloating("earlier_out", call.in(at.earlier_out)));
      TACC_RETURN_IF_ERROR(WantDims("earlier_out", call.in(at.earlier_out), types[0].dims));
      TACC_RETURN_IF_ERROR(WantType("earlier_lse", call.in(at.earlier_lse), types[1]));
      if (at.sinks >= 0) return absl::InvalidArgumentError("sinks=true; the earlier results count them");
    }
    return types;
  };
  op.rule = [=](const OpCall& call) -> absl::StatusOr<Rule> {
    const AttentionOperands at = Of(name, call);
    AttentionFactors f = MakeAttentionFactors(call, at);
    f.rule.in = {f.q, f.k, f.v};
    if (at.sinks >= 0) f.rule.in.push_back(f.sinks);
    if (at.earlier_out >= 0) f.rule.in.insert(f.rule.in.end(), {f.out, f.lse});
    f.AddTrailing(at);
    f.rule.out = {f.out, f.lse};
    return f.rule;
  };
  op.flops = [](const OpCall& call) { return AttentionFlops(call.in(0), call.in(1), call.in(2), 1, call); };
  op.is_matmul = true;
  op.exact_operands = [=](const OpCall& call) { return ExactOperands(name, call); };
  op.workspace_bytes = [](const OpCall& call, const Target& target) {
    return target.AttentionBytes(call.in(0), call.in(1), call.in(2), KeyRuns(call.in(1), call));
  };
  return op;
}

// The gradient of the sinks [H]: of each query their probability, times what all keys share of the softmax's
// derivative.
ValueId SinksGradient(Builder& b, ValueId dout, ValueId out, ValueId lse, ValueId sinks) {
  const TensorType statistics = b.type(lse);  // [B,H,S]
  const ValueId delta = b.Add("transpose", {b.Add("dot_rows", {dout, out})}, {{"perm", std::vector<int64_t>{0, 2, 1}}});
  const ValueId scores = b.Add("broadcast", {b.Cast(sinks, statistics.dtype)},
                               {{"shape", statistics.dims}, {"dims", std::vector<int64_t>{1}}});
  const ValueId probability = b.Add("exp", {b.Add("sub", {scores, lse})});
  const ValueId sum = b.Add("reduce_sum", {b.Add("mul", {probability, delta})}, {{"dims", std::vector<int64_t>{0, 2}}});
  return b.Add("neg", {sum});
}

void AddAttention(OpTable& table) {
  OpDef op = AttentionForward("attention");
  op.takes_document_start = true;
  op.expand = ExpandAttention;
  op.derive = [](VjpCall& call) {
    TACC_RETURN_IF_ERROR(NoCotangent(call, 1, "lse"));
    Builder& b = call.builder;
    const Node& node = call.node;
    const AttentionOperands at = *AttentionOperandsOf("attention", node.attrs, node.operands.size());
    if (at.key_bias >= 0 && call.needs(at.key_bias)) {
      return absl::InvalidArgumentError(
          absl::StrCat("attention at ", node.module.empty() ? "the top level" : node.module,
                       " has no derivative for its key_bias, which depends on parameters"));
    }
    const ValueId dout = b.Cast(call.cotangents[0], b.type(node.results[0]).dtype);
    std::vector<ValueId> operands = {dout};
    operands.insert(operands.end(), node.operands.begin(), node.operands.begin() + 3);
    operands.insert(operands.end(), node.results.begin(), node.results.end());
    for (int i : {at.step, at.sample, at.key_bias, at.bias, at.document_start}) {
      if (i >= 0) operands.push_back(node.operands[i]);
    }
    Attrs attrs = node.attrs;
    attrs.erase("wide");
    attrs.erase("sinks");
    if (at.bias >= 0 && call.needs(at.bias)) call.gradients[at.bias] = b.Add("attention_bias_grad", operands, attrs);
    const std::vector<ValueId> gradients = b.AddMany("attention_grad", operands, std::move(attrs), 3);
    std::copy(gradients.begin(), gradients.end(), call.gradients.begin());
    if (at.sinks >= 0 && call.needs(at.sinks)) {
      call.gradients[at.sinks] = SinksGradient(b, dout, node.results[0], node.results[1], node.operands[at.sinks]);
    }
    return absl::OkStatus();
  };
  table.Add(op);

  // As attention, of which earlier_out and earlier_lse are the results over other keys: the results over both.
  OpDef goes_on = AttentionForward("attention_continue");
  goes_on.reuses = [](const OpCall& call) { return std::vector<int>{call.in(3) == call.out(0) ? 3 : -1, 4}; };
  table.Add(goes_on);

  // out and lse are those over all keys; k, v may be a part of them, then dq is this part's contribution.
  OpDef grad;
  grad.name = "attention_grad";
  grad.min_operands = 6;
  grad.max_operands = 11;
  grad.num_results = 3;
  grad.attrs = AttentionAttrs();
  grad.positional = true;
  grad.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(CheckAttention(call, Of("attention_grad", call)));
    const TensorType& q = call.in(1);
    TACC_RETURN_IF_ERROR(WantFloating("dout", call.in(0)));
    TACC_RETURN_IF_ERROR(WantDims("dout", call.in(0), WithHeadDim(q, call.in(3).dims[3]).dims));
    TACC_RETURN_IF_ERROR(WantType("out", call.in(4), call.in(0)));
    TACC_RETURN_IF_ERROR(WantType("lse", call.in(5), LogSumExpType(q)));
    return Types{ResultType(call, q), ResultType(call, call.in(2)), ResultType(call, call.in(3))};
  };
  grad.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    AttentionFactors f = GradientFactors("attention_grad", call);
    f.rule.out = {f.q, f.k, f.v};
    return f.rule;
  };
  // Twice the forward's: the recomputation of the scores is not counted.
  grad.flops = [](const OpCall& call) { return AttentionFlops(call.in(1), call.in(2), call.in(3), 2, call); };
  grad.expand = ExpandAttentionGrad;
  grad.is_matmul = true;
  grad.exact_operands = [](const OpCall& call) { return ExactOperands("attention_grad", call); };
  grad.workspace_bytes = [](const OpCall& call, const Target& target) {
    return target.AttentionGradBytes(call.in(1), call.in(2), call.in(3), KeyRuns(call.in(2), call));
  };
  table.Add(grad);

  // The gradient of the operand `bias`: the same operands. It computes the scores and their gradients once more, which
  // are in nobody's memory.
  OpDef bias = grad;
  bias.name = "attention_bias_grad";
  bias.min_operands = 7;
  bias.num_results = 1;
  bias.infer = [infer = grad.infer](const OpCall& call) -> absl::StatusOr<Types> {
    const AttentionOperands at = Of("attention_bias_grad", call);
    if (at.bias < 0) return absl::InvalidArgumentError("bias=false; wanted true");
    TACC_RETURN_IF_ERROR(infer(call).status());
    return Types{call.in(at.bias)};
  };
  bias.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    AttentionFactors f = GradientFactors("attention_bias_grad", call);
    f.rule.out = {f.bias};
    f.rule.self_masking = false;  // Its sums are over samples and heads, of which the kernel knows no bounds.
    return f.rule;
  };
  bias.flops = [](const OpCall& call) { return AttentionFlops(call.in(1), call.in(2), call.in(3), 1, call); };
  bias.is_repeat = true;
  bias.expand = nullptr;
  bias.exact_operands = [](const OpCall& call) { return ExactOperands("attention_bias_grad", call); };
  bias.workspace_bytes = [](const OpCall& call, const Target& target) {
    return target.AttentionBiasGradBytes(call.in(1), call.in(3), call.out(0));
  };
  table.Add(bias);
}

// attention(q, k, v) and its gradient where q, k and v are the heads of one tensor [B,S,H+2K,D], in this order, and dq,
// dk and dv those of another. `group` is H / K.
TensorType Heads(const TensorType& joined, int64_t heads) {
  return {joined.dtype, {joined.dims[0], joined.dims[1], heads, joined.dims[3]}};
}

// The call of attention or attention_grad that operand `joined` stands in.
absl::StatusOr<OpCall> WithHeadsApart(const OpCall& call, int joined) {
  const TensorType& x = call.in(joined);
  TACC_RETURN_IF_ERROR(WantRank("qkv", x, 4));
  const int64_t group = call.attr<int64_t>("group");
  if (group <= 0 || x.dims[2] % (group + 2) != 0)
    return absl::InvalidArgumentError(absl::StrCat("group=", group, " of ", x.dims[2], " heads in all"));
  const int64_t kv_heads = x.dims[2] / (group + 2);
  OpCall apart = call;
  apart.operands[joined] = Heads(x, group * kv_heads);
  apart.operands.insert(apart.operands.begin() + joined + 1, 2, Heads(x, kv_heads));
  return apart;
}

void AddJoinedAttention(OpTable& table, const char* name, const OpDef& apart, int joined) {
  OpDef op;
  op.name = name;
  op.min_operands = apart.min_operands - 2;
  op.max_operands = apart.max_operands - 2;
  op.num_results = joined == 0 ? 2 : 1;
  op.attrs = AttentionAttrs();
  op.attrs.push_back({"group", AttrKind::kInt});
  op.positional = true;
  op.infer = [joined, infer = apart.infer](const OpCall& call) -> absl::StatusOr<Types> {
    if (call.attr<bool>("wide")) return absl::InvalidArgumentError("wide results are not joined");
    TACC_ASSIGN_OR_RETURN(const OpCall whole, WithHeadsApart(call, joined));
    TACC_ASSIGN_OR_RETURN(const Types types, infer(whole));
    return joined == 0 ? types : Types{call.in(joined)};
  };
  op.rule = [joined, rule = apart.rule](const OpCall& call) -> absl::StatusOr<Rule> {
    TACC_ASSIGN_OR_RETURN(const OpCall whole, WithHeadsApart(call, joined));
    TACC_ASSIGN_OR_RETURN(Rule r, rule(whole));
    const std::vector<int> qkv = r.in[joined];
    r.factors[qkv[2]].replicate = r.factors[qkv[2]].joined = true;
    if (r.in[joined + 1][1] != qkv[1]) r.factors[qkv[1]].replicate = true;  // Keys are needed whole.
    r.in.erase(r.in.begin() + joined + 1, r.in.begin() + joined + 3);
    if (joined > 0) r.out = {qkv};
    return r;
  };
  op.flops = [joined, flops = apart.flops](const OpCall& call) {
    const auto whole = WithHeadsApart(call, joined);
    return whole.ok() ? flops(*whole) : 0;
  };
  op.is_matmul = true;
  op.exact_operands = [joined, exact = apart.exact_operands](const OpCall& call) -> std::vector<int> {
    const auto whole = WithHeadsApart(call, joined);
    if (!whole.ok()) return {};
    std::vector<int> operands = exact(*whole);
    for (int& i : operands) i -= 2;
    return operands;
  };
  op.workspace_bytes = [joined, bytes = apart.workspace_bytes](const OpCall& call, const Target& target) {
    const auto whole = WithHeadsApart(call, joined);
    return whole.ok() ? bytes(*whole, target) : 0;
  };
  table.Add(op);
}

}  // namespace

void AddAttentionOps(OpTable& table) {
  AddRotateBlocks(table);
  AddAttention(table);
  AddJoinedAttention(table, "attention_joined", *table.Find("attention"), 0);
  AddJoinedAttention(table, "attention_joined_grad", *table.Find("attention_grad"), 1);
}

}  // namespace tacc::graph
