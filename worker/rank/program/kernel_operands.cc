#include "worker/rank/program/kernel_operands.h"

#include <map>
#include <string>
#include <tuple>

#include "absl/strings/string_view.h"
#include "graph/ops/attention_operands.h"
#include "graph/ops/update_operands.h"

namespace tacc::worker {
namespace {

// Heads [first, first + count) of x [B,S,G,D], which lie `x.dims[2] * x.dims[3]` elements apart from token to token.
TensorView HeadsOf(const TensorView& x, int64_t first, int64_t count) {
  TensorView heads = x;
  heads.data = x.as<char>() + first * x.dims[3] * kernels::SizeOf(x.dtype);
  heads.dims[2] = count;
  return heads;
}

}  // namespace

void ProductOf::Run(const kernels::Kernels& kernels, const kernels::EinsumKernel& kernel) const {
  TensorView right = b;
  kernels::ScratchMemory memory;
  if (!copied.empty()) {
    memory = kernels.TakeScratch(b.bytes());
    right.data = memory.get();
    int64_t offset = 0;
    for (const TensorView& part : copied) {
      kernels.shape.CopyBytes(part.data, right.as<char>() + offset, part.bytes());
      offset += part.bytes();
    }
  }
  acc.data == nullptr ? kernel.Run(a, right, y) : kernel.RunAccumulate(acc, a, right, y);
}

// The parts that follow a are multiplied where they lie when each begins where the one before ends.
ProductOf ProductOfNode(const Binding& b) {
  const size_t first = b.request.node->op == "einsum_accumulate" ? 1 : 0;
  ProductOf product{first == 0 ? TensorView() : b.in(0), b.in(first), b.in(first + 1), b.out(0), {}, {}};
  if (const int64_t parts = b.attr<int64_t>("parts"); parts > 0) {
    const TensorView whole = product.a;
    const int64_t start = b.attr<int64_t>("start"), run = whole.dims.Product(b.dim(), whole.dims.rank());
    product.part = {b.dim(), run};
    product.a.data = whole.as<char>() + run / parts * start * kernels::SizeOf(whole.dtype);
    product.a.dims[b.dim()] = whole.dims[b.dim()] / parts * (b.attr<int64_t>("limit") - start);
  }
  bool lie_in_a_row = true;
  for (size_t i = first + 2; i < b.request.in.size(); ++i) {
    lie_in_a_row = lie_in_a_row && b.in(i - 1).as<char>() + b.in(i - 1).bytes() == b.in(i).data;
    product.b.dims[0] += b.in(i).dims[0];
  }
  if (!lie_in_a_row) product.copied.assign(b.request.in.begin() + first + 1, b.request.in.end());
  return product;
}

AttentionOf AttentionOfNode(const Binding& b) {
  const graph::AttentionOperands at =
      *graph::AttentionOperandsOf(b.request.node->op.name(), b.request.node->attrs, b.request.in.size());
  const bool is_joined = at.is_joined;
  const size_t q = at.q, k = at.k;
  const auto operand = [&b](int index) { return index < 0 ? TensorView() : b.in(index); };
  AttentionOf node;
  node.parameters = {.causal = b.attr<bool>("causal"),
                     .scale = b.attr<double>("scale"),
                     .window = b.attr<int64_t>("window"),
                     .softcap = b.attr<double>("softcap")};
  const int64_t group = b.attr<int64_t>("group"), kv_heads = b.in(q).dims[2] / (group + 2), heads = group * kv_heads;
  if (is_joined) {
    node.q = HeadsOf(b.in(q), 0, heads);
    node.k = HeadsOf(b.in(q), heads, kv_heads);
    node.v = HeadsOf(b.in(q), heads + kv_heads, kv_heads);
    node.parameters.pitch = b.in(q).dims[2] * b.in(q).dims[3];
  } else {
    node.q = b.in(q);
    node.k = b.in(at.k);
    node.v = b.in(at.v);
  }
  const std::vector<double> slopes = b.attr<std::vector<double>>("alibi_slopes");
  // Where heads are joined each rank has as many of each kind.
  const int64_t first_head = is_joined ? b.in_begin(q, 2) / b.in(q).dims[2] * heads : b.in_begin(q, 2);
  for (int64_t h = 0; !slopes.empty() && h < node.q.dims[2]; ++h) {
    const size_t head = static_cast<size_t>(first_head + h);
    node.parameters.alibi_slopes.push_back(head < slopes.size() ? slopes[head] : 0);  // a padded head has no slope
  }
  if (at.step >= 0) {
    node.parameters.dropout = {.parameters = {.rate = b.attr<double>("dropout"),
                                              .key = b.attr<int64_t>("dropout_key"),
                                              .seed = b.attr<int64_t>("dropout_seed")},
                               .step = b.in(at.step),
                               .sample = b.in(at.sample),
                               .first_head = first_head,
                               .logical_queries = b.logical(q)[1],
                               .logical_keys = b.logical(k)[1]};
  }
  node.parameters.key_bias = operand(at.key_bias);
  node.parameters.bias = operand(at.bias);
  node.parameters.bias_yields = b.attr<bool>("bias_yields");
  node.parameters.queries = b.runs(q, 0);
  node.parameters.keys = b.runs(k, b.attr<int64_t>("shift"));
  if (!at.is_gradient) {
    node.extras = {operand(at.document_start), operand(at.earlier_out), operand(at.earlier_lse), operand(at.sinks)};
    node.out = b.out(0);
    node.lse = b.out(1);
    return node;
  }
  node.dout = b.in(0);
  node.out = b.in(at.out);
  node.lse = b.in(at.lse);
  node.extras.first_keys = operand(at.document_start);
  if (b.request.node->op == "attention_bias_grad") {
    node.dbias = b.out(0);
    return node;
  }
  node.dq = is_joined ? HeadsOf(b.out(0), 0, heads) : b.out(0);
  node.dk = is_joined ? HeadsOf(b.out(0), heads, kv_heads) : b.out(1);
  node.dv = is_joined ? HeadsOf(b.out(0), heads + kv_heads, kv_heads) : b.out(2);
  return node;
}

kernels::TopKGroups TopKGroupsOf(const Binding& b) {
  const int64_t groups = b.attr<int64_t>("groups", 1);
  return {groups, b.attr<int64_t>("kept_groups", groups), b.attr<int64_t>("summed", 1)};
}

kernels::TopKWeights TopKWeightsOf(const Binding& b) {
  return b.attr<bool>("normalize") ? kernels::TopKWeights::kNormalized : kernels::TopKWeights::kPlain;
}

kernels::WeightUpdate WeightUpdateOf(const Binding& b) {
  using kernels::UpdateKind;
  static const std::map<absl::string_view, UpdateKind> kinds = {{"adam", UpdateKind::kAdam},
                                                                {"adamw", UpdateKind::kAdamW},
                                                                {"lion", UpdateKind::kLion},
                                                                {"moving_average", UpdateKind::kMovingAverage},
                                                                {"sgd", UpdateKind::kSgd}};
  const graph::UpdateOperands at = graph::UpdateOperandsOf(b.request.node->op.name(), b.request.in.size());
  kernels::WeightUpdate update{.w = b.in(0),
                               .g = b.in(at.gradient),
                               .scalars = {b.in(at.scalar(0)), b.in(at.scalar(1)), b.in(at.scalar(2)),
                                           b.in(at.scalar(3)), at.momentum < 0 ? TensorView() : b.in(at.momentum)},
                               .parameters = {.kind = kinds.at(b.request.node->op.name()),
                                              .beta1 = b.attr<double>("beta1"),
                                              .beta2 = b.attr<double>("beta2"),
                                              .epsilon = b.attr<double>("epsilon"),
                                              .weight_decay = b.attr<double>("weight_decay"),
                                              .momentum = b.attr<double>("momentum"),
                                              .dampening = b.attr<double>("dampening"),
                                              .nesterov = b.attr<bool>("nesterov")},
                               .new_w = b.out(0),
                               .copy = b.out_or_absent(1 + at.num_states)};
  if (at.num_states > 0) std::tie(update.m, update.new_m) = std::tuple(b.in(1), b.out(1));
  if (at.num_states > 1) std::tie(update.v, update.new_v) = std::tuple(b.in(2), b.out(2));
  return update;
}

std::vector<kernels::BoundedTensor> BoundedOperands(const Binding& b) {
  std::vector<kernels::BoundedTensor> operands;
  for (size_t i = 0; i < b.request.in.size(); ++i) operands.push_back({b.in(i), b.in_bounds(i)});
  return operands;
}

}  // namespace tacc::worker
