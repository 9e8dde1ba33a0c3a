// Tiles of 128 x 128 results, by teams of eight warps with 32 x 64 of them each. Operands go through shared memory 32
// terms at a time: while one half of it is multiplied the next terms are on their way from memory, in registers, and
// then fill the other half.
#include "kernels/cuda/expert_tensor.h"
#include "kernels/cuda/launch/pack.h"
#include "kernels/cuda/launch/tensor_core.h"

namespace tacc::kernels::cuda {
namespace {

constexpr int kTile = 128;
constexpr int kDepth = 32;
constexpr int kTeam = 256;
constexpr int kWarpRows = 32, kWarpColumns = 64;
constexpr int kRowTiles = kWarpRows / kMma, kColumnTiles = kWarpColumns / kMma;
constexpr int kWarpsAcross = kTile / kWarpColumns;
static_assert(kTile / kWarpRows * kWarpsAcross * kWarp == kTeam);

// Results of a warp on their way out: kMma of its rows at a time.
constexpr int kOutPitch = kWarpColumns + 4;
constexpr int64_t kOutBytes = int64_t{kTeam / kWarp} * kMma * kOutPitch * static_cast<int64_t>(sizeof(float));

int64_t NumTiles(int64_t n) { return (n + kTile - 1) / kTile; }

// Which index of an operand of a tile runs along memory.
enum class Inner { kTerm, kRow };

// One side of a product: element (row, term) is data[base(row) + term] with kTerm, data[base(term) + row] with kRow,
// and 0 for what is not below `rows`. A thread's part of the kDepth terms that are on their way.
template <typename E, Inner kInner, typename Base>
struct Operand {
  // In shared memory: kOuter rows of kAlong elements.
  static constexpr int kOuter = kInner == Inner::kTerm ? kTile : kDepth;
  static constexpr int kAlong = kInner == Inner::kTerm ? kDepth : kTile;
  static constexpr int kPitch = kAlong + kPack;  // Rows begin at other banks.
  static constexpr int kElements = kOuter * kPitch;
  static constexpr int kPacksAlong = kAlong / kPack;
  static constexpr int kOwn = kOuter * kPacksAlong / kTeam;
  static constexpr int kStep = kTeam / kPacksAlong;
  static_assert(kOwn * kTeam == kOuter * kPacksAlong && kPitch * sizeof(E) % 16 == 0);

  const E* data;
  int64_t rows, depth;
  Base base;
  int outer, along;
  int64_t at[kOwn];  // of the packs that Fetch reads next; -1: zeros
  Pack16 packs[kOwn];

  TACC_DEVICE Operand(const Team& team, const void* memory, int64_t num_rows, int64_t num_terms, const Base& where)
      : data(static_cast<const E*>(memory)),
        rows(num_rows),
        depth(num_terms),
        base(where),
        outer(team.rank() / kPacksAlong),
        along(team.rank() % kPacksAlong * kPack) {
    Find(0);
  }

  // Where the terms from `first` on lie; with kTerm the same for all but for `first`, and found once.
  TACC_DEVICE void Find(int64_t first) {
    if (kInner == Inner::kTerm && first > 0) return;
    TACC_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const int64_t index = outer + i * kStep + (kInner == Inner::kTerm ? 0 : first);
      const bool exists = kInner == Inner::kTerm ? index < rows : index < depth && along < rows;
      at[i] = exists ? base(index) + along : -1;
    }
  }
  // Asks for the terms from `first` on, which were found before.
  TACC_DEVICE void Fetch(int64_t first) {
    TACC_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const bool exists = at[i] >= 0 && (kInner == Inner::kRow || first + along < depth);
      packs[i] = {};
      if (exists) packs[i] = LoadPack16<E>(data, at[i] + (kInner == Inner::kTerm ? first : 0));
    }
  }
  // To shared memory.
  TACC_DEVICE void Keep(E* to) const {
    TACC_UNROLL
    for (int i = 0; i < kOwn; ++i) StorePack16<E>(packs[i], to, (outer + i * kStep) * kPitch + along);
  }
};

// The bytes of both halves of shared memory.
template <typename E, Inner kLeft, Inner kRight>
constexpr int64_t kSharedBytes =
    2 * static_cast<int64_t>(sizeof(E)) * (Operand<E, kLeft, int>::kElements + Operand<E, kRight, int>::kElements);
static_assert(kSharedBytes<Half, Inner::kTerm, Inner::kTerm> <= kMaxSharedBytes &&
              kSharedBytes<Half, Inner::kRow, Inner::kRow> >= kOutBytes);

// store(row, column, values) for each row and every kPack-th column of the tile: values[c] = the sum over all terms of
// left(row, term) right(column + c, term).
template <typename E, Inner kLeft, Inner kRight, typename LeftBase, typename RightBase, typename Store>
TACC_DEVICE void MultiplyTile(Team& team, Operand<E, kLeft, LeftBase> left, Operand<E, kRight, RightBase> right,
                              const Store& store) {
  using Left = Operand<E, kLeft, LeftBase>;
  using Right = Operand<E, kRight, RightBase>;
  constexpr Major kLeftMajor = kLeft == Inner::kTerm ? Major::kRow : Major::kColumn;
  constexpr Major kRightMajor = kRight == Inner::kTerm ? Major::kColumn : Major::kRow;
  // Element (i, j) of an operand in shared memory lies at i times the first and j times the second of these.
  constexpr int kLeftRow = kLeft == Inner::kTerm ? Left::kPitch : 1,
                kLeftTerm = kLeft == Inner::kTerm ? 1 : Left::kPitch;
  constexpr int kRightRow = kRight == Inner::kTerm ? Right::kPitch : 1;
  constexpr int kRightTerm = kRight == Inner::kTerm ? 1 : Right::kPitch;
  constexpr int kHalf = Left::kElements + Right::kElements;
  const int warp = team.rank() / kWarp, lane = team.rank() % kWarp;
  const int row = warp / kWarpsAcross * kWarpRows, column = warp % kWarpsAcross * kWarpColumns;
  const int64_t depth = left.depth;
  E* half = team.shared<E>();
  SumTile sums[kRowTiles][kColumnTiles];
  TACC_UNROLL
  for (int i = 0; i < kRowTiles; ++i) {
    TACC_UNROLL
    for (int j = 0; j < kColumnTiles; ++j) sums[i][j].Clear();
  }
  left.Fetch(0);
  right.Fetch(0);
  left.Find(kDepth);
  right.Find(kDepth);
  team.Sync();  // Whatever was in shared memory has been read.
  left.Keep(half);
  right.Keep(half + Left::kElements);
  team.Sync();
  int parity = 0;
  for (int64_t first = 0; first < depth; first += kDepth, parity ^= 1) {
    const bool goes_on = first + kDepth < depth;
    if (goes_on) {
      left.Fetch(first + kDepth);
      right.Fetch(first + kDepth);
      left.Find(first + 2 * kDepth);
      right.Find(first + 2 * kDepth);
    }
    const E *from_left = half + parity * kHalf, *from_right = from_left + Left::kElements;
    TACC_UNROLL
    for (int k = 0; k < kDepth; k += kMma) {
      LeftTile<E, kLeftMajor> l[kRowTiles];
      RightTile<E, kRightMajor> r[kColumnTiles];
      TACC_UNROLL
      for (int i = 0; i < kRowTiles; ++i)
        l[i].Load(from_left + (row + i * kMma) * kLeftRow + k * kLeftTerm, Left::kPitch);
      TACC_UNROLL
      for (int j = 0; j < kColumnTiles; ++j)
        r[j].Load(from_right + (column + j * kMma) * kRightRow + k * kRightTerm, Right::kPitch);
      TACC_UNROLL
      for (int i = 0; i < kRowTiles; ++i) {
        TACC_UNROLL
        for (int j = 0; j < kColumnTiles; ++j) sums[i][j].Add(team, l[i], r[j]);
      }
    }
    if (goes_on) {
      E* next = half + (parity ^ 1) * kHalf;
      left.Keep(next);
      right.Keep(next + Left::kElements);
    }
    team.Sync();
  }
  float* out = team.shared<float>() + warp * kMma * kOutPitch;
  TACC_UNROLL
  for (int i = 0; i < kRowTiles; ++i) {
    TACC_UNROLL
    for (int j = 0; j < kColumnTiles; ++j) sums[i][j].Store(team, out + j * kMma, kOutPitch);
    team.Sync();
    constexpr int kPacksAcross = kWarpColumns / kPack;
    for (int p = lane; p < kMma * kPacksAcross; p += kWarp) {
      float values[kPack];
      LoadPacked<kPack, float>(out, p / kPacksAcross * kOutPitch + p % kPacksAcross * kPack, values);
      store(row + i * kMma + p / kPacksAcross, column + p % kPacksAcross * kPack, values);
    }
    team.Sync();
  }
}

// Tile `index` of num_rows x num_columns: eight rows at a time, down and then across, so that the teams that run
// together read few rows and few columns.
struct TilePlace {
  int64_t row, column;

  TACC_DEVICE TilePlace(int64_t index, int64_t num_rows, int64_t num_columns) {
    constexpr int64_t kRows = 8;
    const int64_t first = index / (kRows * num_columns) * kRows;
    const int64_t height = num_rows - first < kRows ? num_rows - first : kRows, rest = index - first * num_columns;
    row = first + rest % height;
    column = rest / height;
  }
};

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

// A tile of y: up to kTile slots of one expert, or of none, by kTile columns.
template <typename E, Inner kRight>
struct ExpertTile {
  const void *x, *w;
  AnyOut y;
  SortedSlots sorted;
  int64_t num_row_tiles, n, m, slots_a_row, first_column, columns;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const TilePlace place(index, num_row_tiles, (columns + kTile - 1) / kTile);
    // The expert whose tile it is, num_experts: of none; and which of its tiles.
    int32_t *found = team.shared<int32_t>(), *tiles = found + 2;
    if (team.rank() == 0) found[0] = -1;
    for (int64_t e = team.rank(); e <= sorted.num_experts; e += team.size())
      tiles[e] = (sorted.starts[e + 1] - sorted.starts[e] + kTile - 1) / kTile;
    team.Sync();
    for (int64_t e = team.rank(); e <= sorted.num_experts; e += team.size()) {
      int64_t before = 0;
      for (int64_t i = 0; i < e; ++i) before += tiles[i];
      if (place.row < before || place.row >= before + tiles[e]) continue;
      found[0] = static_cast<int32_t>(e);
      found[1] = static_cast<int32_t>(place.row - before);
    }
    team.Sync();
    const int64_t expert = found[0], tile = found[1];
    if (expert < 0) return;  // The same for the whole team.
    const int64_t begin = sorted.starts[expert] + tile * kTile, column = place.column * kTile;
    const int64_t rows = sorted.starts[expert + 1] - begin, width = columns - column;
    const int64_t from = first_column + column, matrix = expert * m * n;
    const int64_t depth = expert < sorted.num_experts ? n : 0;
    const int32_t* own = sorted.slots + begin;
    constexpr bool kPlain = kRight == Inner::kTerm;
    MultiplyTile(
        team,
        Operand<E, Inner::kTerm, RowOfSlot>(team, x, rows, depth, {own, static_cast<uint32_t>(slots_a_row), n, 0}),
        Operand<E, kRight, RowOfMatrix>(team, w, width, depth, {matrix + (kPlain ? from * n : from), kPlain ? n : m}),
        [&](int i, int j, const float* values) {
          if (i < rows && j < width) Store<kPack>(y, static_cast<int64_t>(own[i]) * columns + column + j, values);
        });
  }
};

// A tile of dw[expert].
template <typename E>
struct ExpertGradTile {
  const void *a, *b;
  AnyOut dw;
  SortedSlots sorted;
  int64_t n, m, slots_a_row_a, slots_a_row_b;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const int64_t tiles_n = (n + kTile - 1) / kTile, tiles_m = (m + kTile - 1) / kTile;
    const int64_t expert = index / (tiles_n * tiles_m);
    const TilePlace place(index % (tiles_n * tiles_m), tiles_m, tiles_n);
    const int64_t row = place.row * kTile, column = place.column * kTile, begin = sorted.starts[expert];
    const int64_t depth = sorted.starts[expert + 1] - begin;
    const int32_t* own = sorted.slots + begin;
    MultiplyTile(team,
                 Operand<E, Inner::kRow, RowOfSlot>(team, a, m - row, depth,
                                                    {own, static_cast<uint32_t>(slots_a_row_a), m, row}),
                 Operand<E, Inner::kRow, RowOfSlot>(team, b, n - column, depth,
                                                    {own, static_cast<uint32_t>(slots_a_row_b), n, column}),
                 [&](int i, int j, const float* values) {
                   if (row + i < m && column + j < n) Store<kPack>(dw, (expert * m + row + i) * n + column + j, values);
                 });
  }
};

// Calls f(E()).
template <typename F>
void WithElement(DType dtype, F f) {
  dtype == DType::kBF16 ? f(BFloat16()) : f(Half());
}

}  // namespace

bool TensorCoresTake(std::initializer_list<TensorView> operands, const TensorView& result, int64_t n, int64_t m,
                     int64_t num_experts) {
  // Tiles of experts are counted in shared memory.
  constexpr int64_t kMaxExperts = 4096;
  if (n % kPack != 0 || m % kPack != 0 || num_experts > kMaxExperts || !ArePackable({result})) return false;
  const DType dtype = operands.begin()->dtype;
  if (dtype != DType::kBF16 && dtype != DType::kF16) return false;
  for (const TensorView& operand : operands) {
    if (operand.dtype != dtype || !ArePackable({operand})) return false;
  }
  return true;
}

void ExpertMatmulOnTensorCores(const SortedSlots& sorted, const TensorView& x, int64_t slots_a_row, const TensorView& w,
                               ExpertWeights kind, int64_t first_column, const TensorView& y) {
  const bool plain = kind == ExpertWeights::kPlain;
  const int64_t n = x.row_length(), m = plain ? w.dims[1] : w.dims[2], columns = y.row_length();
  const int64_t num_row_tiles = sorted.num_slots / kTile + sorted.num_experts + 1;  // at most
  WithElement(x.dtype, [&]<typename E>(E) {
    const auto run = [&]<Inner kRight>(std::integral_constant<Inner, kRight>) {
      ForEachExactTeam<kTeam>(num_row_tiles * NumTiles(columns), kSharedBytes<E, Inner::kTerm, kRight>,
                              ExpertTile<E, kRight>{x.data, w.data, Out(y), sorted, num_row_tiles, n, m, slots_a_row,
                                                    first_column, columns});
    };
    plain ? run(std::integral_constant<Inner, Inner::kTerm>()) : run(std::integral_constant<Inner, Inner::kRow>());
  });
}

void ExpertMatmulGradOnTensorCores(const SortedSlots& sorted, const TensorView& a, int64_t slots_a_row_a,
                                   const TensorView& b, int64_t slots_a_row_b, const TensorView& dw) {
  const int64_t m = a.row_length(), n = b.row_length();
  WithElement(a.dtype, [&]<typename E>(E) {
    ForEachExactTeam<kTeam>(sorted.num_experts * NumTiles(m) * NumTiles(n), kSharedBytes<E, Inner::kRow, Inner::kRow>,
                            ExpertGradTile<E>{a.data, b.data, Out(dw), sorted, n, m, slots_a_row_a, slots_a_row_b});
  });
}

}  // namespace tacc::kernels::cuda
