// What attention on a GPU takes and needs.
#include "kernels/cuda/attention.h"

#include <algorithm>
#include <string>
#include <vector>

namespace tacc::kernels::cuda {
namespace {

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// What LibTorch's kernels are counted with: multiprocessors of the largest GPU, and rows of their blocks.
constexpr int64_t kMaxMultiprocessors = 160;
constexpr int64_t kLibtorchBlock = 128;
// Alignment of their allocations, seeds, cuDNN's small change.
constexpr int64_t kLibtorchSlack = int64_t{4} << 20;

// Elements of a row of its sums, for head dim d.
int64_t LibtorchHead(int64_t d) { return d <= 192 ? RoundUp(d, 32) : RoundUp(d, 256); }

bool LibtorchTakes(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

bool IsNatural(const std::vector<SequenceRun>& runs, int64_t rows) {
  return runs.empty() || (runs.size() == 1 && runs[0].length == rows && runs[0].position == 0 && runs[0].block == 0);
}

}  // namespace

std::string AttentionLimit(const TensorView& q, const TensorView& v, const AttentionParameters& p) {
  const int64_t largest = q.dtype == DType::kF64 ? 128 : 256;
  const auto text = [](const char* what, size_t got, int64_t limit) {
    return std::string("attention on a GPU: ") + what + ": " + std::to_string(got) + ", at most " +
           std::to_string(limit);
  };
  const int64_t head_dim = std::max(q.dims.back(), v.dims.back());
  if (head_dim > largest) return text("head dim", head_dim, largest) + " in " + Name(q.dtype);
  if (p.alibi_slopes.size() > kMaxAttentionHeads)
    return text("query heads with alibi slopes", p.alibi_slopes.size(), kMaxAttentionHeads);
  if (p.queries.size() > kMaxAttentionRuns) return text("runs of queries", p.queries.size(), kMaxAttentionRuns);
  if (p.keys.size() > kMaxAttentionRuns) return text("runs of keys", p.keys.size(), kMaxAttentionRuns);
  return "";
}

std::string WhyNotLibtorch(const TensorView& q, const TensorView& k, const AttentionExtras& extras,
                           const AttentionParameters& parameters) {
  if (q.dtype != DType::kBF16 && q.dtype != DType::kF16) return std::string("its dtype is ") + Name(q.dtype);
  if (q.dims[3] % 8 != 0 || q.dims[3] > 256) return "its head dim is " + std::to_string(q.dims[3]);
  if (parameters.pitch % 8 != 0) return "its tokens are " + std::to_string(parameters.pitch) + " elements apart";
  if (!parameters.alibi_slopes.empty()) return "it has alibi slopes";
  if (extras.first_keys.data != nullptr) return "its sequences hold several documents";
  if (extras.earlier_lse.data != nullptr) return "it goes on from other keys";
  if (extras.sinks.data != nullptr) return "it has sinks";
  if (parameters.key_bias.data != nullptr) return "its keys have biases";
  if (parameters.bias.data != nullptr) return "its scores have biases";
  if (parameters.window > 0) return "it has a sliding window";
  if (parameters.softcap > 0) return "it has a soft cap";
  if (parameters.dropout.parameters.rate > 0) return "it has dropout";
  if (!IsNatural(parameters.queries, q.dims[1]) || !IsNatural(parameters.keys, k.dims[1]))
    return "its sequence is not in the natural order, or in blocks, or padded";
  if (parameters.causal && q.dims[1] != k.dims[1]) return "it is causal with other numbers of queries and keys";
  return "";
}

int64_t AttentionWorkspaceBytes(const Dims& q, const Dims& k, DType dtype) {
  if (!LibtorchTakes(dtype)) return 0;
  // Its own out and lse, which are then copied (q, k, v are read where they lie, with a pitch as well); and partial
  // results in f32, by which flash attention keeps a GPU busy that has more multiprocessors than there are blocks of
  // queries.
  const int64_t out = q.Product() * SizeOf(dtype) + q.Product(0, 3) * 4;
  const int64_t blocks = q[0] * q[2] * (RoundUp(q[1], kLibtorchBlock) / kLibtorchBlock);
  const int64_t parts = blocks < kMaxMultiprocessors ? RoundUp(k[1], kLibtorchBlock) / kLibtorchBlock : 1;
  const int64_t useful = std::min(parts * blocks, 4 * kMaxMultiprocessors);
  return out + (parts > 1 ? useful * kLibtorchBlock * (LibtorchHead(q[3]) + 1) * 4 : 0) + kLibtorchSlack;
}

int64_t AttentionGradWorkspaceBytes(const Dims& q, const Dims& k, DType dtype, Determinism determinism) {
  if (!LibtorchTakes(dtype)) return q.Product(0, 3) * (dtype == DType::kF64 ? 8 : 4);
  // Its own dq, dk, dv, which are then copied; dk and dv once more for each query head where heads share keys; dq's
  // sums in f32, as many times as it takes to fill the GPU without adding atomically.
  const int64_t d = LibtorchHead(q[3]), rows = q[0] * RoundUp(q[1], kLibtorchBlock) * q[2];
  const int64_t keys = k.Product() * SizeOf(dtype),
                shared = q[2] == k[2] ? 0 : 2 * q[0] * k[1] * q[2] * d * SizeOf(dtype);
  const int64_t pairs = q[0] * q[2] > 0 ? q[0] * q[2] : 1;
  const int64_t sums = determinism == Determinism::kRequired ? (kMaxMultiprocessors + pairs - 1) / pairs : 1;
  return q.Product() * SizeOf(dtype) + 2 * keys + shared + sums * rows * d * 4 + rows * 4 + kLibtorchSlack;
}

}  // namespace tacc::kernels::cuda
