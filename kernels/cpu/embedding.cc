#include "kernels/contract/embedding.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

void Embedding(const TensorView& table, const TensorView& ids, int64_t offset, const TensorView& y) {
  const int64_t n = table.row_length(), vocabulary = table.num_rows();
  TACC_KERNEL_CHECK(table.dims.rank() == 2 && ids.dtype == DType::kI32 && y.size() == ids.size() * n);
  const simd::Loops& loops = simd::BestLoops();
  const int64_t table_row = n * SizeOf(table.dtype), y_row = n * SizeOf(y.dtype);
  ParallelFor(ids.size(), 1 + 16384 / (n + 1), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = ids.as<int32_t>()[i] - offset;
      char* target = y.as<char>() + i * y_row;
      if (id < 0 || id >= vocabulary) {
        std::memset(target, 0, y_row);
        continue;
      }
      const char* source = table.as<char>() + id * table_row;
      if (table.dtype == y.dtype) {
        std::memcpy(target, source, y_row);
      } else {
        loops.unary(UnaryOp::kCast, 0, 0, {source, table.dtype}, {target, y.dtype}, 0, n);
      }
    }
  });
}

void EmbeddingGrad(const TensorView& dy, const TensorView& ids, int64_t offset, const TensorView& dtable) {
  const int64_t n = dtable.row_length(), vocabulary = dtable.num_rows(), tokens = ids.size();
  TACC_KERNEL_CHECK(dtable.dims.rank() == 2 && ids.dtype == DType::kI32 && dy.size() == tokens * n);
  TACC_KERNEL_CHECK(dtable.dtype == DType::kF32 || dtable.dtype == DType::kF64);
  const simd::Loops& loops = simd::BestLoops();
  const int64_t element = SizeOf(dtable.dtype);
  ParallelFor(dtable.bytes(), 1 << 18,
              [&](int64_t begin, int64_t end) { std::memset(dtable.as<char>() + begin, 0, end - begin); });
  // Threads take columns, so each row is summed in the order of the tokens and frequent ids cannot unbalance them.
  ParallelFor(n, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < tokens; ++i) {
      const int64_t id = ids.as<int32_t>()[i] - offset;
      if (id < 0 || id >= vocabulary) continue;
      char* target = dtable.as<char>() + (id * n + begin) * element;
      if (dtable.dtype == DType::kF64) {
        loops.accumulate_f64(reinterpret_cast<double*>(target), In(dy), i * n + begin, end - begin);
      } else {
        loops.accumulate_f32(reinterpret_cast<float*>(target), In(dy), i * n + begin, end - begin);
      }
    }
  });
}

}  // namespace

const EmbeddingKernels kEmbedding = {
    .Embedding = Embedding,
    .EmbeddingGrad = EmbeddingGrad,
};

}  // namespace tacc::kernels::cpu
