#include "graph/ops/workspace.h"

#include <algorithm>
#include <string>

namespace tacc::graph {
namespace {

// Tensors, their shapes' bookkeeping, and rounding of blocks to the workspace's 64 bytes.
constexpr int64_t kSmall = 64 << 10;

bool Has(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

// True when the three groups of letters lie contiguous in `letters`, in any order.
bool IsGrouped(std::string letters, const std::string& x, const std::string& y, const std::string& z) {
  const std::string* groups[3] = {&x, &y, &z};
  bool used[3] = {x.empty(), y.empty(), z.empty()};
  while (!letters.empty()) {
    int found = -1;
    for (int g = 0; g < 3; ++g) {
      if (used[g] || groups[g]->size() > letters.size()) continue;
      if (letters.compare(letters.size() - groups[g]->size(), groups[g]->size(), *groups[g]) == 0) found = g;
    }
    if (found < 0) return false;
    used[found] = true;
    letters.resize(letters.size() - groups[found]->size());
  }
  return true;
}

struct Copies {
  int64_t operands = 0;
  bool result = false;  // the product is permuted into y
};

// A tensor whose letters are not in groups is permuted into a copy first, or the result after. So is one with the batch
// letters last.
Copies CopiesOf(const EinsumSpec& spec, const TensorType& a, const TensorType& b) {
  std::string batch, rows, columns, contracted;
  for (char c : spec.y) (Has(spec.a, c) ? Has(spec.b, c) ? batch : rows : columns) += c;
  std::string left = spec.a;
  const bool swapped = !spec.y.empty() && !Has(spec.b, spec.y.back());
  if (swapped) left = spec.b;
  for (char c : left) {
    if (!Has(spec.y, c)) contracted += c;
  }
  const auto batch_last = [&](const std::string& letters) {
    return !batch.empty() && letters.size() > batch.size() && Has(batch, letters.back());
  };
  Copies copies;
  if (!IsGrouped(spec.a, batch, rows, contracted) || batch_last(spec.a)) copies.operands += a.bytes() + 64;
  if (!IsGrouped(spec.b, batch, columns, contracted) || batch_last(spec.b)) copies.operands += b.bytes() + 64;
  copies.result = !IsGrouped(spec.y, batch, rows, columns) || batch_last(spec.y);
  return copies;
}

// The product itself. f32 and f64 take nothing. bf16: oneDNN packs operands block by block, at most 1.4 MB a thread
// (measured with LibTorch 2.11 on Zen 4, 30 shapes up to 65,536). f16: operands go through f32.
int64_t ProductBytes(const TensorType& a, const TensorType& b, int threads) {
  if (a.dtype == DType::kBF16) return threads * (int64_t{3} << 19);
  if (a.dtype == DType::kF16) return 4 * (a.num_elements() + b.num_elements());
  return 0;
}

DType ComputeType(DType dtype) { return dtype == DType::kF16 ? DType::kF32 : dtype; }

// LibTorch's flash attention works on blocks of queries (by their number) and of 512 keys.
struct Blocks {
  int64_t queries, keys;
};
Blocks BlocksOf(const TensorType& q, const TensorType& k) {
  const int64_t size = q.dims[1] >= 768 ? 256 : q.dims[1] >= 192 ? 64 : 32;
  return {std::min(size, q.dims[1]), std::min<int64_t>(512, k.dims[1])};
}

}  // namespace

int64_t EinsumWorkspaceBytes(const EinsumSpec& spec, const TensorType& a, const TensorType& b, const TensorType& y,
                             int threads) {
  const Copies copies = CopiesOf(spec, a, b);
  const DType compute = ComputeType(a.dtype);
  int64_t bytes = kSmall + copies.operands + ProductBytes(a, b, threads);
  if (copies.result) bytes += y.bytes();
  if (compute != y.dtype) bytes += y.num_elements() * ByteSize(compute);
  return bytes;
}

int64_t EinsumAccumulateWorkspaceBytes(const EinsumSpec& spec, const TensorType& a, const TensorType& b,
                                       const TensorType& y, int threads) {
  const Copies copies = CopiesOf(spec, a, b);
  int64_t bytes = EinsumWorkspaceBytes(spec, a, b, y, threads);
  if (copies.result) bytes += y.bytes();
  return bytes;
}

int64_t AttentionWorkspaceBytes(const TensorType& q, const TensorType& k, int threads) {
  if (q.num_elements() == 0 || k.num_elements() == 0) return kSmall;
  const int64_t groups = q.dims[2] / k.dims[2], depth = q.dims[3];
  const bool narrow = ByteSize(q.dtype) == 2;
  const int64_t wide = ByteSize(AccumulationType(q.dtype));
  const auto [queries, keys] = BlocksOf(q, k);
  const int64_t results = (q.bytes() + q.num_elements() / depth * wide) / groups;
  const int64_t thread = queries * keys * (wide + (narrow ? 2 : 0)) + queries * (depth + 2) * wide;
  const int64_t alibi = q.dims[2] * k.dims[1] * wide;
  return kSmall + results + threads * (thread + 4096) + alibi;
}

int64_t AttentionGradWorkspaceBytes(const TensorType& q, const TensorType& k, int threads) {
  if (q.num_elements() == 0 || k.num_elements() == 0) return kSmall;
  const int64_t groups = q.dims[2] / k.dims[2], depth = q.dims[3];
  const bool narrow = ByteSize(q.dtype) == 2;
  const int64_t wide = ByteSize(AccumulationType(q.dtype));
  const auto [queries, keys] = BlocksOf(q, k);
  int64_t results = q.bytes() / groups + 2 * k.bytes() + 2 * q.num_elements() / depth * wide;
  // One group of query heads after the other: operands made dense, sums of dk and dv kept wide.
  if (groups > 1) results += 2 * q.bytes() / groups + 2 * k.bytes() + 2 * k.num_elements() * wide;
  int64_t thread = queries * keys * 2 * (wide + (narrow ? 2 : 0));
  if (narrow) thread += 2 * (queries + 2 * keys) * depth * wide;
  const int64_t alibi = (q.dims[2] * k.dims[1] + q.num_elements() / depth) * wide;
  return kSmall + results + threads * (thread + thread / 4 + 4096) + alibi;
}

int64_t NormGradWorkspaceBytes(const TensorType& x, int num_sums) {
  constexpr int64_t kMaxGroups = 64;  // partial sums of groups of rows
  const int64_t n = x.dims.back();
  const int64_t groups = n == 0 ? 0 : std::clamp<int64_t>((x.num_elements() / n + 15) / 16, 1, kMaxGroups);
  return kSmall + groups * num_sums * n * ByteSize(AccumulationType(x.dtype));
}

}  // namespace tacc::graph
