// What mixtures of experts need beside their products: small rows, one a token.
#include <cmath>

#include "kernels/contract/router.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/pack.h"

namespace tacc::kernels::cuda {
namespace {

constexpr int kCountTeam = 512;

template <typename T>
struct SoftmaxRow {
  AnyIn x;
  AnyOut y;
  int64_t n;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    T largest = -static_cast<T>(HUGE_VAL), sum = 0;
    for (int64_t i = team.rank(); i < n; i += team.size()) {
      const T value = x.Load<T>(row * n + i);
      largest = value > largest ? value : largest;
    }
    largest = team.Max(largest);
    for (int64_t i = team.rank(); i < n; i += team.size()) sum += std::exp(x.Load<T>(row * n + i) - largest);
    const T scale = 1 / team.Sum(sum);
    for (int64_t i = team.rank(); i < n; i += team.size())
      y.Store(row * n + i, std::exp(x.Load<T>(row * n + i) - largest) * scale);
  }
};

template <typename T>
struct SoftmaxGradRow {
  const T *dy, *y;
  T* dx;
  int64_t n;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    double dot = 0;
    for (int64_t i = team.rank(); i < n; i += team.size()) dot += static_cast<double>(dy[row * n + i]) * y[row * n + i];
    dot = team.Sum(dot);
    for (int64_t i = team.rank(); i < n; i += team.size())
      dx[row * n + i] = y[row * n + i] * (dy[row * n + i] - static_cast<T>(dot));
  }
};

// The numbers of a row from large to small, equal ones by index; what is not a number counts as -infinity.
template <typename T>
struct InOrder {
  T last = static_cast<T>(HUGE_VAL);
  int32_t last_id = -1;

  static TACC_DEVICE T Number(T value) { return value == value ? value : -static_cast<T>(HUGE_VAL); }
  // Is it behind the last one?
  TACC_DEVICE bool IsNext(T value, int32_t id) const { return value < last || (value == last && id > last_id); }
};

// A warp finds the first of what comes behind the last one found.
template <typename T>
struct TopKOfRow {
  const T *p, *choice;
  T* weights;
  int32_t* ids;
  int32_t n, k, groups, kept, summed;
  TopKWeights kind;

  // Which groups are kept, a bit each: a thread sums a group's, and counts those before it.
  TACC_DEVICE uint32_t KeptGroups(Team& team, const T* values) const {
    if (kept == groups) return ~uint32_t{0};
    const int32_t size = n / groups, own = team.rank();
    T sum = -static_cast<T>(HUGE_VAL);
    if (own < groups) {
      sum = 0;
      InOrder<T> order;
      for (int32_t j = 0; j < summed; ++j) {
        T best = -static_cast<T>(HUGE_VAL);
        int32_t id = size;
        for (int32_t e = 0; e < size; ++e) {
          const T value = order.Number(values[own * size + e]);
          if (!order.IsNext(value, e) || value < best || (value == best && e > id)) continue;
          best = value;
          id = e;
        }
        order = {best, id};
        sum += best;
      }
    }
    int32_t before = 0;
    for (int mask = 1; mask < kWarp; ++mask) {
      const T other = team.Exchange(sum, mask);
      before += (own ^ mask) < groups && (other > sum || (other == sum && (own ^ mask) < own)) ? 1 : 0;
    }
    int32_t bits = own < groups && before < kept ? static_cast<int32_t>(uint32_t{1} << own) : 0;
    for (int mask = 1; mask < kWarp; mask *= 2) bits |= team.Exchange(bits, mask);
    return static_cast<uint32_t>(bits);
  }

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    const T infinity = static_cast<T>(HUGE_VAL), *numbers = p + row * n, *values = choice + row * n;
    const uint32_t groups_kept = KeptGroups(team, values);
    const int32_t size = n / groups;
    InOrder<T> order;
    double sum = 0;
    for (int32_t j = 0; j < k; ++j) {
      T best = -infinity;
      int32_t id = n;
      for (int32_t e = team.rank(); e < n; e += team.size()) {
        if ((groups_kept >> (e / size) & 1) == 0) continue;
        const T value = order.Number(values[e]);
        if (!order.IsNext(value, e) || value < best || (value == best && e > id)) continue;
        best = value;
        id = e;
      }
      for (int mask = 1; mask < kWarp; mask *= 2) {
        const T other = team.Exchange(best, mask);
        const int32_t other_id = team.Exchange(id, mask);
        if (other < best || (other == best && other_id > id)) continue;
        best = other;
        id = other_id;
      }
      order = {best, id};
      sum += numbers[id];
      if (team.rank() != 0) continue;
      ids[row * k + j] = id;
      weights[row * k + j] = numbers[id];
    }
    for (int32_t j = 0; team.rank() == 0 && j < k && kind == TopKWeights::kNormalized; ++j)
      weights[row * k + j] = static_cast<T>(weights[row * k + j] / sum);
  }
};

// An element of dp.
template <typename T>
struct TopKGradElement {
  const T *dw, *p;
  const int32_t* ids;
  T* dp;
  int64_t n, k;
  TopKWeights kind;

  TACC_DEVICE void operator()(int64_t i) const {
    const int64_t row = i / n, e = i % n;
    double sum = 0, dot = 0;
    T gradient = 0;
    if (kind == TopKWeights::kNormalized) {
      for (int64_t j = row * k; j < (row + 1) * k; ++j) {
        if (ids[j] < 0 || ids[j] >= n) continue;  // padding
        sum += p[row * n + ids[j]];
        dot += static_cast<double>(dw[j]) * p[row * n + ids[j]];
      }
    }
    for (int64_t j = row * k; j < (row + 1) * k; ++j) {
      if (ids[j] != e) continue;
      gradient += static_cast<T>(kind == TopKWeights::kNormalized ? (dw[j] - dot / sum) / sum : dw[j]);
    }
    dp[i] = gradient;
  }
};

struct CountExpert {
  const int32_t* ids;
  int64_t slots, experts;  // of a row
  AnyOut counts;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const int32_t* row = ids + index / experts * slots;
    const int64_t expert = index % experts;
    int64_t count = 0;
    for (int64_t s = team.rank(); s < slots; s += team.size()) count += row[s] == expert;
    count = team.Sum(count);
    if (team.rank() == 0) counts.Store(index, static_cast<double>(count));
  }
};

template <typename T, int N>
struct MulRow {
  AnyIn x, w;
  AnyOut y;
  int64_t n;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    const T factor = w.Load<T>(row);
    for (int64_t i = static_cast<int64_t>(team.rank()) * N; i < n; i += static_cast<int64_t>(team.size()) * N) {
      T values[N];
      Load<N>(x, row * n + i, values);
      TACC_UNROLL
      for (int j = 0; j < N; ++j) values[j] *= factor;
      Store<N>(y, row * n + i, values);
    }
  }
};

template <typename T, int N>
struct DotRow {
  AnyIn a, b;
  AnyOut y;
  int64_t n;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    T sum = 0;
    for (int64_t i = static_cast<int64_t>(team.rank()) * N; i < n; i += static_cast<int64_t>(team.size()) * N) {
      T u[N], v[N];
      Load<N>(a, row * n + i, u);
      Load<N>(b, row * n + i, v);
      TACC_UNROLL
      for (int j = 0; j < N; ++j) sum += u[j] * v[j];
    }
    sum = team.Sum(sum);
    if (team.rank() == 0) y.Store(row, sum);
  }
};

bool IsWide(const TensorView& x) { return x.dtype == DType::kF32 || x.dtype == DType::kF64; }

void Softmax(const TensorView& x, const TensorView& y) {
  TACC_KERNEL_CHECK(x.dims == y.dims && IsWide(y));
  const int64_t n = x.row_length();
  WithComputeType({x, y},
                  [&]<typename T>(T) { ForEachTeam(x.num_rows(), TeamSize(n), 0, SoftmaxRow<T>{In(x), Out(y), n}); });
}

void SoftmaxGrad(const TensorView& dy, const TensorView& y, const TensorView& dx) {
  TACC_KERNEL_CHECK(dy.dims == y.dims && dx.dims == y.dims && dy.dtype == y.dtype && dx.dtype == y.dtype && IsWide(y));
  const int64_t n = y.row_length();
  WithComputeType({y}, [&]<typename T>(T) {
    ForEachTeam(y.num_rows(), TeamSize(n), 0, SoftmaxGradRow<T>{dy.as<T>(), y.as<T>(), dx.as<T>(), n});
  });
}

void TopK(const TensorView& p, const TensorView& choice, const TopKGroups& groups, TopKWeights kind,
          const TensorView& weights, const TensorView& ids) {
  const int64_t n = p.row_length(), k = ids.row_length();
  TACC_KERNEL_CHECK(weights.dims == ids.dims && ids.dtype == DType::kI32 && weights.dtype == p.dtype && IsWide(p) &&
                    ids.size() == p.num_rows() * k && n < int64_t{1} << 31);
  TACC_KERNEL_CHECK(choice.dims == p.dims && choice.dtype == p.dtype && groups.groups >= 1 && groups.groups <= kWarp &&
                    n % groups.groups == 0 && groups.kept <= groups.groups && groups.summed <= n / groups.groups &&
                    k <= n / groups.groups * groups.kept);
  WithComputeType({p}, [&]<typename T>(T) {
    ForEachTeam(p.num_rows(), kWarp, 0,
                TopKOfRow<T>{p.as<T>(), choice.as<T>(), weights.as<T>(), ids.as<int32_t>(), static_cast<int32_t>(n),
                             static_cast<int32_t>(k), static_cast<int32_t>(groups.groups),
                             static_cast<int32_t>(groups.kept), static_cast<int32_t>(groups.summed), kind});
  });
}

void TopKGrad(const TensorView& dw, const TensorView& p, const TensorView& ids, TopKWeights kind,
              const TensorView& dp) {
  const int64_t n = p.row_length(), k = ids.row_length();
  TACC_KERNEL_CHECK(dw.dims == ids.dims && dp.dims == p.dims && ids.dtype == DType::kI32 && dw.dtype == p.dtype &&
                    dp.dtype == p.dtype && IsWide(p) && ids.size() == p.num_rows() * k);
  WithComputeType({p}, [&]<typename T>(T) {
    ForEach(p.size(), TopKGradElement<T>{dw.as<T>(), p.as<T>(), ids.as<int32_t>(), dp.as<T>(), n, k, kind});
  });
}

void ExpertCounts(const TensorView& ids, const TensorView& counts) {
  const int64_t rows = counts.num_rows();
  TACC_KERNEL_CHECK(ids.dtype == DType::kI32 && IsWide(counts) &&
                    (rows == 1 || (rows == ids.dims[0] && counts.dims.rank() == 2)));
  if (rows == 0) return;
  ForEachTeam(counts.size(), kCountTeam, 0,
              CountExpert{ids.as<int32_t>(), ids.size() / rows, counts.row_length(), Out(counts)});
}

void MulRows(const TensorView& x, const TensorView& w, const TensorView& y) {
  const int64_t n = x.row_length();
  TACC_KERNEL_CHECK(x.dims == y.dims && w.size() == x.num_rows());
  WithPacks(n % kPack == 0, {x, y}, [&]<typename T, typename N>(T, N) {
    ForEachTeam(x.num_rows(), TeamSize(n, N::value), 0, MulRow<T, N::value>{In(x), In(w), Out(y), n});
  });
}

void DotRows(const TensorView& a, const TensorView& b, const TensorView& y) {
  const int64_t n = a.row_length();
  TACC_KERNEL_CHECK(a.dims == b.dims && y.size() == a.num_rows());
  WithPacks(n % kPack == 0, {a, b}, [&]<typename T, typename N>(T, N) {
    ForEachTeam(a.num_rows(), TeamSize(n, 2 * N::value), 0, DotRow<T, N::value>{In(a), In(b), Out(y), n});
  });
}

}  // namespace

const RouterKernels kRouter = {
    .Softmax = Softmax,
    .SoftmaxGrad = SoftmaxGrad,
    .TopK = TopK,
    .TopKGrad = TopKGrad,
    .ExpertCounts = ExpertCounts,
    .MulRows = MulRows,
    .DotRows = DotRows,
};

}  // namespace tacc::kernels::cuda
