#include <cmath>

#include "kernels/contract/norm.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/pack.h"
#include "kernels/cuda/launch/sum_groups.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/workspace.h"

namespace tacc::kernels::cuda {
namespace {

// A result as an array of `dtype` keeps it.
template <typename T>
TACC_DEVICE T AsStored(DType dtype, T x) {
  return dtype == DType::kF32 ? static_cast<T>(static_cast<float>(x)) : RoundedTo(dtype, x);
}

// acc + dx, both rounded by themselves: an fma of the product that made dx and acc would have other bits.
TACC_DEVICE float AddRounded(float acc, float dx) {
#ifdef __CUDACC__
  return __fadd_rn(acc, dx);
#else
  return acc + dx;
#endif
}
TACC_DEVICE double AddRounded(double acc, double dx) {
#ifdef __CUDACC__
  return __dadd_rn(acc, dx);
#else
  return acc + dx;
#endif
}

// A thread's packs of a row.
template <int N, typename F>
TACC_DEVICE void ForOwnPacks(const Team& team, int64_t n, F f) {
  for (int64_t i = static_cast<int64_t>(team.rank()) * N; i < n; i += static_cast<int64_t>(team.size()) * N) f(i);
}

// What a norm is taken of: x, or the sum of a and b, which its first reading leaves in x.
struct NormInput {
  AnyIn x;
  AnyIn a, b;  // or absent

  // Of a thread's own pack, before any other reading of it.
  template <int N, typename T>
  TACC_DEVICE void First(int64_t i, T* values) const {
    if (!a) return Load<N>(x, i, values);
    T other[N];
    Load<N>(a, i, values);
    Load<N>(b, i, other);
    TACC_UNROLL
    for (int j = 0; j < N; ++j) values[j] = AsStored(x.dtype, values[j] + other[j]);
    Store<N>(AnyOut{const_cast<void*>(x.data), x.dtype}, i, values);
  }
};

// x * rstd is rounded to x's dtype before the weight multiplies it, as Hugging Face's LLaMA does.
template <typename T, int N>
struct RmsNormRow {
  NormInput input;
  AnyIn w;
  AnyOut y, rstd;
  int64_t n;
  double eps;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    T sum = 0;
    ForOwnPacks<N>(team, n, [&](int64_t i) {
      T values[N];
      input.First<N>(row * n + i, values);
      TACC_UNROLL
      for (int j = 0; j < N; ++j) sum += values[j] * values[j];
    });
    const T scale = 1 / std::sqrt(team.Sum(sum) / static_cast<T>(n) + static_cast<T>(eps));
    if (team.rank() == 0) rstd.Store(row, scale);
    ForOwnPacks<N>(team, n, [&](int64_t i) {
      T values[N], weights[N];
      Load<N>(input.x, row * n + i, values);
      Load<N>(w, i, weights);
      TACC_UNROLL
      for (int j = 0; j < N; ++j) values[j] = RoundedTo(input.x.dtype, values[j] * scale) * weights[j];
      Store<N>(y, row * n + i, values);
    });
  }
};

// Sums over a group's rows, each thread of its own columns only: in shared memory where that is large enough, and in
// `sums` [groups, n] from the start where not.
template <typename T, int N>
struct GroupSums {
  T* sums;  // or null: nothing is summed
  int64_t n;
  bool in_shared;

  // The group's; `at` is the first element in shared memory.
  TACC_DEVICE T* Own(const Team& team, int64_t group, int64_t at) const {
    return in_shared ? team.shared<T>() + at : sums + group * n;
  }
  TACC_DEVICE void Clear(const Team& team, T* own) const {
    const T zeros[N] = {};
    if (sums != nullptr) ForOwnPacks<N>(team, n, [&](int64_t i) { StorePacked<N, T>(own, i, zeros); });
  }
  TACC_DEVICE void Add(T* own, int64_t i, const T* values) const {
    T total[N];
    LoadPacked<N, T>(own, i, total);
    TACC_UNROLL
    for (int j = 0; j < N; ++j) total[j] += values[j];
    StorePacked<N, T>(own, i, total);
  }
  TACC_DEVICE void Keep(const Team& team, const T* own, int64_t group) const {
    if (sums == nullptr || !in_shared) return;
    ForOwnPacks<N>(team, n, [&](int64_t i) {
      T total[N];
      LoadPacked<N, T>(own, i, total);
      StorePacked<N, T>(sums, group * n + i, total);
    });
  }
};

// Where gradients of rows go: into dx, added to acc where there is one (which may be dx), and cast into copy.
struct GradientOutput {
  AnyIn acc;  // or absent
  AnyOut dx;
  AnyOut copy;  // or absent

  template <int N, typename T>
  TACC_DEVICE void Put(int64_t i, T* gradient) const {
    if (acc) {
      T total[N];
      Load<N>(acc, i, total);
      TACC_UNROLL
      for (int j = 0; j < N; ++j) gradient[j] = AddRounded(total[j], AsStored(dx.dtype, gradient[j]));
    }
    Store<N>(dx, i, gradient);
    if (!copy) return;
    TACC_UNROLL
    for (int j = 0; j < N; ++j) gradient[j] = AsStored(dx.dtype, gradient[j]);
    Store<N>(copy, i, gradient);
  }
};

// The rows of one group, and its share of dw.
template <typename T, int N>
struct RmsNormGradRows {
  AnyIn dy, x, w, rstd;
  GradientOutput output;
  GroupSums<T, N> dw;
  int64_t n, num_rows, num_groups;

  TACC_DEVICE void operator()(Team& team, int64_t group) const {
    T* own = dw.Own(team, group, 0);
    dw.Clear(team, own);
    for (int64_t row = num_rows * group / num_groups; row < num_rows * (group + 1) / num_groups; ++row) {
      const T scale = rstd.Load<T>(row);
      T dot = 0;
      ForOwnPacks<N>(team, n, [&](int64_t i) {
        T gradient[N], value[N], weight[N];
        Load<N>(dy, row * n + i, gradient);
        Load<N>(x, row * n + i, value);
        Load<N>(w, i, weight);
        TACC_UNROLL
        for (int j = 0; j < N; ++j) dot += gradient[j] * weight[j] * value[j];
      });
      const T mean = team.Sum(dot) / static_cast<T>(n) * scale * scale;
      ForOwnPacks<N>(team, n, [&](int64_t i) {
        T gradient[N], value[N], weight[N], product[N];
        Load<N>(dy, row * n + i, gradient);
        Load<N>(x, row * n + i, value);
        Load<N>(w, i, weight);
        TACC_UNROLL
        for (int j = 0; j < N; ++j) {
          product[j] = gradient[j] * value[j] * scale;
          gradient[j] = scale * (gradient[j] * weight[j] - value[j] * mean);
        }
        dw.Add(own, i, product);
        output.Put<N>(row * n + i, gradient);
      });
    }
    dw.Keep(team, own, group);
  }
};

template <typename T, int N>
struct LayerNormRow {
  NormInput input;
  AnyIn w, b;
  AnyOut y, mean, rstd;
  int64_t n;
  double eps;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    T sum = 0, squares = 0;
    ForOwnPacks<N>(team, n, [&](int64_t i) {
      T values[N];
      input.First<N>(row * n + i, values);
      TACC_UNROLL
      for (int j = 0; j < N; ++j) sum += values[j];
    });
    const T centre = team.Sum(sum) / static_cast<T>(n);
    ForOwnPacks<N>(team, n, [&](int64_t i) {
      T values[N];
      Load<N>(input.x, row * n + i, values);
      TACC_UNROLL
      for (int j = 0; j < N; ++j) squares += (values[j] - centre) * (values[j] - centre);
    });
    const T scale = 1 / std::sqrt(team.Sum(squares) / static_cast<T>(n) + static_cast<T>(eps));
    if (team.rank() == 0) {
      mean.Store(row, centre);
      rstd.Store(row, scale);
    }
    ForOwnPacks<N>(team, n, [&](int64_t i) {
      T values[N], other[N];
      Load<N>(input.x, row * n + i, values);
      TACC_UNROLL
      for (int j = 0; j < N; ++j) values[j] = (values[j] - centre) * scale;
      if (w) {
        Load<N>(w, i, other);
        TACC_UNROLL
        for (int j = 0; j < N; ++j) values[j] *= other[j];
      }
      if (b) {
        Load<N>(b, i, other);
        TACC_UNROLL
        for (int j = 0; j < N; ++j) values[j] += other[j];
      }
      Store<N>(y, row * n + i, values);
    });
  }
};

// As RmsNormGradRows; w may be absent.
template <typename T, int N>
struct LayerNormGradRows {
  AnyIn dy, x, mean, rstd, w;
  GradientOutput output;
  GroupSums<T, N> dw, db;
  int64_t n, num_rows, num_groups;

  // dy, dy times the weight, and the normalised x.
  TACC_DEVICE void LoadPacks(int64_t row, int64_t i, T centre, T scale, T* out, T* gradient, T* normal) const {
    Load<N>(dy, row * n + i, out);
    Load<N>(x, row * n + i, normal);
    if (w) {
      Load<N>(w, i, gradient);
    } else {
      TACC_UNROLL
      for (int j = 0; j < N; ++j) gradient[j] = 1;
    }
    TACC_UNROLL
    for (int j = 0; j < N; ++j) {
      gradient[j] *= out[j];
      normal[j] = (normal[j] - centre) * scale;
    }
  }

  TACC_DEVICE void operator()(Team& team, int64_t group) const {
    T *own_w = dw.Own(team, group, 0), *own_b = db.Own(team, group, dw.sums == nullptr ? 0 : n);
    dw.Clear(team, own_w);
    db.Clear(team, own_b);
    for (int64_t row = num_rows * group / num_groups; row < num_rows * (group + 1) / num_groups; ++row) {
      const T centre = mean.Load<T>(row), scale = rstd.Load<T>(row);
      T sum = 0, dot = 0;
      ForOwnPacks<N>(team, n, [&](int64_t i) {
        T out[N], gradient[N], normal[N];
        LoadPacks(row, i, centre, scale, out, gradient, normal);
        TACC_UNROLL
        for (int j = 0; j < N; ++j) {
          sum += gradient[j];
          dot += gradient[j] * normal[j];
        }
      });
      const T mean_gradient = team.Sum(sum) / static_cast<T>(n);
      const T mean_dot = team.Sum(dot) / static_cast<T>(n);
      ForOwnPacks<N>(team, n, [&](int64_t i) {
        T out[N], gradient[N], normal[N];
        LoadPacks(row, i, centre, scale, out, gradient, normal);
        TACC_UNROLL
        for (int j = 0; j < N; ++j) gradient[j] = scale * (gradient[j] - mean_gradient - normal[j] * mean_dot);
        output.Put<N>(row * n + i, gradient);
        if (db.sums != nullptr) db.Add(own_b, i, out);
        TACC_UNROLL
        for (int j = 0; j < N; ++j) out[j] *= normal[j];
        if (dw.sums != nullptr) dw.Add(own_w, i, out);
      });
    }
    dw.Keep(team, own_w, group);
    db.Keep(team, own_b, group);
  }
};

template <typename T, int N>
struct L2NormalizeRow {
  AnyIn x;
  AnyOut y, rnorm;
  int64_t n;
  double eps;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    T sum = 0;
    ForOwnPacks<N>(team, n, [&](int64_t i) {
      T values[N];
      Load<N>(x, row * n + i, values);
      TACC_UNROLL
      for (int j = 0; j < N; ++j) sum += values[j] * values[j];
    });
    const T norm = std::sqrt(team.Sum(sum)), floor = static_cast<T>(eps);
    const T scale = 1 / (norm < floor ? floor : norm);
    if (team.rank() == 0) rnorm.Store(row, scale);
    ForOwnPacks<N>(team, n, [&](int64_t i) {
      T values[N];
      Load<N>(x, row * n + i, values);
      TACC_UNROLL
      for (int j = 0; j < N; ++j) values[j] *= scale;
      Store<N>(y, row * n + i, values);
    });
  }
};

// With h = x * rnorm: dx = rnorm * (dy - h * (dy . h)); where the norm was below eps the divisor is a constant.
template <typename T, int N>
struct L2NormalizeGradRow {
  AnyIn dy, x, rnorm;
  AnyOut dx;
  int64_t n;
  double eps;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    const T scale = rnorm.Load<T>(row);
    T dot = 0;
    ForOwnPacks<N>(team, n, [&](int64_t i) {
      T gradient[N], value[N];
      Load<N>(dy, row * n + i, gradient);
      Load<N>(x, row * n + i, value);
      TACC_UNROLL
      for (int j = 0; j < N; ++j) dot += gradient[j] * (value[j] * scale);
    });
    dot = team.Sum(dot);
    if (scale >= 1 / static_cast<T>(eps)) dot = 0;
    ForOwnPacks<N>(team, n, [&](int64_t i) {
      T gradient[N], value[N];
      Load<N>(dy, row * n + i, gradient);
      Load<N>(x, row * n + i, value);
      TACC_UNROLL
      for (int j = 0; j < N; ++j) gradient[j] = scale * (gradient[j] - value[j] * scale * dot);
      Store<N>(dx, row * n + i, gradient);
    });
  }
};

// a and b, or acc and copy, may be absent.
void CheckAddends(const TensorView& a, const TensorView& b, const TensorView& sum) {
  TACC_KERNEL_CHECK(a.data == nullptr || (a.size() == sum.size() && b.size() == sum.size()));
}
void CheckGradient(const TensorView& acc, const TensorView& x, const TensorView& out, const TensorView& copy) {
  TACC_KERNEL_CHECK(out.size() == x.size() && (acc.data == nullptr || acc.size() == x.size()));
  TACC_KERNEL_CHECK(copy.data == nullptr || copy.size() == x.size());
}

// Threads for rows of n, in packs of N.
int RowTeam(int64_t n, int pack) { return TeamSize(n, pack == 1 ? 8 : pack); }

void AddRmsNorm(const TensorView& a, const TensorView& b, const TensorView& w, double eps, const TensorView& y,
                const TensorView& rstd, const TensorView& sum) {
  CheckAddends(a, b, sum);
  TACC_KERNEL_CHECK(y.size() == sum.size() && w.size() == sum.row_length() && rstd.size() == sum.num_rows());
  const int64_t n = sum.row_length();
  WithPacks(n % kPack == 0, {a, b, sum, w, y}, [&]<typename T, typename N>(T, N) {
    ForEachTeam(sum.num_rows(), RowTeam(n, N::value), 0,
                RmsNormRow<T, N::value>{{In(sum), In(a), In(b)}, In(w), Out(y), Out(rstd), n, eps});
  });
}

void RmsNorm(const TensorView& x, const TensorView& w, double eps, const TensorView& y, const TensorView& rstd) {
  AddRmsNorm(TensorView{}, TensorView{}, w, eps, y, rstd, x);
}

void RmsNormGradAccumulate(const TensorView& acc, const TensorView& dy, const TensorView& x, const TensorView& w,
                           const TensorView& rstd, const TensorView& out, const TensorView& dw,
                           const TensorView& copy) {
  CheckGradient(acc, x, out, copy);
  TACC_KERNEL_CHECK(dy.size() == x.size() && w.size() == x.row_length());
  TACC_KERNEL_CHECK(dw.size() == x.row_length() && rstd.size() == x.num_rows());
  const int64_t n = x.row_length(), num_rows = x.num_rows(), num_groups = NumGroups(num_rows, n);
  WithPacks(n % kPack == 0, {acc, dy, x, w, out, copy}, [&]<typename T, typename N>(T, N) {
    const int64_t row_bytes = n * static_cast<int64_t>(sizeof(T));
    const bool in_shared = row_bytes <= kMaxSharedBytes;
    const Scratch scratch(num_groups * row_bytes);
    T* sums = static_cast<T*>(scratch.data());
    ForEachTeam(num_groups, RowTeam(n, N::value), in_shared ? row_bytes : 0,
                RmsNormGradRows<T, N::value>{In(dy),
                                             In(x),
                                             In(w),
                                             In(rstd),
                                             {In(acc), Out(out), Out(copy)},
                                             {sums, n, in_shared},
                                             n,
                                             num_rows,
                                             num_groups});
    SumGroups(sums, num_groups, n, Out(dw));
  });
}

void RmsNormGrad(const TensorView& dy, const TensorView& x, const TensorView& w, const TensorView& rstd,
                 const TensorView& dx, const TensorView& dw, const TensorView& copy) {
  RmsNormGradAccumulate(TensorView{}, dy, x, w, rstd, dx, dw, copy);
}

void AddLayerNorm(const TensorView& a, const TensorView& b, const TensorView& w, const TensorView& bias, double eps,
                  const TensorView& y, const TensorView& mean, const TensorView& rstd, const TensorView& sum) {
  CheckAddends(a, b, sum);
  TACC_KERNEL_CHECK(y.size() == sum.size() && mean.size() == sum.num_rows() && rstd.size() == sum.num_rows());
  TACC_KERNEL_CHECK(w.data == nullptr || w.size() == sum.row_length());
  TACC_KERNEL_CHECK(bias.data == nullptr || bias.size() == sum.row_length());
  const int64_t n = sum.row_length();
  WithPacks(n % kPack == 0, {a, b, sum, w, bias, y}, [&]<typename T, typename N>(T, N) {
    ForEachTeam(
        sum.num_rows(), RowTeam(n, N::value), 0,
        LayerNormRow<T, N::value>{{In(sum), In(a), In(b)}, In(w), In(bias), Out(y), Out(mean), Out(rstd), n, eps});
  });
}

void LayerNorm(const TensorView& x, const TensorView& w, const TensorView& b, double eps, const TensorView& y,
               const TensorView& mean, const TensorView& rstd) {
  AddLayerNorm(TensorView{}, TensorView{}, w, b, eps, y, mean, rstd, x);
}

void LayerNormGradAccumulate(const TensorView& acc, const TensorView& dy, const TensorView& x, const TensorView& mean,
                             const TensorView& rstd, const TensorView& w, const TensorView& out, const TensorView& dw,
                             const TensorView& db, const TensorView& copy) {
  CheckGradient(acc, x, out, copy);
  TACC_KERNEL_CHECK(dy.size() == x.size());
  TACC_KERNEL_CHECK(mean.size() == x.num_rows() && rstd.size() == x.num_rows());
  TACC_KERNEL_CHECK(w.data == nullptr || w.size() == x.row_length());
  TACC_KERNEL_CHECK(dw.data == nullptr || dw.size() == x.row_length());
  TACC_KERNEL_CHECK(db.data == nullptr || db.size() == x.row_length());
  const int64_t n = x.row_length(), num_rows = x.num_rows();
  const int num_sums = (dw.data != nullptr) + (db.data != nullptr);
  const int64_t num_groups = num_sums == 0 ? num_rows : NumGroups(num_rows, n);
  WithPacks(n % kPack == 0, {acc, dy, x, w, out, copy}, [&]<typename T, typename N>(T, N) {
    const int64_t row_bytes = num_sums * n * static_cast<int64_t>(sizeof(T));
    const bool in_shared = row_bytes <= kMaxSharedBytes;
    const Scratch scratch(num_groups * row_bytes);
    T* sums = static_cast<T*>(scratch.data());
    T* sums_w = dw.data == nullptr ? nullptr : sums;
    T* sums_b = db.data == nullptr ? nullptr : sums + (num_sums - 1) * num_groups * n;
    ForEachTeam(num_groups, RowTeam(n, N::value), in_shared ? row_bytes : 0,
                LayerNormGradRows<T, N::value>{In(dy),
                                               In(x),
                                               In(mean),
                                               In(rstd),
                                               In(w),
                                               {In(acc), Out(out), Out(copy)},
                                               {sums_w, n, in_shared},
                                               {sums_b, n, in_shared},
                                               n,
                                               num_rows,
                                               num_groups});
    if (sums_w != nullptr) SumGroups(sums_w, num_groups, n, Out(dw));
    if (sums_b != nullptr) SumGroups(sums_b, num_groups, n, Out(db));
  });
}

void LayerNormGrad(const TensorView& dy, const TensorView& x, const TensorView& mean, const TensorView& rstd,
                   const TensorView& w, const TensorView& dx, const TensorView& dw, const TensorView& db,
                   const TensorView& copy) {
  LayerNormGradAccumulate(TensorView{}, dy, x, mean, rstd, w, dx, dw, db, copy);
}

void L2Normalize(const TensorView& x, double eps, const TensorView& y, const TensorView& rnorm) {
  TACC_KERNEL_CHECK(y.size() == x.size() && rnorm.size() == x.num_rows());
  const int64_t n = x.row_length();
  WithPacks(n % kPack == 0, {x, y}, [&]<typename T, typename N>(T, N) {
    ForEachTeam(x.num_rows(), RowTeam(n, N::value), 0, L2NormalizeRow<T, N::value>{In(x), Out(y), Out(rnorm), n, eps});
  });
}

void L2NormalizeGrad(const TensorView& dy, const TensorView& x, const TensorView& rnorm, double eps,
                     const TensorView& dx) {
  TACC_KERNEL_CHECK(dy.size() == x.size() && dx.size() == x.size() && rnorm.size() == x.num_rows());
  const int64_t n = x.row_length();
  WithPacks(n % kPack == 0, {dy, x, dx}, [&]<typename T, typename N>(T, N) {
    ForEachTeam(x.num_rows(), RowTeam(n, N::value), 0,
                L2NormalizeGradRow<T, N::value>{In(dy), In(x), In(rnorm), Out(dx), n, eps});
  });
}

}  // namespace

int64_t NormGradWorkspaceBytes(int64_t num_rows, int64_t row_length, int num_sums, DType compute) {
  return NumGroups(num_rows, row_length) * num_sums * row_length * SizeOf(compute);
}

const NormKernels kNorm = {
    .RmsNorm = RmsNorm,
    .AddRmsNorm = AddRmsNorm,
    .RmsNormGrad = RmsNormGrad,
    .RmsNormGradAccumulate = RmsNormGradAccumulate,
    .LayerNorm = LayerNorm,
    .AddLayerNorm = AddLayerNorm,
    .LayerNormGrad = LayerNormGrad,
    .LayerNormGradAccumulate = LayerNormGradAccumulate,
    .L2Normalize = L2Normalize,
    .L2NormalizeGrad = L2NormalizeGrad,
};

}  // namespace tacc::kernels::cuda
