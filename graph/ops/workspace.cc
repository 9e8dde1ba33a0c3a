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

// The product itself and its result, computed in a type. f32 and f64 take nothing. bf16: oneDNN packs operands block by
// block, at most 1.4 MB a thread (measured with LibTorch 2.11 on Zen 4, 30 shapes up to 65,536). Others are converted.
int64_t ProductBytes(const TensorType& a, const TensorType& b, const TensorType& y, DType compute, int threads) {
  int64_t bytes = compute == DType::kBF16 ? threads * (int64_t{3} << 19) : 0;
  if (compute != a.dtype) bytes += ByteSize(compute) * (a.num_elements() + b.num_elements());
  if (compute != y.dtype) bytes += ByteSize(compute) * y.num_elements();
  return bytes;
}

// In whichever type the target may compute it.
int64_t ProductBytes(const TensorType& a, const TensorType& b, const TensorType& y, const Target& target) {
  const bool is_half = a.dtype == DType::kF16 || a.dtype == DType::kBF16;
  const int64_t through_f32 = ProductBytes(a, b, y, is_half ? DType::kF32 : a.dtype, target.threads);
  if (a.dtype != DType::kBF16) return through_f32;
  const int64_t in_bf16 = ProductBytes(a, b, y, DType::kBF16, target.threads);
  return target.multiplies_bf16 ? in_bf16 : std::max(in_bf16, through_f32);
}

// Attention's blocks, as kernels/cpu/simd/loops.h has them.
constexpr int64_t kQueryBlock = 48, kKeyBlock = 64;
int64_t RoundUp(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }
// Of keys, laid out in tiles that end with a run.
int64_t KeyRows(const TensorType& k, int64_t runs) { return RoundUp(k.dims[1], kKeyBlock) + (runs - 1) * kKeyBlock; }

// Rows of one expert that are gathered and multiplied at a time, as kernels/cpu/expert.h has them.
int64_t ExpertBlockRows(const TensorType& ids, DType dtype) {
  constexpr int64_t kExpertRows = 1024, kExpertRowStep = 32;
  const int64_t rows = std::min(kExpertRows, ids.num_elements());
  return ByteSize(dtype) == 2 ? RoundUp(rows, kExpertRowStep) : rows;
}
// Slots sorted by expert; the count of each expert fits into kSmall.
int64_t OrderBytes(const TensorType& ids) { return kSmall + 4 * ids.num_elements(); }

}  // namespace

EinsumCopies EinsumCopiesOf(const EinsumSpec& spec, const TensorType& a, const TensorType& b) {
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
  return {!IsGrouped(spec.a, batch, rows, contracted) || batch_last(spec.a),
          !IsGrouped(spec.b, batch, columns, contracted) || batch_last(spec.b),
          !IsGrouped(spec.y, batch, rows, columns) || batch_last(spec.y)};
}

int64_t EinsumWorkspaceBytes(const EinsumSpec& spec, const TensorType& a, const TensorType& b, const TensorType& y,
                             const Target& target) {
  const EinsumCopies copies = EinsumCopiesOf(spec, a, b);
  int64_t bytes = kSmall + ProductBytes(a, b, y, target);
  if (copies.a) bytes += a.bytes() + 64;
  if (copies.b) bytes += b.bytes() + 64;
  if (copies.y) bytes += y.bytes();
  return bytes;
}

int64_t EinsumAccumulateWorkspaceBytes(const EinsumSpec& spec, const TensorType& a, const TensorType& b,
                                       const TensorType& y, const Target& target) {
  const EinsumCopies copies = EinsumCopiesOf(spec, a, b);
  int64_t bytes = EinsumWorkspaceBytes(spec, a, b, y, target);
  if (copies.y) bytes += y.bytes();
  return bytes;
}

int64_t AttentionWorkspaceBytes(const TensorType& q, const TensorType& k, int64_t key_runs, int threads) {
  const int64_t d = q.dims[3], padded = RoundUp(d, 16), keys = KeyRows(k, key_runs);
  const int64_t thread = keys * (d + padded) + (kKeyBlock + 2 * kQueryBlock) * padded + kQueryBlock * kKeyBlock;
  return kSmall + threads * RoundUp(thread * ByteSize(AccumulationType(q.dtype)), 64);
}

int64_t AttentionGradWorkspaceBytes(const TensorType& q, const TensorType& k, int64_t key_runs, int threads) {
  const int64_t d = q.dims[3], padded = RoundUp(d, 16), keys = KeyRows(k, key_runs);
  const int64_t thread = keys * (2 * d + 3 * padded) + 3 * kQueryBlock * padded + 2 * kQueryBlock * kKeyBlock;
  return kSmall + threads * RoundUp(thread * ByteSize(AccumulationType(q.dtype)), 64);
}

int64_t ExpertMatmulWorkspaceBytes(const TensorType& ids, const TensorType& x, const TensorType& w, const TensorType& y,
                                   const Target& target) {
  const int64_t rows = ExpertBlockRows(ids, x.dtype);
  const TensorType block_x{x.dtype, {rows, x.dims.back()}}, block_w{w.dtype, {y.dims.back(), x.dims.back()}};
  const TensorType block_y{x.dtype, {rows, y.dims.back()}};
  return OrderBytes(ids) + block_x.bytes() + block_y.bytes() +
         EinsumWorkspaceBytes({"rn", "mn", "rm"}, block_x, block_w, block_y, target);
}

int64_t ExpertMatmulGradWorkspaceBytes(const TensorType& ids, const TensorType& a, const TensorType& b,
                                       const Target& target) {
  const int64_t rows = ExpertBlockRows(ids, a.dtype);
  const TensorType block_a{a.dtype, {rows, a.dims.back()}}, block_b{b.dtype, {rows, b.dims.back()}};
  const TensorType y{AccumulationType(a.dtype), {a.dims.back(), b.dims.back()}};
  return OrderBytes(ids) + block_a.bytes() + block_b.bytes() +
         EinsumAccumulateWorkspaceBytes({"rm", "rn", "mn"}, block_a, block_b, y, target);
}

int64_t DispatchSlotsWorkspaceBytes(const TensorType& row_ids) {
  return kSmall + row_ids.dims[2] * static_cast<int64_t>(sizeof(int64_t));
}

int64_t NormGradWorkspaceBytes(const TensorType& x, int num_sums) {
  constexpr int64_t kMaxGroups = 64;  // partial sums of groups of rows
  const int64_t n = x.dims.back();
  const int64_t groups = n == 0 ? 0 : std::clamp<int64_t>((x.num_elements() / n + 15) / 16, 1, kMaxGroups);
  return kSmall + groups * num_sums * n * ByteSize(AccumulationType(x.dtype));
}

}  // namespace tacc::graph
