#include <cmath>

#include "kernels/cuda/load.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/sum_groups.h"

namespace tacc::kernels::cuda {
namespace {

// x * rstd is rounded to x's dtype before the weight multiplies it, as Hugging Face's LLaMA does.
template <typename T>
TACC_DEVICE T RoundedTo(DType dtype, T x) {
  if (dtype == DType::kBF16) return static_cast<T>(ToFloat(ToBFloat16(static_cast<float>(x))));
  if (dtype == DType::kF16) return static_cast<T>(ToFloat(ToHalf(static_cast<float>(x))));
  return x;
}

template <typename T>
struct RmsNormRow {
  AnyIn x, w;
  AnyOut y, rstd;
  int64_t n;
  double eps;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    T sum = 0;
    for (int64_t i = team.rank(); i < n; i += team.size()) {
      const T value = x.Load<T>(row * n + i);
      sum += value * value;
    }
    const T scale = 1 / std::sqrt(team.Sum(sum) / static_cast<T>(n) + static_cast<T>(eps));
    if (team.rank() == 0) rstd.Store(row, scale);
    for (int64_t i = team.rank(); i < n; i += team.size())
      y.Store(row * n + i, RoundedTo(x.dtype, x.Load<T>(row * n + i) * scale) * w.Load<T>(i));
  }
};

// The rows of one group, and its share of dw: each thread adds to its own columns only.
template <typename T>
struct RmsNormGradRows {
  AnyIn dy, x, w, rstd;
  AnyOut dx;
  T* sums;
  int64_t n, num_rows, num_groups;

  TACC_DEVICE void operator()(Team& team, int64_t group) const {
    T* own = sums + group * n;
    for (int64_t i = team.rank(); i < n; i += team.size()) own[i] = 0;
    for (int64_t row = num_rows * group / num_groups; row < num_rows * (group + 1) / num_groups; ++row) {
      const T scale = rstd.Load<T>(row);
      T dot = 0;
      for (int64_t i = team.rank(); i < n; i += team.size())
        dot += dy.Load<T>(row * n + i) * w.Load<T>(i) * x.Load<T>(row * n + i);
      const T mean = team.Sum(dot) / static_cast<T>(n) * scale * scale;
      for (int64_t i = team.rank(); i < n; i += team.size()) {
        const T gradient = dy.Load<T>(row * n + i), value = x.Load<T>(row * n + i);
        own[i] += gradient * value * scale;
        dx.Store(row * n + i, scale * (gradient * w.Load<T>(i) - value * mean));
      }
    }
  }
};

template <typename T>
struct LayerNormRow {
  AnyIn x, w, b;
  AnyOut y, mean, rstd;
  int64_t n;
  double eps;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    T sum = 0, squares = 0;
    for (int64_t i = team.rank(); i < n; i += team.size()) sum += x.Load<T>(row * n + i);
    const T centre = team.Sum(sum) / static_cast<T>(n);
    for (int64_t i = team.rank(); i < n; i += team.size()) {
      const T value = x.Load<T>(row * n + i) - centre;
      squares += value * value;
    }
    const T scale = 1 / std::sqrt(team.Sum(squares) / static_cast<T>(n) + static_cast<T>(eps));
    if (team.rank() == 0) {
      mean.Store(row, centre);
      rstd.Store(row, scale);
    }
    for (int64_t i = team.rank(); i < n; i += team.size()) {
      T value = (x.Load<T>(row * n + i) - centre) * scale;
      if (w) value *= w.Load<T>(i);
      if (b) value += b.Load<T>(i);
      y.Store(row * n + i, value);
    }
  }
};

// As RmsNormGradRows; sums_w and sums_b may be null.
template <typename T>
struct LayerNormGradRows {
  AnyIn dy, x, mean, rstd, w;
  AnyOut dx;
  T *sums_w, *sums_b;
  int64_t n, num_rows, num_groups;

  TACC_DEVICE void operator()(Team& team, int64_t group) const {
    T* own_w = sums_w == nullptr ? nullptr : sums_w + group * n;
    T* own_b = sums_b == nullptr ? nullptr : sums_b + group * n;
    for (int64_t i = team.rank(); i < n; i += team.size()) {
      if (own_w != nullptr) own_w[i] = 0;
      if (own_b != nullptr) own_b[i] = 0;
    }
    for (int64_t row = num_rows * group / num_groups; row < num_rows * (group + 1) / num_groups; ++row) {
      const T centre = mean.Load<T>(row), scale = rstd.Load<T>(row);
      T sum = 0, dot = 0;
      for (int64_t i = team.rank(); i < n; i += team.size()) {
        const T gradient = dy.Load<T>(row * n + i) * (w ? w.Load<T>(i) : T(1));
        sum += gradient;
        dot += gradient * (x.Load<T>(row * n + i) - centre) * scale;
      }
      const T mean_gradient = team.Sum(sum) / static_cast<T>(n);
      const T mean_dot = team.Sum(dot) / static_cast<T>(n);
      for (int64_t i = team.rank(); i < n; i += team.size()) {
        const T out = dy.Load<T>(row * n + i), normal = (x.Load<T>(row * n + i) - centre) * scale;
        if (own_w != nullptr) own_w[i] += out * normal;
        if (own_b != nullptr) own_b[i] += out;
        dx.Store(row * n + i, scale * (out * (w ? w.Load<T>(i) : T(1)) - mean_gradient - normal * mean_dot));
      }
    }
  }
};

template <typename T>
struct L2NormalizeRow {
  AnyIn x;
  AnyOut y, rnorm;
  int64_t n;
  double eps;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    T sum = 0;
    for (int64_t i = team.rank(); i < n; i += team.size()) {
      const T value = x.Load<T>(row * n + i);
      sum += value * value;
    }
    const T norm = std::sqrt(team.Sum(sum)), floor = static_cast<T>(eps);
    const T scale = 1 / (norm < floor ? floor : norm);
    if (team.rank() == 0) rnorm.Store(row, scale);
    for (int64_t i = team.rank(); i < n; i += team.size()) y.Store(row * n + i, x.Load<T>(row * n + i) * scale);
  }
};

// With h = x * rnorm: dx = rnorm * (dy - h * (dy . h)); where the norm was below eps the divisor is a constant.
template <typename T>
struct L2NormalizeGradRow {
  AnyIn dy, x, rnorm;
  AnyOut dx;
  int64_t n;
  double eps;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    const T scale = rnorm.Load<T>(row);
    T dot = 0;
    for (int64_t i = team.rank(); i < n; i += team.size())
      dot += dy.Load<T>(row * n + i) * (x.Load<T>(row * n + i) * scale);
    dot = team.Sum(dot);
    if (scale >= 1 / static_cast<T>(eps)) dot = 0;
    for (int64_t i = team.rank(); i < n; i += team.size())
      dx.Store(row * n + i, scale * (dy.Load<T>(row * n + i) - x.Load<T>(row * n + i) * scale * dot));
  }
};

}  // namespace

int64_t NormGradWorkspaceBytes(int64_t num_rows, int64_t row_length, int num_sums, DType compute) {
  return NumGroups(num_rows) * num_sums * row_length * SizeOf(compute);
}

void RmsNorm(const TensorView& x, const TensorView& w, double eps, const TensorView& y, const TensorView& rstd) {
  TACC_KERNEL_CHECK(y.size() == x.size() && w.size() == x.row_length() && rstd.size() == x.num_rows());
  const int64_t n = x.row_length();
  WithComputeType({x, w}, [&]<typename T>(T) {
    ForEachTeam(x.num_rows(), TeamSize(n), 0, RmsNormRow<T>{In(x), In(w), Out(y), Out(rstd), n, eps});
  });
}

void RmsNormGrad(const TensorView& dy, const TensorView& x, const TensorView& w, const TensorView& rstd,
                 const TensorView& dx, const TensorView& dw) {
  TACC_KERNEL_CHECK(dy.size() == x.size() && dx.size() == x.size() && w.size() == x.row_length());
  TACC_KERNEL_CHECK(dw.size() == x.row_length() && rstd.size() == x.num_rows());
  const int64_t n = x.row_length(), num_rows = x.num_rows(), num_groups = NumGroups(num_rows);
  WithComputeType({dy, x, w}, [&]<typename T>(T) {
    Scratch scratch(num_groups * n * static_cast<int64_t>(sizeof(T)));
    T* sums = static_cast<T*>(scratch.data());
    ForEachTeam(num_groups, TeamSize(n), 0,
                RmsNormGradRows<T>{In(dy), In(x), In(w), In(rstd), Out(dx), sums, n, num_rows, num_groups});
    SumGroups(sums, num_groups, n, Out(dw));
  });
}

void LayerNorm(const TensorView& x, const TensorView& w, const TensorView& b, double eps, const TensorView& y,
               const TensorView& mean, const TensorView& rstd) {
  TACC_KERNEL_CHECK(y.size() == x.size() && mean.size() == x.num_rows() && rstd.size() == x.num_rows());
  TACC_KERNEL_CHECK(w.data == nullptr || w.size() == x.row_length());
  TACC_KERNEL_CHECK(b.data == nullptr || b.size() == x.row_length());
  const int64_t n = x.row_length();
  WithComputeType({x, w, b}, [&]<typename T>(T) {
    ForEachTeam(x.num_rows(), TeamSize(n), 0,
                LayerNormRow<T>{In(x), In(w), In(b), Out(y), Out(mean), Out(rstd), n, eps});
  });
}

void LayerNormGrad(const TensorView& dy, const TensorView& x, const TensorView& mean, const TensorView& rstd,
                   const TensorView& w, const TensorView& dx, const TensorView& dw, const TensorView& db) {
  TACC_KERNEL_CHECK(dy.size() == x.size() && dx.size() == x.size());
  TACC_KERNEL_CHECK(mean.size() == x.num_rows() && rstd.size() == x.num_rows());
  TACC_KERNEL_CHECK(w.data == nullptr || w.size() == x.row_length());
  TACC_KERNEL_CHECK(dw.data == nullptr || dw.size() == x.row_length());
  TACC_KERNEL_CHECK(db.data == nullptr || db.size() == x.row_length());
  const int64_t n = x.row_length(), num_rows = x.num_rows(), num_groups = NumGroups(num_rows);
  const int num_sums = (dw.data != nullptr) + (db.data != nullptr);
  WithComputeType({dy, x, w}, [&]<typename T>(T) {
    Scratch scratch(num_groups * num_sums * n * static_cast<int64_t>(sizeof(T)));
    T* sums = static_cast<T*>(scratch.data());
    T* sums_w = dw.data == nullptr ? nullptr : sums;
    T* sums_b = db.data == nullptr ? nullptr : sums + (num_sums - 1) * num_groups * n;
    ForEachTeam(num_groups, TeamSize(n), 0,
                LayerNormGradRows<T>{In(dy), In(x), In(mean), In(rstd), In(w), Out(dx), sums_w, sums_b, n, num_rows,
                                     num_groups});
    if (sums_w != nullptr) SumGroups(sums_w, num_groups, n, Out(dw));
    if (sums_b != nullptr) SumGroups(sums_b, num_groups, n, Out(db));
  });
}

void L2Normalize(const TensorView& x, double eps, const TensorView& y, const TensorView& rnorm) {
  TACC_KERNEL_CHECK(y.size() == x.size() && rnorm.size() == x.num_rows());
  const int64_t n = x.row_length();
  WithComputeType({x}, [&]<typename T>(T) {
    ForEachTeam(x.num_rows(), TeamSize(n), 0, L2NormalizeRow<T>{In(x), Out(y), Out(rnorm), n, eps});
  });
}

void L2NormalizeGrad(const TensorView& dy, const TensorView& x, const TensorView& rnorm, double eps,
                     const TensorView& dx) {
  TACC_KERNEL_CHECK(dy.size() == x.size() && dx.size() == x.size() && rnorm.size() == x.num_rows());
  const int64_t n = x.row_length();
  WithComputeType({dy, x}, [&]<typename T>(T) {
    ForEachTeam(x.num_rows(), TeamSize(n), 0, L2NormalizeGradRow<T>{In(dy), In(x), In(rnorm), Out(dx), n, eps});
  });
}

}  // namespace tacc::kernels::cuda
