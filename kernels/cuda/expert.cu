// The products of experts: slots sorted by expert, then tiles of one expert's rows in shared memory. Sums are in f32
// (f64), in an order that the ids decide.
#include <algorithm>

#include "kernels/cuda/expert.h"
#include "kernels/cuda/id_order.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/scratch.h"

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

// AnyIn of a fixed type.
template <typename E>
struct TypedIn {
  const E* data;

  template <typename T>
  TACC_DEVICE T Load(int64_t i) const {
    return Convert<T>(data[i]);
  }
};

// Which index runs along memory, so that a team reads neighbours.
enum class Inner { kTerm, kRow };

// store(i, j, sum over k < depth of a(i, k) b(j, k)) for i, j in [0, kTile), by a team of kTileTeam with kTileBytes<T>;
// `depth` is the same for all threads.
template <typename T, typename A, typename B, typename Store>
TACC_DEVICE void MultiplyTile(Team& team, int64_t depth, Inner inner_a, A a, Inner inner_b, B b, Store store) {
  T *left = team.shared<T>(), *right = left + kDepth * kPitch;
  const int row = team.rank() / (kTile / kMicro) * kMicro, column = team.rank() % (kTile / kMicro) * kMicro;
  T sums[kMicro][kMicro] = {};
  for (int64_t first = 0; first < depth; first += kDepth) {
    team.Sync();  // The last terms have been read.
    for (int e = team.rank(); e < kTile * kDepth; e += kTileTeam) {
      const int outer = e / kTile, inner = e % kTile;
      const int row_a = inner_a == Inner::kTerm ? outer : inner, term_a = inner_a == Inner::kTerm ? inner : outer;
      const int row_b = inner_b == Inner::kTerm ? outer : inner, term_b = inner_b == Inner::kTerm ? inner : outer;
      left[term_a * kPitch + row_a] = first + term_a < depth ? a(row_a, first + term_a) : T(0);
      right[term_b * kPitch + row_b] = first + term_b < depth ? b(row_b, first + term_b) : T(0);
    }
    team.Sync();
    for (int k = 0; k < kDepth; ++k) {
      const Packed<T, kMicro> u = *reinterpret_cast<const Packed<T, kMicro>*>(left + k * kPitch + row);
      const Packed<T, kMicro> v = *reinterpret_cast<const Packed<T, kMicro>*>(right + k * kPitch + column);
      TACC_UNROLL
      for (int i = 0; i < kMicro; ++i) {
        TACC_UNROLL
        for (int j = 0; j < kMicro; ++j) sums[i][j] += u.at[i] * v.at[j];
      }
    }
  }
  TACC_UNROLL
  for (int i = 0; i < kMicro; ++i) {
    TACC_UNROLL
    for (int j = 0; j < kMicro; ++j) store(row + i, column + j, sums[i][j]);
  }
}
static_assert(kTile == kDepth && kTileTeam == kTile / kMicro * (kTile / kMicro));

// A tile of y: up to kTile slots of one expert by kTile of columns [first_column, first_column + columns), written at
// row `slot` of y, which is that wide. Slots of no expert get zeros.
template <typename T, typename X>
struct ExpertTile {
  X x, w;
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
    const int64_t first = starts[expert] + tile * kTile, left = starts[expert + 1] - first;
    const int rows = static_cast<int>(left < kTile ? left : kTile);
    const int64_t width = columns - column, matrix = expert * m * n, from = first_column + column;
    const int64_t step_m = kind == ExpertWeights::kPlain ? n : 1, step_n = kind == ExpertWeights::kPlain ? 1 : m;
    MultiplyTile<T>(
        team, expert < num_experts ? n : 0, Inner::kTerm,
        [&](int i, int64_t k) { return i < rows ? x.template Load<T>(slots[first + i] / slots_a_row * n + k) : T(0); },
        kind == ExpertWeights::kPlain ? Inner::kTerm : Inner::kRow,
        [&](int j, int64_t k) {
          return j < width ? w.template Load<T>(matrix + (from + j) * step_m + k * step_n) : T(0);
        },
        [&](int i, int j, T sum) {
          if (i < rows && j < width) y.Store(slots[first + i] * columns + column + j, sum);
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
template <typename T, typename X>
struct ExpertGradTile {
  X a, b;
  AnyOut dw;
  const int32_t *slots, *starts;
  int64_t n, m, slots_a_row_a, slots_a_row_b;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const int64_t tiles_n = (n + kTile - 1) / kTile, tiles_m = (m + kTile - 1) / kTile;
    const int64_t column = index % tiles_n * kTile, row = index / tiles_n % tiles_m * kTile;
    const int64_t expert = index / tiles_n / tiles_m, first = starts[expert];
    MultiplyTile<T>(
        team, starts[expert + 1] - first, Inner::kRow,
        [&](int i, int64_t k) {
          return row + i < m ? a.template Load<T>(slots[first + k] / slots_a_row_a * m + row + i) : T(0);
        },
        Inner::kRow,
        [&](int j, int64_t k) {
          return column + j < n ? b.template Load<T>(slots[first + k] / slots_a_row_b * n + column + j) : T(0);
        },
        [&](int i, int j, T sum) {
          if (row + i < m && column + j < n) dw.Store((expert * m + row + i) * n + column + j, sum);
        });
  }
};

// Calls f(T(), In of a, In of b) with typed inputs where both are bf16, as in training.
template <typename F>
void WithInputs(const TensorView& a, const TensorView& b, F f) {
  if (a.dtype == DType::kBF16 && b.dtype == DType::kBF16)
    return f(float(), TypedIn<BFloat16>{a.as<BFloat16>()}, TypedIn<BFloat16>{b.as<BFloat16>()});
  WithComputeType({a, b}, [&](auto zero) { f(zero, In(a), In(b)); });
}

// Slots that share a row of x.
int64_t SlotsARow(const TensorView& x, const TensorView& ids) {
  const int64_t slots = x.dims.rank() == ids.dims.rank() ? ids.row_length() : 1;
  TACC_KERNEL_CHECK(ids.dtype == DType::kI32 && x.num_rows() * slots == ids.size());
  return slots;
}

}  // namespace

int64_t ExpertMatmulWorkspaceBytes(int64_t slots, int64_t num_experts, int64_t features, DType dtype) {
  return IdOrderBytes(slots, num_experts) + slots * std::min(features, kSumColumns) * SizeOf(dtype);
}

void ExpertMatmul(const TensorView& x, const TensorView& ids, const TensorView& w, ExpertWeights kind, int64_t offset,
                  const TensorView& y) {
  const int64_t num_experts = w.dims[0], n = x.row_length(), m = y.row_length(), slots = ids.size();
  const int64_t slots_a_row = SlotsARow(x, ids), slots_a_sum = SlotsARow(y, ids);
  TACC_KERNEL_CHECK(w.dims == (kind == ExpertWeights::kPlain ? Dims{num_experts, m, n} : Dims{num_experts, n, m}));
  const IdOrder order(ids, offset, num_experts);
  const int64_t num_row_tiles = slots / kTile + num_experts + 1;  // at most
  const auto multiply = [&](AnyOut to, int64_t first_column, int64_t columns) {
    WithInputs(x, w, [&]<typename T, typename X>(T, X in, X weights) {
      ForEachTeam<kTileTeam>(num_row_tiles * NumTiles(columns), kTileTeam, kTileBytes<T>,
                             ExpertTile<T, X>{in, weights, to, order.tokens(), order.starts(), num_experts, n, m,
                                              slots_a_row, first_column, columns, kind});
    });
  };
  if (slots_a_sum == 1) return multiply(Out(y), 0, m);
  const Scratch summands(slots * std::min(m, kSumColumns) * SizeOf(x.dtype));
  for (int64_t first = 0; first < m; first += kSumColumns) {
    const int64_t columns = std::min(kSumColumns, m - first);
    multiply({summands.data(), x.dtype}, first, columns);
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
  WithInputs(a, b, [&]<typename T, typename X>(T, X left, X right) {
    ForEachTeam(
        num_experts * NumTiles(m) * NumTiles(n), kTileTeam, kTileBytes<T>,
        ExpertGradTile<T, X>{left, right, Out(dw), order.tokens(), order.starts(), n, m, slots_a_row_a, slots_a_row_b});
  });
}

}  // namespace tacc::kernels::cuda
