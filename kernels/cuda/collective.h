// What collectives between GPUs need beside messages.
#ifndef TACC_KERNELS_CUDA_COLLECTIVE_H_
#define TACC_KERNELS_CUDA_COLLECTIVE_H_

#include <cstdint>

#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

// n arrays of elements of one dtype: number `own_index` at `own`, number k elsewise at `others` + k * stride_bytes.
struct Summands {
  const void* others = nullptr;
  int64_t stride_bytes = 0;
  const void* own = nullptr;
  int own_index = 0;
  int n = 0;
  DType dtype = DType::kF32;
};

// y[i] = the sum of the summands' elements i, for `count` elements, added in the order of their numbers in f32 (f64 for
// f64; integers exactly), and rounded to y's dtype once. Integers go into their own type only. y may lie on a summand
// with elements of its size.
void SumInOrder(const Summands& summands, int64_t count, void* y, DType y_dtype);

// Pieces of `run_bytes` whose starts are `stride_bytes` apart: byte b lies at data + b / run_bytes * stride_bytes +
// b % run_bytes.
struct Runs {
  char* data = nullptr;
  int64_t run_bytes = 0;
  int64_t stride_bytes = 0;
};

// Copies the bytes [from_begin, from_begin + count) of `from` to those from `to_begin` on of `to`; they do not overlap.
void CopyRuns(const Runs& from, int64_t from_begin, const Runs& to, int64_t to_begin, int64_t count);

// Where a queue of calls is, in memory that the host reads while the device runs: words of 4 bytes, of which nobody
// sees a half. Counts wrap.
struct Progress {
  uint32_t num_begun = 0;
  uint32_t current = 0;  // The call begun last.
  uint32_t num_ended = 0;
};

// Queued: `progress` says that `call` has begun, or that the call begun last has ended.
void PublishBegin(uint32_t call, Progress* progress);
void PublishEnd(Progress* progress);
// Queued: *place = value, in such memory.
void PublishPlace(uint32_t value, uint32_t* place);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_COLLECTIVE_H_
