#include "kernels/contract/dispatch.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/pack.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/workspace.h"

namespace tacc::kernels::cuda {
namespace {

constexpr int kChunk = 256;  // slots that a team places at a time,
constexpr int kLine = 32;    // counted in lines of so many
constexpr int kLines = kChunk / kLine;
constexpr int kSumTeam = 256;

// Sizes of groups and buffers: places [B,S,K], buffers [B,G,D,C,...].
struct Groups {
  int64_t num_groups, slots;  // of all samples; of a group
  int64_t slots_a_token, destinations, capacity, rows;

  Groups(const TensorView& places, const TensorView& buffers)
      : num_groups(buffers.dims[0] * buffers.dims[1]),
        slots(buffers.dims[1] == 0 ? 0 : places.dims[1] / buffers.dims[1] * places.dims[2]),
        slots_a_token(places.dims[2]),
        destinations(buffers.dims[2]),
        capacity(buffers.dims[3]),
        rows(destinations * capacity) {
    TACC_KERNEL_CHECK(places.dtype == DType::kI32 && places.dims.rank() == 3 && places.dims[0] == buffers.dims[0] &&
                      num_groups * slots == places.size());
  }
};

// A group's slots, kChunk at a time: those of one destination keep their order.
struct PlaceSlotsOfGroup {
  Groups g;
  const int32_t* ids;
  int64_t num_experts;
  int32_t *places, *row_ids;
  int64_t* dropped;  // [num_groups]

  TACC_DEVICE void operator()(Team& team, int64_t group) const {
    // Of a slot; how many slots a destination has, and of each line: [kLines, destinations].
    int32_t *destination = team.shared<int32_t>(), *used = destination + kChunk, *of_lines = used + g.destinations;
    const int64_t experts_each = num_experts / g.destinations;
    for (int64_t d = team.rank(); d < g.destinations; d += team.size()) used[d] = 0;
    int64_t num_dropped = 0;
    for (int64_t base = 0; base < g.slots; base += kChunk) {
      const int n = static_cast<int>(g.slots - base < kChunk ? g.slots - base : kChunk);
      const int64_t first = group * g.slots + base;
      for (int i = team.rank(); i < n; i += team.size()) {
        const int32_t id = ids[first + i];
        destination[i] = id < 0 || id >= num_experts ? -1 : static_cast<int32_t>(id / experts_each);
      }
      team.Sync();
      for (int64_t t = team.rank(); t < kLines * g.destinations; t += team.size()) {
        const int begin = static_cast<int>(t / g.destinations) * kLine, end = begin + kLine < n ? begin + kLine : n;
        const int32_t d = static_cast<int32_t>(t % g.destinations);
        int32_t count = 0;
        for (int i = begin; i < end; ++i) count += destination[i] == d;
        of_lines[t] = count;
      }
      team.Sync();
      for (int i = team.rank(); i < n; i += team.size()) {
        const int32_t d = destination[i];
        int64_t row = d < 0 ? g.capacity : used[d];
        for (int line = 0; d >= 0 && line < i / kLine; ++line) row += of_lines[line * g.destinations + d];
        for (int j = i / kLine * kLine; j < i; ++j) row += destination[j] == d;
        const bool fits = d >= 0 && row < g.capacity;
        num_dropped += d >= 0 && !fits;
        places[first + i] = fits ? static_cast<int32_t>(d * g.capacity + row) : -1;
        if (fits) row_ids[group * g.rows + d * g.capacity + row] = ids[first + i];
      }
      team.Sync();
      for (int64_t d = team.rank(); d < g.destinations; d += team.size()) {
        for (int line = 0; line < kLines; ++line) used[d] += of_lines[line * g.destinations + d];
      }
      team.Sync();
    }
    team.Sync();
    for (int64_t row = team.rank(); row < g.rows; row += team.size()) {
      if (row % g.capacity >= used[row / g.capacity]) row_ids[group * g.rows + row] = -1;
    }
    num_dropped = team.Sum(num_dropped);
    if (team.rank() == 0) dropped[group] = num_dropped;
  }
};

struct SumDropped {
  const int64_t* dropped;
  int64_t num_groups;
  AnyOut overflow;

  TACC_DEVICE void operator()(Team& team, int64_t) const {
    int64_t sum = 0;
    for (int64_t group = team.rank(); group < num_groups; group += team.size()) sum += dropped[group];
    sum = team.Sum(sum);
    if (team.rank() == 0) overflow.Store(0, static_cast<double>(sum));
  }
};

// W: what is moved at a time.
template <typename W>
struct ClearWord {
  W* to;

  TACC_DEVICE void operator()(int64_t i) const { to[i] = W{}; }
};

template <typename W>
struct PlaceRow {
  Groups g;
  const W* x;
  const int32_t* places;
  W* rows;
  int64_t words, slots_a_row;

  TACC_DEVICE void operator()(Team& team, int64_t slot) const {
    const int64_t place = places[slot];
    if (place < 0 || place >= g.rows) return;
    const W* from = x + slot / slots_a_row * words;
    W* to = rows + (slot / g.slots * g.rows + place) * words;
    for (int64_t i = team.rank(); i < words; i += team.size()) to[i] = from[i];
  }
};

template <typename W>
void PlaceRows(const Groups& g, const TensorView& x, const TensorView& places, const TensorView& rows,
               int64_t slots_a_row) {
  const int64_t size = static_cast<int64_t>(sizeof(W)), words = x.row_length() * SizeOf(x.dtype) / size;
  ForEach(rows.bytes() / size, ClearWord<W>{rows.as<W>()});
  ForEachTeam(places.size(), TeamSize(words, 1), 0,
              PlaceRow<W>{g, x.as<W>(), places.as<int32_t>(), rows.as<W>(), words, slots_a_row});
}

template <typename T, int N>
struct CombineRow {
  Groups g;
  AnyIn rows;
  const int32_t* places;
  AnyOut y;
  int64_t n, slots_a_row;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    for (int64_t i = static_cast<int64_t>(team.rank()) * N; i < n; i += static_cast<int64_t>(team.size()) * N) {
      T sum[N] = {}, values[N];
      for (int64_t slot = row * slots_a_row; slot < (row + 1) * slots_a_row; ++slot) {
        const int64_t place = places[slot];
        if (place < 0 || place >= g.rows) continue;
        Load<N>(rows, (slot / g.slots * g.rows + place) * n + i, values);
        TACC_UNROLL
        for (int j = 0; j < N; ++j) sum[j] += values[j];
      }
      Store<N>(y, row * n + i, sum);
    }
  }
};

void DispatchSlots(const TensorView& ids, int64_t num_experts, const TensorView& places, const TensorView& row_ids,
                   const TensorView& overflow) {
  const Groups g(places, row_ids);
  TACC_KERNEL_CHECK(ids.dims == places.dims && ids.dtype == DType::kI32 && row_ids.dtype == DType::kI32 &&
                    g.destinations > 0 && num_experts % g.destinations == 0);
  const int64_t shared_bytes = (kChunk + (1 + kLines) * g.destinations) * static_cast<int64_t>(sizeof(int32_t));
  TACC_KERNEL_CHECK(shared_bytes <= kMaxSharedBytes && "at most 1,308 destinations");
  const Scratch memory(DispatchSlotsWorkspaceBytes(g.num_groups));
  int64_t* dropped = static_cast<int64_t*>(memory.data());
  ForEachTeam(
      g.num_groups, kChunk, shared_bytes,
      PlaceSlotsOfGroup{g, ids.as<int32_t>(), num_experts, places.as<int32_t>(), row_ids.as<int32_t>(), dropped});
  ForEachTeam(1, kSumTeam, 0, SumDropped{dropped, g.num_groups, Out(overflow)});
}

void Dispatch(const TensorView& x, const TensorView& places, const TensorView& rows) {
  const Groups g(places, rows);
  const int64_t slots_a_row = x.dims.rank() == 4 ? 1 : g.slots_a_token;
  TACC_KERNEL_CHECK(x.dtype == rows.dtype && IsFloat(x.dtype) && rows.row_length() == x.row_length() &&
                    x.num_rows() * slots_a_row == places.size());
  using Words = Packed<uint32_t, 4>;
  const auto is_aligned = [](const TensorView& t) { return reinterpret_cast<uintptr_t>(t.data) % sizeof(Words) == 0; };
  if (x.row_length() * SizeOf(x.dtype) % static_cast<int64_t>(sizeof(Words)) == 0 && is_aligned(x) && is_aligned(rows))
    return PlaceRows<Words>(g, x, places, rows, slots_a_row);
  PlaceRows<uint16_t>(g, x, places, rows, slots_a_row);
}

void Combine(const TensorView& rows, const TensorView& places, const TensorView& y) {
  const Groups g(places, rows);
  const bool sums = y.dims.rank() == 3;
  const int64_t n = y.row_length(), slots_a_row = sums ? g.slots_a_token : 1;
  TACC_KERNEL_CHECK(rows.row_length() == n && y.num_rows() * slots_a_row == places.size());
  TACC_KERNEL_CHECK(sums ? y.dtype == DType::kF32 || y.dtype == DType::kF64 : y.dtype == rows.dtype);
  WithPacks(n % kPack == 0, {rows, y}, [&]<typename T, typename N>(T, N) {
    ForEachTeam(y.num_rows(), TeamSize(n, N::value), 0,
                CombineRow<T, N::value>{g, In(rows), places.as<int32_t>(), Out(y), n, slots_a_row});
  });
}

}  // namespace

int64_t DispatchSlotsWorkspaceBytes(int64_t num_groups) { return num_groups * static_cast<int64_t>(sizeof(int64_t)); }

const DispatchKernels kDispatch = {
    .DispatchSlots = DispatchSlots,
    .Dispatch = Dispatch,
    .Combine = Combine,
};

}  // namespace tacc::kernels::cuda
