#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/collective.h"
#include "kernels/cuda/launch/pack.h"
#include "kernels/cuda/launch/strided.h"

#ifndef __CUDACC__
#include <atomic>
#endif

namespace tacc::kernels::cuda {
namespace {

// T: what sums are kept in; N: elements that a thread takes.
template <typename T, int N>
struct SumElements {
  Summands summands;
  int64_t first;  // element
  AnyOut y;

  TACC_DEVICE void operator()(int64_t index) const {
    const int64_t i = first + index * N;
    T sum[N] = {};
    for (int k = 0; k < summands.n; ++k) {
      const void* data = k == summands.own_index
                             ? summands.own
                             : static_cast<const char*>(summands.others) + k * summands.stride_bytes;
      const AnyIn x{data, summands.dtype};
      if (k == 0) {
        Load<N>(x, i, sum);
        continue;
      }
      T values[N];
      Load<N>(x, i, values);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += values[j];
    }
    Store<N>(y, i, sum);
  }
};

template <typename T, int N>
void Sum(const Summands& summands, int64_t count, AnyOut y) {
  const int64_t packs = count / N;
  ForEach(packs, SumElements<T, N>{summands, 0, y});
  ForEach(count - packs * N, SumElements<T, 1>{summands, packs * N, y});
}

bool IsAligned(const void* data, int64_t unit) { return reinterpret_cast<uintptr_t>(data) % unit == 0; }

// Runs as the copy of a part that begins at unit `begin` sees them.
struct UnitRuns {
  char* data;
  int64_t begin, run_units, stride_bytes;
};

template <typename Unit>
struct CopyUnits {
  UnitRuns from, to;
  bool narrow;  // every index fits 32 bits

  TACC_DEVICE Unit* At(const UnitRuns& runs, int64_t i) const {
    const Quotient at = Divide(narrow, runs.begin + i, runs.run_units);
    return reinterpret_cast<Unit*>(runs.data + at.quotient * runs.stride_bytes) + at.rest;
  }
  TACC_DEVICE void operator()(int64_t i) const { *At(to, i) = *At(from, i); }
};

// Copies by units of this size if everything is a multiple of it.
template <typename Unit>
bool CopyBy(const Runs& from, int64_t from_begin, const Runs& to, int64_t to_begin, int64_t count) {
  constexpr int64_t kUnit = sizeof(Unit);
  const int64_t all =
      from.run_bytes | from.stride_bytes | from_begin | to.run_bytes | to.stride_bytes | to_begin | count;
  if (all % kUnit != 0 || !IsAligned(from.data, kUnit) || !IsAligned(to.data, kUnit)) return false;
  int64_t largest = 0;
  const auto in_units = [&](const Runs& runs, int64_t begin) {
    // What lies behind the part is nobody's concern: a run may as well end with it.
    const int64_t end = begin + count, run = std::min(runs.run_bytes, end);
    largest = std::max(largest, end);
    return UnitRuns{runs.data, begin / kUnit, run / kUnit, runs.stride_bytes};
  };
  const UnitRuns units_from = in_units(from, from_begin), units_to = in_units(to, to_begin);
  ForEach(count / kUnit, CopyUnits<Unit>{units_from, units_to, largest / kUnit <= INT32_MAX});
  return true;
}

// The host sees what was written before if it sees what is written after.
TACC_DEVICE void PublishInOrder() {
#ifdef __CUDACC__
  __threadfence_system();
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

struct WriteBegin {
  uint32_t call;
  volatile Progress* progress;
  TACC_DEVICE void operator()(int64_t) const {
    progress->current = call;
    PublishInOrder();
    progress->num_begun = progress->num_begun + 1;
  }
};

struct WriteEnd {
  volatile Progress* progress;
  TACC_DEVICE void operator()(int64_t) const { progress->num_ended = progress->num_ended + 1; }
};

struct WritePlace {
  uint32_t value;
  volatile uint32_t* place;
  TACC_DEVICE void operator()(int64_t) const { *place = value; }
};

}  // namespace

void SumInOrder(const Summands& summands, int64_t count, void* y, DType y_dtype) {
  TACC_KERNEL_CHECK(summands.n > 0 && summands.own_index >= 0 && summands.own_index < summands.n);
  TACC_KERNEL_CHECK(summands.dtype != DType::kBool);
  TACC_KERNEL_CHECK(summands.dtype == y_dtype || (IsFloat(summands.dtype) && IsFloat(y_dtype)));
  const AnyOut out{y, y_dtype};
  if (!IsFloat(summands.dtype)) return Sum<int64_t, 1>(summands, count, out);  // Narrowed, it wraps as its own type.
  if (summands.dtype == DType::kF64) return Sum<double, 1>(summands, count, out);
  const bool is_aligned = IsAligned(summands.own, kPackAlignment) && IsAligned(summands.others, kPackAlignment) &&
                          summands.stride_bytes % kPackAlignment == 0 && IsAligned(y, kPackAlignment);
  if (is_aligned) return Sum<float, kPack>(summands, count, out);
  Sum<float, 1>(summands, count, out);
}

void CopyRuns(const Runs& from, int64_t from_begin, const Runs& to, int64_t to_begin, int64_t count) {
  if (count <= 0) return;
  TACC_KERNEL_CHECK(from.run_bytes > 0 && to.run_bytes > 0);
  if (CopyBy<Bytes16>(from, from_begin, to, to_begin, count)) return;
  if (CopyBy<uint64_t>(from, from_begin, to, to_begin, count)) return;
  if (CopyBy<uint32_t>(from, from_begin, to, to_begin, count)) return;
  if (CopyBy<uint16_t>(from, from_begin, to, to_begin, count)) return;
  TACC_KERNEL_CHECK(CopyBy<uint8_t>(from, from_begin, to, to_begin, count));
}

void PublishBegin(uint32_t call, Progress* progress) { ForEach(1, WriteBegin{call, progress}); }

void PublishEnd(Progress* progress) { ForEach(1, WriteEnd{progress}); }

void PublishPlace(uint32_t value, uint32_t* place) { ForEach(1, WritePlace{value, place}); }

}  // namespace tacc::kernels::cuda
