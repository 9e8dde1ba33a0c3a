#include "kernels/contract/dispatch.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

// Sizes of groups and buffers: places [B,S,K], buffers [B,G,D,C,...].
struct Groups {
  int64_t num_groups, slots, tokens;  // of all samples; of a group
  int64_t slots_a_token, destinations, capacity;

  Groups(const TensorView& places, const TensorView& buffers)
      : num_groups(buffers.dims[0] * buffers.dims[1]),
        slots(buffers.dims[1] == 0 ? 0 : places.dims[1] / buffers.dims[1] * places.dims[2]),
        tokens(buffers.dims[1] == 0 ? 0 : places.dims[1] / buffers.dims[1]),
        slots_a_token(places.dims[2]),
        destinations(buffers.dims[2]),
        capacity(buffers.dims[3]) {
    TACC_KERNEL_CHECK(places.dtype == DType::kI32 && places.dims.rank() == 3 && places.dims[0] == buffers.dims[0] &&
                      num_groups * slots == places.size());
  }
  int64_t rows() const { return destinations * capacity; }
};

void DispatchSlots(const TensorView& ids, int64_t num_experts, const TensorView& places, const TensorView& row_ids,
                   const TensorView& overflow) {
  const Groups g(places, row_ids);
  TACC_KERNEL_CHECK(ids.dims == places.dims && ids.dtype == DType::kI32 && row_ids.dtype == DType::kI32 &&
                    g.destinations > 0 && num_experts % g.destinations == 0);
  const Scratch memory(g.destinations * sizeof(int64_t));
  int64_t* used = static_cast<int64_t*>(memory.data());
  int32_t* experts = row_ids.as<int32_t>();
  std::fill(experts, experts + row_ids.size(), -1);
  int64_t dropped = 0;
  for (int64_t group = 0; group < g.num_groups; ++group) {
    std::fill(used, used + g.destinations, 0);
    for (int64_t slot = group * g.slots; slot < (group + 1) * g.slots; ++slot) {
      const int32_t id = ids.as<int32_t>()[slot];
      int32_t& place = places.as<int32_t>()[slot];
      place = -1;
      if (id < 0 || id >= num_experts) continue;
      const int64_t d = id / (num_experts / g.destinations);
      if (used[d] == g.capacity) {
        ++dropped;
        continue;
      }
      place = static_cast<int32_t>(d * g.capacity + used[d]++);
      experts[group * g.rows() + place] = id;
    }
  }
  WriteScalar(static_cast<double>(dropped), overflow);
}

void Dispatch(const TensorView& x, const TensorView& places, const TensorView& rows) {
  const Groups g(places, rows);
  const int64_t n = x.row_length(), bytes = n * SizeOf(x.dtype), slots_a_row = x.dims.rank() == 4 ? 1 : g.slots_a_token;
  TACC_KERNEL_CHECK(x.dtype == rows.dtype && rows.row_length() == n && x.num_rows() * slots_a_row == places.size());
  ParallelFor(g.num_groups, 1, [&](int64_t first, int64_t limit) {
    for (int64_t group = first; group < limit; ++group) {
      char* buffers = rows.as<char>() + group * g.rows() * bytes;
      std::memset(buffers, 0, g.rows() * bytes);
      for (int64_t slot = group * g.slots; slot < (group + 1) * g.slots; ++slot) {
        const int64_t place = places.as<int32_t>()[slot];
        if (place < 0 || place >= g.rows()) continue;
        std::memcpy(buffers + place * bytes, x.as<char>() + slot / slots_a_row * bytes, bytes);
      }
    }
  });
}

void Combine(const TensorView& rows, const TensorView& places, const TensorView& y) {
  const Groups g(places, rows);
  const bool sums = y.dims.rank() == 3;
  const int64_t n = y.row_length(), slots_a_row = sums ? g.slots_a_token : 1;
  const int64_t row_bytes = n * SizeOf(rows.dtype), y_bytes = n * SizeOf(y.dtype);
  TACC_KERNEL_CHECK(rows.row_length() == n && y.num_rows() * slots_a_row == places.size());
  TACC_KERNEL_CHECK(sums ? y.dtype == DType::kF32 || y.dtype == DType::kF64 : y.dtype == rows.dtype);
  const simd::Loops& loops = simd::BestLoops();
  ParallelFor(y.num_rows(), 1 + 16384 / (n + 1), [&](int64_t first, int64_t limit) {
    for (int64_t i = first; i < limit; ++i) {
      char* target = y.as<char>() + i * y_bytes;
      std::memset(target, 0, y_bytes);
      for (int64_t slot = i * slots_a_row; slot < (i + 1) * slots_a_row; ++slot) {
        const int64_t place = places.as<int32_t>()[slot];
        if (place < 0 || place >= g.rows()) continue;
        const int64_t row = slot / g.slots * g.rows() + place;
        if (!sums) {
          std::memcpy(target, rows.as<char>() + row * row_bytes, row_bytes);
        } else if (y.dtype == DType::kF64) {
          loops.accumulate_f64(reinterpret_cast<double*>(target), In(rows), row * n, n);
        } else {
          loops.accumulate_f32(reinterpret_cast<float*>(target), In(rows), row * n, n);
        }
      }
    }
  });
}

}  // namespace

const DispatchKernels kDispatch = {
    .DispatchSlots = DispatchSlots,
    .Dispatch = Dispatch,
    .Combine = Combine,
};

}  // namespace tacc::kernels::cpu
