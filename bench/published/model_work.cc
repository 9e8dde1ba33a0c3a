#include "bench/published/rows.h"

// Kernels of Megatron-LM's transformer layer. Letters: s tokens of a sample, h hidden, a heads, d head width, f MLP
// width. Half precision is two bytes; a dropout mask one.
namespace tacc::bench {
namespace {

using graph::DType;
using graph::Extent;
using graph::KernelWork;
using graph::Split;
using graph::UnitWork;

constexpr double kHalf = 2, kFloat = 4;

struct UnitBuilder {
  UnitWork unit;

  // y[rows, columns] = x[rows, depth] w, and the gradients of both operands; as many at once as share out `flops`.
  void Product(double flops, Extent rows, Extent columns, Extent depth, double sample_bytes, double weight_bytes) {
    KernelWork k;
    k.dtype = DType::kBF16;
    k.region = Split::kTensor;
    k.flops = flops;
    k.rows = rows;
    k.columns = columns;
    k.depth = depth;
    k.sample_bytes = sample_bytes;
    k.weight_bytes = weight_bytes;
    unit.forward.kernels.push_back(k);
    k.rows = rows, k.columns = depth, k.depth = columns;
    unit.backward.kernels.push_back(k);
    k.rows = depth, k.columns = columns, k.depth = rows;
    unit.backward.kernels.push_back(k);
  }
  void Weight(double s, Extent in, Extent out) {
    Product(2 * s * in.size * out.size, {s, Split::kTokens}, out, in, kHalf * s * (in.size + out.size),
            kHalf * in.size * out.size);
    unit.parameters.tensor += in.size * out.size;
  }
  // Elementwise kernels that read and write so many bytes in all.
  void Pointwise(Split region, double forward_bytes, int forward_kernels, double backward_bytes, int backward_kernels) {
    KernelWork k;
    k.dtype = DType::kBF16;
    k.region = region;
    k.sample_bytes = forward_bytes / forward_kernels;
    unit.forward.kernels.insert(unit.forward.kernels.end(), forward_kernels, k);
    k.sample_bytes = backward_bytes / backward_kernels;
    unit.backward.kernels.insert(unit.backward.kernels.end(), backward_kernels, k);
  }
};

UnitWork Layer(const ModelShape& m) {
  const double s = static_cast<double>(m.seq_len), h = static_cast<double>(m.hidden), a = static_cast<double>(m.heads);
  const double f = static_cast<double>(m.mlp), d = h / a, kv = static_cast<double>(m.kv_heads);
  const double qkv = (a + 2 * kv) * d, x = kHalf * s * h;  // bytes of the residual stream
  const Extent hidden{h, Split::kNone}, heads{a * d, Split::kTensor}, mlp{f, Split::kTensor};
  const double mask = m.attention_in_one ? 0 : 1;  // bytes of dropout an element; those who use flash train without
  UnitBuilder b;
  b.unit.is_layer = true;
  b.unit.name = "layer";
  b.Pointwise(Split::kHome, 2 * x, 1, 3 * x, 2);  // norm
  b.Weight(s, hidden, {qkv, Split::kTensor});
  if (m.attention_in_one) {
    b.Pointwise(Split::kTensor, 2 * kHalf * s * qkv, 1, 2 * kHalf * s * qkv, 1);  // rotary, or bias
    KernelWork attention;
    attention.dtype = DType::kBF16;
    attention.region = Split::kTensor;
    attention.flops = 2 * a * d * s * s;  // causal: half of 4 a d s^2
    attention.sample_bytes = kHalf * s * (qkv + a * d);
    attention.exponentials = a * s * s / 2;
    b.unit.forward.kernels.push_back(attention);
    attention.flops *= 2;
    attention.repeated_flops = attention.flops / 4;  // scores
    attention.sample_bytes *= 2;
    b.unit.backward.kernels.push_back(attention);
  } else {
    const double scores = a * s * s;
    b.Pointwise(Split::kTensor, 2 * kHalf * s * qkv, 1, kHalf * s * qkv, 1);        // bias
    b.Pointwise(Split::kTensor, 2 * kHalf * s * qkv, 3, 2 * kHalf * s * qkv, 3);    // to heads first
    b.Product(2 * scores * d, {s}, {s}, {d}, kHalf * (2 * s * a * d + scores), 0);  // q k
    b.Pointwise(Split::kTensor, 2 * kHalf * scores, 1, 3 * kHalf * scores, 1);      // scale, mask, softmax
    b.Pointwise(Split::kTensor, (2 * kHalf + mask) * scores, 1, (2 * kHalf + mask) * scores, 1);  // dropout
    b.Product(2 * scores * d, {s}, {d}, {s}, kHalf * (2 * s * a * d + scores), 0);                // p v
    b.Pointwise(Split::kTensor, 2 * x, 1, 2 * x, 1);  // back from heads first
  }
  b.Weight(s, heads, hidden);
  b.Pointwise(Split::kHome, 3 * x + mask * s * h, 1, 2 * x + mask * s * h, 2);  // bias, dropout, add
  b.Pointwise(Split::kHome, 2 * x, 1, 3 * x, 2);                                // norm
  b.Weight(s, hidden, {m.gated ? 2 * f : f, Split::kTensor});
  b.Pointwise(Split::kTensor, (m.gated ? 3 : 2) * kHalf * s * f, 1, (m.gated ? 5 : 3) * kHalf * s * f,
              2);  // GELU, SwiGLU
  b.Weight(s, mlp, hidden);
  b.Pointwise(Split::kHome, 3 * x + mask * s * h, 1, 2 * x + mask * s * h, 2);  // bias, dropout, add

  // Around attention and around the MLP.
  for (graph::PhaseWork* phase : {&b.unit.forward, &b.unit.backward}) {
    phase->gathers = phase->scatters = {{x}, {x}};
    phase->ring.keys = 2 * kHalf * s * kv * d;
  }
  b.unit.input_bytes = x;
  // Source of what is kept: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022.
  b.unit.saved_home_bytes = 5 * x;
  b.unit.saved_tensor_bytes =
      kHalf * s * (qkv + a * d + (m.gated ? 3 : 2) * f) + (m.attention_in_one ? 0 : 5 * a * s * s);
  b.unit.working_home_bytes = 4 * x;
  b.unit.working_tensor_bytes = 2 * kHalf * s * f;
  return b.unit;
}

UnitWork Embedding(const ModelShape& m) {
  const double x = kHalf * static_cast<double>(m.seq_len * m.hidden);
  UnitBuilder b;
  b.unit.name = "embedding";
  b.Pointwise(Split::kHome, 3 * x, 3, 3 * x, 3);
  b.unit.forward.scatters = b.unit.backward.gathers = {{x}};
  b.unit.parameters.tensor = static_cast<double>(m.vocabulary * m.hidden);
  return b.unit;
}

UnitWork Head(const ModelShape& m) {
  const double s = static_cast<double>(m.seq_len), h = static_cast<double>(m.hidden),
               v = static_cast<double>(m.vocabulary), x = kHalf * s * h;
  UnitBuilder b;
  b.unit.name = "head";
  b.Pointwise(Split::kHome, 2 * x, 1, 3 * x, 2);
  b.Weight(s, {h, Split::kNone}, {v, Split::kTensor});
  b.unit.parameters.tensor = m.gated ? h * v : 0;  // GPT ties it to the embedding
  // Megatron-LM's vocab_parallel_cross_entropy, each line a kernel over all logits: to fp32, maximum, subtraction,
  // exponentials, their sum, division, and kernels over labels beside them; back: times the loss' gradient, to half
  // precision, and the label's own.
  b.Pointwise(Split::kTensor, s * v * (kHalf + 9 * kFloat), 12, s * v * (3 * kFloat + kHalf), 4);
  b.unit.forward.gathers = b.unit.backward.scatters = {{x}};
  b.unit.saved_home_bytes = 2 * x;
  b.unit.saved_tensor_bytes = s * v * kFloat;
  b.unit.working_tensor_bytes = s * v * kHalf;
  return b.unit;
}

}  // namespace

graph::ModelWork WorkOf(const ModelShape& m) {
  graph::ModelWork work;
  work.units = {Embedding(m), Layer(m), Head(m)};
  work.units[1].count = work.num_layers = m.layers;
  work.seq_len = m.seq_len;
  work.num_heads = m.heads;
  work.num_kv_heads = m.kv_heads;
  return work;
}

}  // namespace tacc::bench
