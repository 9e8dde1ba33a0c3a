// The products of experts: slots sorted by expert, then tiles of one expert's rows in shared memory; on tensor cores
// where they take the operands (expert_tensor.h). Sums are in f32 (f64), in an order that the ids decide.
#include <algorithm>

#include "kernels/contract/expert.h"
#include "kernels/cuda/expert_tensor.h"
#include "kernels/cuda/id_order.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/pack.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/workspace.h"

namespace tacc::kernels::cuda {
namespace {

constexpr int kTile = 32;             // rows and columns of a tile of results
constexpr int kDepth = 32;            // terms that are in shared memory at a time
constexpr int kPitch = 36;            // of a row of kTile there; keeps packs of 4 aligned
constexpr int kMicro = 4;             // a thread has kMicro x kMicro results
constexpr int kTileTeam = 64;         // (kTile / kMicro)^2
constexpr int64_t kSumColumns = 256;  // of y, whose summands are held at a time

template <typename T>
constexpr int64_t kTileBytes = 2 * kDepth * kPitch * static_cast<int64_t>(sizeof(T));

int64_t NumTiles(int64_t n) { return (n + kTile - 1) / kTile; }

// Which index of an operand of a tile runs along memory.
enum class Inner { kTerm, kRow };

// One side of a product: element (row, term) is data[base(row) + term] with kTerm, data[base(term) + row] with kRow,
// and 0 for what is not below `rows`.
template <typename Base>
struct Operand {
  AnyIn data;
  Inner inner;
  int64_t rows;
  Base base;

  // to[term * kPitch + row] for the kDepth terms from `first` on, in packs of N along memory.
  template <int N, typename T>
  TACC_DEVICE void Stage(const Team& team, int64_t first, int64_t depth, T* to) const {
    constexpr int kPacks = kTile / N;
    const bool by_term = inner == Inner::kTerm;
    const int64_t num_outer = by_term ? rows : depth - first, num_along = by_term ? depth - first : rows;
    for (int e = team.rank(); e < kTile * kPacks; e += kTileTeam) {
      const int outer = e / kPacks, along = e % kPacks * N;
      T values[N] = {};
      if (outer < num_outer && along < num_along)
        Load<N>(data, by_term ? base(outer) + first + along : base(first + outer) + along, values);
      TACC_UNROLL
      for (int j = 0; j < N; ++j) to[by_term ? (along + j) * kPitch + outer : outer * kPitch + along + j] = values[j];
    }
  }
};

// store(i, j, sums) for each i in [0, kTile) and each j of every kMicro-th: sums[c] = sum over k < depth of
// a(i, k) b(j + c, k). By a team of kTileTeam with kTileBytes<T>; `depth` is the same for all threads.
template <int N, typename T, typename A, typename B, typename Store>
TACC_DEVICE void MultiplyTile(const Team& team, int64_t depth, const A& a, const B& b, Store store) {
  T *left = team.shared<T>(), *right = left + kDepth * kPitch;
  const int row = team.rank() / (kTile / kMicro) * kMicro, column = team.rank() % (kTile / kMicro) * kMicro;
  T sums[kMicro][kMicro] = {};
  for (int64_t first = 0; first < depth; first += kDepth) {
    team.Sync();  // The last terms have been read.
    a.template Stage<N>(team, first, depth, left);
    b.template Stage<N>(team, first, depth, right);
    team.Sync();
    for (int k = 0; k < kDepth; ++k) {
      T u[kMicro], v[kMicro];
      LoadPacked<kMicro, T>(left, k * kPitch + row, u);
      LoadPacked<kMicro, T>(right, k * kPitch + column, v);
      TACC_UNROLL
      for (int i = 0; i < kMicro; ++i) {
        TACC_UNROLL
        for (int j = 0; j < kMicro; ++j) sums[i][j] += u[i] * v[j];
      }
    }
  }
  TACC_UNROLL
  for (int i = 0; i < kMicro; ++i) store(row + i, column, sums[i]);
}
static_assert(kTile == kDepth && kTileTeam == kTile / kMicro * (kTile / kMicro) && kTile % kPack == 0);

// y[i + c] = values[c] for the `count` first of kMicro; with packs all of them, or none.
template <int N, typename T>
TACC_DEVICE void StoreMicro(const AnyOut& y, int64_t i, int64_t count, const T* values) {
  if constexpr (N > 1) {
    if (count > 0) Store<kMicro>(y, i, values);
  } else {
    TACC_UNROLL
    for (int c = 0; c < kMicro; ++c) {
      if (c < count) y.Store(i + c, values[c]);
    }
  }
}

// Where the row of x (or a, or b) of the slot at a place begins.
struct RowOfSlot {
  const int32_t* slots;
  uint32_t slots_a_row;
  int64_t length, first;  // of a row; its element to begin with

  TACC_DEVICE int64_t operator()(int64_t place) const {
    return static_cast<uint32_t>(slots[place]) / slots_a_row * length + first;
  }
};
struct RowOfMatrix {
  int64_t first, length;

  TACC_DEVICE int64_t operator()(int64_t row) const { return first + row * length; }
};

// A tile of y: up to kTile slots of one expert by kTile of columns [first_column, first_column + columns), written at
// row `slot` of y, which is that wide. Slots of no expert get zeros.
template <typename T, int N>
struct ExpertTile {
  AnyIn x, w;
  AnyOut y;
  const int32_t *slots, *starts;
  int64_t num_experts, n, m, slots_a_row, first_column, columns;
  ExpertWeights kind;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const int64_t num_column_tiles = (columns + kTile - 1) / kTile, column = index % num_column_tiles * kTile;
    int64_t tile = index / num_column_tiles, expert = 0;
    for (; expert <= num_experts; ++expert) {
      const int64_t tiles = (starts[expert + 1] - starts[expert] + kTile - 1) / kTile;
      if (tile < tiles) break;
      tile -= tiles;
    }
    if (expert > num_experts) return;
    const int32_t* own = slots + starts[expert] + tile * kTile;
    const int64_t rows = starts[expert + 1] - starts[expert] - tile * kTile, width = columns - column;
    const int64_t from = first_column + column, matrix = expert * m * n;
    const bool plain = kind == ExpertWeights::kPlain;
    const Operand<RowOfSlot> left{x, Inner::kTerm, rows, {own, static_cast<uint32_t>(slots_a_row), n, 0}};
    const Operand<RowOfMatrix> right{
        w, plain ? Inner::kTerm : Inner::kRow, width, {matrix + (plain ? from * n : from), plain ? n : m}};
    MultiplyTile<N, T>(team, expert < num_experts ? n : 0, left, right, [&](int i, int j, const T* sums) {
      if (i < rows) StoreMicro<N>(y, static_cast<int64_t>(own[i]) * columns + column + j, width - j, sums);
    });
  }
};

// y[t, first_column + c] = sum over a token's slots of summands[slot, c].
template <typename T>
struct SumSlots {
  AnyIn summands;
  AnyOut y;
  int64_t slots_a_token, first_column, columns, m;

  TACC_DEVICE void operator()(int64_t i) const {
    const int64_t token = i / columns, column = i % columns;
    T sum = 0;
    for (int64_t slot = token * slots_a_token; slot < (token + 1) * slots_a_token; ++slot)
      sum += summands.Load<T>(slot * columns + column);
    y.Store(token * m + first_column + column, sum);
  }
};

// A tile of dw[expert].
template <typename T, int N>
struct ExpertGradTile {
  AnyIn a, b;
  AnyOut dw;
  const int32_t *slots, *starts;
  int64_t n, m, slots_a_row_a, slots_a_row_b;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const int64_t tiles_n = (n + kTile - 1) / kTile, tiles_m = (m + kTile - 1) / kTile;
    const int64_t column = index % tiles_n * kTile, row = index / tiles_n % tiles_m * kTile;
    const int64_t expert = index / tiles_n / tiles_m;
    const int32_t* own = slots + starts[expert];
    const Operand<RowOfSlot> left{a, Inner::kRow, m - row, {own, static_cast<uint32_t>(slots_a_row_a), m, row}};
    const Operand<RowOfSlot> right{b, Inner::kRow, n - column, {own, static_cast<uint32_t>(slots_a_row_b), n, column}};
    MultiplyTile<N, T>(team, starts[expert + 1] - starts[expert], left, right, [&](int i, int j, const T* sums) {
      if (row + i < m) StoreMicro<N>(dw, (expert * m + row + i) * n + column + j, n - column - j, sums);
    });
  }
};

// Slots that share a row of x.
int64_t SlotsARow(const TensorView& x, const TensorView& ids) {
  const int64_t slots = x.dims.rank() == ids.dims.rank() ? ids.row_length() : 1;
  TACC_KERNEL_CHECK(ids.dtype == DType::kI32 && x.num_rows() * slots == ids.size());
  return slots;
}

void ExpertMatmul(const TensorView& x, const TensorView& ids, const TensorView& w, ExpertWeights kind, int64_t offset,
                  const TensorView& y) {
  const int64_t num_experts = w.dims[0], n = x.row_length(), m = y.row_length(), slots = ids.size();
  const int64_t slots_a_row = SlotsARow(x, ids), slots_a_sum = SlotsARow(y, ids);
  TACC_KERNEL_CHECK(w.dims == (kind == ExpertWeights::kPlain ? Dims{num_experts, m, n} : Dims{num_experts, n, m}));
  const IdOrder order(ids, offset, num_experts);
  const int64_t num_row_tiles = slots / kTile + num_experts + 1;  // at most
  const SortedSlots sorted{order.tokens(), order.starts(), slots, num_experts};
  const auto multiply = [&](const TensorView& to, int64_t first_column, int64_t columns) {
    if (TensorCoresTake({x, w}, to, n, m, num_experts))
      return ExpertMatmulOnTensorCores(sorted, x, slots_a_row, w, kind, first_column, to);
    WithPacks(n % kPack == 0 && m % kPack == 0, {x, w, to}, [&]<typename T, typename N>(T, N) {
      ForEachTeam<kTileTeam>(num_row_tiles * NumTiles(columns), kTileTeam, kTileBytes<T>,
                             ExpertTile<T, N::value>{In(x), In(w), Out(to), order.tokens(), order.starts(), num_experts,
                                                     n, m, slots_a_row, first_column, columns, kind});
    });
  };
  if (slots_a_sum == 1) return multiply({y.data, y.dtype, {slots, m}}, 0, m);
  const Scratch summands(slots * std::min(m, kSumColumns) * SizeOf(x.dtype));
  for (int64_t first = 0; first < m; first += kSumColumns) {
    const int64_t columns = std::min(kSumColumns, m - first);
    multiply({summands.data(), x.dtype, {slots, columns}}, first, columns);
    WithComputeType({x, y}, [&]<typename T>(T) {
      ForEach(y.num_rows() * columns, SumSlots<T>{{summands.data(), x.dtype}, Out(y), slots_a_sum, first, columns, m});
    });
  }
}

void ExpertMatmulGrad(const TensorView& a, const TensorView& b, const TensorView& ids, int64_t offset,
                      const TensorView& dw) {
  const int64_t num_experts = dw.dims[0], m = a.row_length(), n = b.row_length();
  const int64_t slots_a_row_a = SlotsARow(a, ids), slots_a_row_b = SlotsARow(b, ids);
  TACC_KERNEL_CHECK(dw.dims == (Dims{num_experts, m, n}) && a.dtype == b.dtype);
  const IdOrder order(ids, offset, num_experts);
  if (TensorCoresTake({a, b}, dw, n, m, num_experts)) {
    const SortedSlots sorted{order.tokens(), order.starts(), ids.size(), num_experts};
    return ExpertMatmulGradOnTensorCores(sorted, a, slots_a_row_a, b, slots_a_row_b, dw);
  }
  WithPacks(n % kPack == 0 && m % kPack == 0, {a, b, dw}, [&]<typename T, typename N>(T, N) {
    ForEachTeam<kTileTeam>(num_experts * NumTiles(m) * NumTiles(n), kTileTeam, kTileBytes<T>,
                           ExpertGradTile<T, N::value>{In(a), In(b), Out(dw), order.tokens(), order.starts(), n, m,
                                                       slots_a_row_a, slots_a_row_b});
  });
}

}  // namespace

int64_t ExpertMatmulWorkspaceBytes(int64_t slots, int64_t num_experts, int64_t features, DType dtype) {
  return IdOrderBytes(slots, num_experts) + slots * std::min(features, kSumColumns) * SizeOf(dtype);
}

const ExpertKernels kExpert = {
    .ExpertMatmul = ExpertMatmul,
    .ExpertMatmulGrad = ExpertMatmulGrad,
};

}  // namespace tacc::kernels::cuda
