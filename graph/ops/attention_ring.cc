#include "graph/ops/attention_ring.h"

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/attention_operands.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"

namespace tacc::graph {
namespace {

// The blocks of ring attention, of a node whose sequence of `length` is split into `shards`. Source: Liu et al., "Ring
// Attention with Blockwise Transformers for Near-Infinite Context", 2023.
class Ring {
 public:
  Ring(ExpandCall& call, int64_t length)
      : b_(call.builder), attrs_(call.node.attrs), size_(call.shards[kSequenceFactor]) {
    block_ = length / size_;
    attrs_["block"] = block_;
  }
  enum class Width { kOwn, kWide };

  int64_t size() const { return size_; }
  // Attributes of the step that has the keys rotated by `shift` blocks.
  Attrs Step(int64_t shift, Width width) const {
    Attrs attrs = attrs_;
    attrs["shift"] = shift;
    if (width == Width::kWide) attrs["wide"] = true;
    return attrs;
  }
  // Each block goes to the next one's place.
  ValueId Rotate(ValueId x) { return b_.Add("rotate_blocks", {x}, {{"dim", int64_t{1}}, {"block", block_}}); }

 private:
  Builder& b_;
  Attrs attrs_;
  int64_t size_, block_ = 0;
};

}  // namespace

absl::Status CheckBlock(const OpCall& call, int64_t length) {
  const int64_t block = call.attr<int64_t>("block"), shift = call.attr<int64_t>("shift");
  if (block < 0 || (block > 0 && length % block != 0))
    return absl::InvalidArgumentError(absl::StrCat("block=", block, " does not divide the sequence of ", length));
  if (shift != 0 && (block == 0 || shift < 0 || shift >= length / block))
    return absl::InvalidArgumentError(absl::StrCat("shift=", shift, "; wanted a number of blocks below all of them"));
  return absl::OkStatus();
}

absl::Status ExpandAttention(ExpandCall& call) {
  Builder& b = call.builder;
  const Node& node = call.node;
  const AttentionOperands at = *AttentionOperandsOf("attention", node.attrs, node.operands.size());
  const ValueId q = node.operands[0];
  Ring ring(call, b.type(q).dims[1]);
  ValueId k = node.operands[1], v = node.operands[2], out = kNoValue, lse = kNoValue;
  ValueId key_bias = at.key_bias < 0 ? kNoValue : node.operands[at.key_bias];
  for (int64_t shift = 0; shift < ring.size(); ++shift) {
    const bool last = shift + 1 == ring.size();
    const auto next = [&](ValueId x) { return last || x == kNoValue ? kNoValue : ring.Rotate(x); };
    const ValueId next_k = next(k), next_v = next(v), next_bias = next(key_bias);
    std::vector<ValueId> operands = {q, k, v};
    Attrs attrs = ring.Step(shift, last ? Ring::Width::kOwn : Ring::Width::kWide);
    if (shift == 0) {
      if (at.sinks >= 0) operands.push_back(node.operands[at.sinks]);
    } else {  // Sinks are in what was computed before.
      attrs.erase("sinks");
      operands.insert(operands.end(), {out, lse});
    }
    for (int i : {at.step, at.sample}) {
      if (i >= 0) operands.push_back(node.operands[i]);
    }
    if (key_bias != kNoValue) operands.push_back(key_bias);
    if (at.document_start >= 0) operands.push_back(node.operands[at.document_start]);
    const std::vector<ValueId> results =
        b.AddMany(shift == 0 ? "attention" : "attention_continue", operands, std::move(attrs), 2);
    out = results[0];
    lse = results[1];
    k = next_k;
    v = next_v;
    key_bias = next_bias;
  }
  call.results = {out, lse};
  return absl::OkStatus();
}

// The keys go round as in the forward; the gradients of a block's keys travel with it from its second step on, and then
// home.
absl::Status ExpandAttentionGrad(ExpandCall& call) {
  Builder& b = call.builder;
  const Node& node = call.node;
  Ring ring(call, b.type(node.operands[1]).dims[1]);
  std::vector<ValueId> operands = node.operands;
  // The operands that go round: k, v and the bias of keys.
  std::vector<int> of_keys = {2, 3};
  if (const int i = AttentionOperandsOf("attention_grad", node.attrs, operands.size())->key_bias; i >= 0)
    of_keys.push_back(i);
  ValueId dq = kNoValue, own[2], travelling[2] = {kNoValue, kNoValue};
  for (int64_t shift = 0; shift < ring.size(); ++shift) {
    std::vector<ValueId> next(of_keys.size(), kNoValue);
    // A repeat of the forward's: all blocks are never kept.
    b.SetRecompute(node.recompute + 1);
    for (size_t i = 0; i < next.size() && shift + 1 < ring.size(); ++i) next[i] = ring.Rotate(operands[of_keys[i]]);
    b.SetRecompute(node.recompute);
    for (ValueId& v : travelling) {
      if (v != kNoValue) v = ring.Rotate(v);
    }
    const std::vector<ValueId> part = b.AddMany("attention_grad", operands, ring.Step(shift, Ring::Width::kWide), 3);
    dq = shift == 0 ? part[0] : b.Add("add", {dq, part[0]});
    for (int i = 0; i < 2; ++i) {
      if (shift == 0) {
        own[i] = part[1 + i];
      } else {
        travelling[i] = shift == 1 ? part[1 + i] : b.Add("add", {travelling[i], part[1 + i]});
      }
    }
    for (size_t i = 0; i < next.size(); ++i) operands[of_keys[i]] = next[i];
  }
  call.results = {dq, b.Add("add", {own[0], ring.Rotate(travelling[0])}),
                  b.Add("add", {own[1], ring.Rotate(travelling[1])})};
  for (size_t i = 0; i < 3; ++i) call.results[i] = b.Cast(call.results[i], b.type(node.results[i]).dtype);
  return absl::OkStatus();
}

// y: x [B,S,K,D], or a number of each token [B,S], with its blocks of `block` indices of dim 1 moved on by one, the
// last to the first's place: what a ring of ranks sends to the next.
void AddRotateBlocks(OpTable& table) {
  OpDef op;
  op.name = "rotate_blocks";
  op.min_operands = op.max_operands = 1;
  op.attrs = {{"dim", AttrKind::kInt},
              {"block", AttrKind::kInt},
              {"over", AttrKind::kStrings, AttrSpec::kOptional},
              {"async", AttrKind::kBool, AttrSpec::kOptional}};
  op.is_collective = true;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    if (call.in(0).rank() != 2) TACC_RETURN_IF_ERROR(WantRank("x", call.in(0), 4));
    if (call.attr<int64_t>("dim") != 1) return absl::InvalidArgumentError("dim must be 1, the sequence");
    if (call.attr<int64_t>("block") <= 0) return absl::InvalidArgumentError("block must be above 0");
    TACC_RETURN_IF_ERROR(CheckBlock(call, call.in(0).dims[1]));
    return Types{call.in(0)};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    Dims dims = call.in(0).dims;
    dims[1] /= call.attr<int64_t>("block");
    const std::vector<int> x = AddFactors(rule, dims);
    rule.factors[x[1]].even = true;
    if (dims.size() == 4) rule.factors[x[1]].move_to = x[2];
    rule.in = rule.out = {x};
    rule.linear_in = {{0}};
    return rule;
  };
  table.Add(op);
}

}  // namespace tacc::graph
