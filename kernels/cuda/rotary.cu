#include <algorithm>
#include <cmath>

#include "kernels/contract/rotary.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/pack.h"

namespace tacc::kernels::cuda {
namespace {

// Parameters of a kernel are at most 4 KB: what does not fit goes in several launches.
constexpr int kMaxRuns = 64, kMaxFrequencies = 256;

// Positions at indexes [begin, end) of a sequence of `length`: run r holds from begins[r] on, and counts up by
// steps[r].
struct PositionRuns {
  int count = 0;
  int64_t begins[kMaxRuns] = {}, positions[kMaxRuns] = {};
  int8_t steps[kMaxRuns] = {};
  int64_t begin = 0, end = 0, length = 0;
  const int32_t* document_start = nullptr;

  // Of the i-th of all rows' indexes [begin, end).
  TACC_DEVICE int64_t Index(int64_t i) const { return i / (end - begin) * length + begin + i % (end - begin); }
  // At an index of all rows.
  TACC_DEVICE int64_t Position(int64_t index) const {
    const int64_t s = index % length;
    int run = 0;
    while (run + 1 < count && begins[run + 1] <= s) ++run;
    const int64_t position = positions[run] + (s - begins[run]) * steps[run];
    return document_start == nullptr ? position : position - document_start[index];
  }
};

// Calls f(runs) for as many PositionRuns as it takes to cover the sequence.
template <typename F>
void ForPositions(const std::vector<int64_t>& given, const TensorView& document_start, int64_t length, F f) {
  const int64_t num_given = static_cast<int64_t>(given.size());
  TACC_KERNEL_CHECK(num_given <= length);
  TACC_KERNEL_CHECK(document_start.data == nullptr || document_start.dtype == DType::kI32);
  PositionRuns runs;
  runs.length = length;
  runs.document_start = document_start.as<int32_t>();
  for (int64_t s = 0; s < length;) {
    if (runs.count == kMaxRuns) {
      runs.end = s;
      f(runs);
      runs.begin = s;
      runs.count = 0;
    }
    int64_t next = s + 1;
    while (next < num_given && given[next] == given[next - 1] + 1) ++next;
    const bool is_padding = s >= num_given;
    if (is_padding) next = length;
    runs.begins[runs.count] = s;
    runs.positions[runs.count] = is_padding ? 0 : given[s];
    runs.steps[runs.count++] = is_padding ? 0 : 1;
    s = next;
  }
  runs.end = length;
  if (runs.count > 0) f(runs);
}

struct StorePosition {
  PositionRuns runs;
  int32_t* positions;

  TACC_DEVICE void operator()(int64_t i) const {
    const int64_t index = runs.Index(i);
    positions[index] = static_cast<int32_t>(runs.Position(index));
  }
};

template <typename T>
struct RopeEntry {
  PositionRuns runs;
  double frequencies[kMaxFrequencies];  // those of [first, first + count) of `half`
  int64_t first, count, half;
  double scale;
  T *cos, *sin;

  TACC_DEVICE void operator()(int64_t i) const {
    const int64_t index = runs.Index(i / count), j = i % count;
    // The product is rounded to T before the f64 cosine.
    const T angle = static_cast<T>(runs.Position(index)) * static_cast<T>(frequencies[j]);
    const int64_t entry = index * half + first + j;
    cos[entry] = static_cast<T>(std::cos(static_cast<double>(angle)) * scale);
    sin[entry] = static_cast<T>(std::sin(static_cast<double>(angle)) * scale);
  }
};
static_assert(sizeof(RopeEntry<double>) <= 4000);

// A token: kHalf turns packs of N pairs, kInterleaved packs of N elements (N = 1: a pair).
template <typename T, int N>
struct RotaryToken {
  AnyIn x, cos, sin;
  AnyOut y;
  int64_t table_rows;
  int heads, d, half;  // heads: those that are turned
  int token_size;      // elements of all heads of a token, less than 2^30
  RotaryStyle style;
  T sign;

  TACC_DEVICE void operator()(Team& team, int64_t token) const {
    const int64_t table = token % table_rows * half, first = token * token_size;
    if (style == RotaryStyle::kHalf) {
      const int packs = half / N;
      for (int i = team.rank(); i < heads * packs; i += team.size()) {
        const int column = i % packs * N;
        const int64_t at = first + i / packs * d + column;
        T u[N], v[N], c[N], s[N];
        Load<N>(x, at, u);
        Load<N>(x, at + half, v);
        Load<N>(cos, table + column, c);
        Load<N>(sin, table + column, s);
        TACC_UNROLL
        for (int j = 0; j < N; ++j) {
          const T t = s[j] * sign, a = u[j], b = v[j];
          u[j] = a * c[j] - b * t;
          v[j] = b * c[j] + a * t;
        }
        Store<N>(y, at, u);
        Store<N>(y, at + half, v);
      }
    } else {
      constexpr int kPairs = N == 1 ? 1 : N / 2;
      const int packs = half / kPairs;
      for (int i = team.rank(); i < heads * packs; i += team.size()) {
        const int column = i % packs * kPairs;
        const int64_t at = first + i / packs * d + 2 * column;
        T z[2 * kPairs], c[kPairs], s[kPairs];
        if constexpr (N == 1) {
          Load<1>(x, at, z);
          Load<1>(x, at + 1, z + 1);
        } else {
          Load<N>(x, at, z);
        }
        Load<kPairs>(cos, table + column, c);
        Load<kPairs>(sin, table + column, s);
        TACC_UNROLL
        for (int j = 0; j < kPairs; ++j) {
          const T t = s[j] * sign, a = z[2 * j], b = z[2 * j + 1];
          z[2 * j] = a * c[j] - b * t;
          z[2 * j + 1] = b * c[j] + a * t;
        }
        if constexpr (N == 1) {
          Store<1>(y, at, z);
          Store<1>(y, at + 1, z + 1);
        } else {
          Store<N>(y, at, z);
        }
      }
    }
    if (x.data == y.data) return;
    // Behind those heads, and what is left of each of them.
    const int rest = (d - 2 * half) / N, behind = token_size / N - heads * (d / N);
    for (int i = team.rank(); i < behind + heads * rest; i += team.size()) {
      const int left = i - behind;
      const int64_t at = first + (left < 0 ? token_size + left * N : left / rest * d + 2 * half + left % rest * N);
      T values[N];
      Load<N>(x, at, values);
      Store<N>(y, at, values);
    }
  }
};

void Positions(const std::vector<int64_t>& given, const TensorView& document_start, const TensorView& positions) {
  TACC_KERNEL_CHECK(positions.dtype == DType::kI32);
  const int64_t length = positions.row_length(), rows = positions.num_rows();
  ForPositions(given, document_start, length, [&](const PositionRuns& runs) {
    ForEach(rows * (runs.end - runs.begin), StorePosition{runs, positions.as<int32_t>()});
  });
}

void RopeTable(const std::vector<double>& inv_freq, double attention_scale, const std::vector<int64_t>& given,
               const TensorView& document_start, const TensorView& cos, const TensorView& sin) {
  const int64_t half = static_cast<int64_t>(inv_freq.size());
  const int rank = cos.dims.rank();
  TACC_KERNEL_CHECK((rank == 2 || rank == 3) && cos.dims == sin.dims && cos.dims.back() == half);
  TACC_KERNEL_CHECK(cos.dtype == sin.dtype && (cos.dtype == DType::kF32 || cos.dtype == DType::kF64));
  const int64_t length = cos.dims[rank - 2], rows = rank == 3 ? cos.dims[0] : 1;
  WithComputeType({cos}, [&]<typename T>(T) {
    ForPositions(given, document_start, length, [&](const PositionRuns& runs) {
      for (int64_t first = 0; first < half; first += kMaxFrequencies) {
        RopeEntry<T> entry{
            runs,        {},         first, std::min<int64_t>(kMaxFrequencies, half - first), half, attention_scale,
            cos.as<T>(), sin.as<T>()};
        std::copy_n(inv_freq.begin() + first, entry.count, entry.frequencies);
        ForEach(rows * (runs.end - runs.begin) * entry.count, entry);
      }
    });
  });
}

void Rotary(const TensorView& x, const TensorView& cos, const TensorView& sin, RotaryStyle style,
            RotaryDirection direction, const TensorView& y, int64_t heads) {
  TACC_KERNEL_CHECK(x.dims.rank() == 4 && x.dims == y.dims && cos.dims == sin.dims && 2 * cos.dims.back() <= x.dims[3]);
  TACC_KERNEL_CHECK(heads >= -1 && heads <= x.dims[2]);
  const int64_t turned = heads < 0 ? x.dims[2] : heads, d = x.dims[3], half = cos.dims.back(), size = x.dims[2] * d;
  TACC_KERNEL_CHECK(cos.num_rows() == (cos.dims.rank() == 3 ? x.dims[0] : 1) * x.dims[1]);
  TACC_KERNEL_CHECK(size < int64_t{1} << 30);
  WithPacks(half % kPack == 0 && d % kPack == 0, {x, cos, sin, y}, [&]<typename T, typename N>(T, N) {
    const T sign = direction == RotaryDirection::kInverse ? T(-1) : T(1);
    ForEachTeam(
        x.dims[0] * x.dims[1], TeamSize(turned * half, N::value), 0,
        RotaryToken<T, N::value>{In(x), In(cos), In(sin), Out(y), cos.num_rows(), static_cast<int>(turned),
                                 static_cast<int>(d), static_cast<int>(half), static_cast<int>(size), style, sign});
  });
}

}  // namespace

const RotaryKernels kRotary = {
    .Positions = Positions,
    .RopeTable = RopeTable,
    .Rotary = Rotary,
};

}  // namespace tacc::kernels::cuda
