#include <algorithm>
#include <type_traits>

#include "kernels/cuda/elementary.h"
#include "kernels/cuda/map.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/strided.h"

namespace tacc::kernels::cuda {
namespace {

struct BinaryOf {
  BinaryOp op;
  AnyIn b;
  int64_t period;
  bool narrow;  // every index fits 32 bits

  template <typename T, int W>
  TACC_DEVICE void LoadB(int64_t first, T (&v)[W]) const {
    if (period > 1) return Load<W>(b, Divide(narrow, first, period).rest, v);
    const T value = b.Load<T>(0);
    for (int j = 0; j < W; ++j) v[j] = value;
  }

  template <typename T, int W, typename F>
  TACC_DEVICE static void Each(const T (&u)[W], const T (&v)[W], T (&y)[W], F f) {
    for (int j = 0; j < W; ++j) y[j] = f(u[j], v[j]);
  }

  template <typename T, int W>
  TACC_DEVICE void operator()(int64_t first, const T (&a)[1][W], T (&out)[1][W]) const {
    T v[W];
    LoadB(first, v);
    const T(&u)[W] = a[0];
    T(&y)[W] = out[0];
    switch (op) {
      case BinaryOp::kAdd:
        return Each(u, v, y, [](T p, T q) { return p + q; });
      case BinaryOp::kSub:
        return Each(u, v, y, [](T p, T q) { return p - q; });
      case BinaryOp::kMul:
        return Each(u, v, y, [](T p, T q) { return p * q; });
      case BinaryOp::kDiv:
        return Each(u, v, y, [](T p, T q) { return p / q; });
      case BinaryOp::kMaximum:  // NaN in either gives NaN
        return Each(u, v, y, [](T p, T q) { return p != p || p > q ? p : q; });
      case BinaryOp::kMinimum:
        return Each(u, v, y, [](T p, T q) { return p != p || p < q ? p : q; });
    }
  }
};

struct SwigluOf {
  template <typename T, int W>
  TACC_DEVICE void operator()(int64_t, const T (&x)[2][W], T (&y)[1][W]) const {
    for (int j = 0; j < W; ++j) y[0][j] = Silu(x[0][j]) * x[1][j];
  }
};

struct SwigluGradOf {
  template <typename T, int W>
  TACC_DEVICE void operator()(int64_t, const T (&x)[3][W], T (&dx)[2][W]) const {
    for (int j = 0; j < W; ++j) {
      const T gate = x[0][j], up = x[1][j], dy = x[2][j], s = Sigmoid(gate);
      dx[0][j] = dy * up * s * (T(1) + gate * (T(1) - s));
      dx[1][j] = dy * gate * s;
    }
  }
};

// Units of U's size, of a or of b.
template <typename U>
struct SelectUnit {
  AnyIn cond;
  const U *a, *b;
  U* y;

  TACC_DEVICE void operator()(int64_t i) const { y[i] = cond.Load<double>(0) != 0 ? a[i] : b[i]; }
};

template <typename U>
void SelectUnits(const TensorView& cond, const TensorView& a, const TensorView& b, const TensorView& y) {
  ForEach(y.bytes() / static_cast<int64_t>(sizeof(U)), SelectUnit<U>{In(cond), a.as<U>(), b.as<U>(), y.as<U>()});
}

// Threads that find a bad element all store the same.
template <typename T, int W>
struct StoreZeroUnlessFinite {
  AnyIn x;
  AnyOut y;
  Packs<W> packs;

  TACC_DEVICE void operator()(int64_t item) const {
    packs.At(item, [this](int64_t first, auto width) {
      T v[decltype(width)::value];
      Load<decltype(width)::value>(x, first, v);
      bool bad = false;
      for (const T& value : v) bad |= !(value - value == T(0));
      if (bad) y.Store(0, 0.0f);
    });
  }
};

// The sum of the squares of a group of items, into partial[group].
template <typename T, int W>
struct SumSquaresOfGroup {
  AnyIn x;
  Packs<W> packs;  // of the elements inside the bounds
  int64_t num_groups;
  Strided<1> runs;  // where the packs lie; rank 0: one behind the other
  double* partial;

  TACC_DEVICE void operator()(Team& team, int64_t group) const {
    double sum = 0;
    const int64_t end = packs.num_items * (group + 1) / num_groups;
    for (int64_t item = packs.num_items * group / num_groups + team.rank(); item < end; item += team.size()) {
      packs.At(item, [&](int64_t first, auto width) {
        if (runs.rank > 0) {
          int64_t offsets[1];
          runs.Offsets(item, offsets);
          first = offsets[0] * W;
        }
        T v[decltype(width)::value];
        Load<decltype(width)::value>(x, first, v);
        for (const T& value : v) sum += static_cast<double>(value) * static_cast<double>(value);
      });
    }
    const double total = team.Sum(sum);
    if (team.rank() == 0) partial[group] = total;
  }
};

struct SumOfPartials {
  const double* partial;
  int64_t n;
  AnyOut y;

  TACC_DEVICE void operator()(Team& team, int64_t) const {
    double sum = 0;
    for (int64_t i = team.rank(); i < n; i += team.size()) sum += partial[i];
    const double total = team.Sum(sum);
    if (team.rank() == 0) y.Store(0, total);
  }
};

constexpr int kSumTeam = 256;

int64_t NumSquareGroups(int64_t n) {
  constexpr int64_t kElements = 8192, kMaxGroups = 1024;
  return std::clamp((n + kElements - 1) / kElements, int64_t{1}, kMaxGroups);
}

template <typename T, int W>
struct FillItem {
  AnyOut y;
  Packs<W> packs;
  double value;

  TACC_DEVICE void operator()(int64_t item) const {
    packs.At(item, [this](int64_t first, auto width) {
      T v[decltype(width)::value];
      for (T& element : v) element = static_cast<T>(value);
      Store<decltype(width)::value>(y, first, v);
    });
  }
};

template <typename T, int W>
void FillPacks(double value, const TensorView& y) {
  const Packs<W> packs(y.size());
  ForEach(packs.num_items, FillItem<T, W>{Out(y), packs, value});
}

struct IotaElement {
  int64_t inner, extent, first;
  AnyOut y;

  TACC_DEVICE void operator()(int64_t i) const { y.Store(i, static_cast<double>(first + i / inner % extent)); }
};

}  // namespace

void Binary(BinaryOp op, const TensorView& a, const TensorView& b, const TensorView& y) {
  const int64_t n = a.size(), period = b.size();
  TACC_KERNEL_CHECK(y.size() == n);
  if (n == 0) return;
  TACC_KERNEL_CHECK(period > 0 && n % period == 0);
  const BinaryOf f{.op = op, .b = In(b), .period = period, .narrow = n <= INT32_MAX};
  if (!IsFloat(a.dtype) && !IsFloat(b.dtype)) return Map<int64_t, 1, 1>({a}, {y}, f);
  if (a.dtype == DType::kF64 || b.dtype == DType::kF64) return Map<double, 1, 1>({a}, {y}, f);
  // Where a's packs start, b's must too.
  const bool packs = period == 1 || (ArePackable({b}) && (period == n || period % kPack == 0));
  if (!packs) return MapPacks<float, 1, 1, 1>({a}, {y}, f);
  Map<float, 1, 1>({a}, {y}, f);
}

void Swiglu(const TensorView& gate, const TensorView& up, const TensorView& y) {
  TACC_KERNEL_CHECK(up.size() == gate.size() && y.size() == gate.size());
  WithComputeType({gate, up}, [&]<typename T>(T) { Map<T, 2, 1>({gate, up}, {y}, SwigluOf()); });
}

void SwigluGrad(const TensorView& gate, const TensorView& up, const TensorView& dy, const TensorView& dgate,
                const TensorView& dup) {
  const int64_t n = gate.size();
  TACC_KERNEL_CHECK(up.size() == n && dy.size() == n && dgate.size() == n && dup.size() == n);
  WithComputeType({gate, up, dy}, [&]<typename T>(T) { Map<T, 3, 2>({gate, up, dy}, {dgate, dup}, SwigluGradOf()); });
}

void Select(const TensorView& cond, const TensorView& a, const TensorView& b, const TensorView& y) {
  TACC_KERNEL_CHECK(cond.size() == 1 && a.dtype == b.dtype && a.dtype == y.dtype);
  TACC_KERNEL_CHECK(a.size() == y.size() && b.size() == y.size());
  const uintptr_t all = reinterpret_cast<uintptr_t>(a.data) | reinterpret_cast<uintptr_t>(b.data) |
                        reinterpret_cast<uintptr_t>(y.data) | static_cast<uintptr_t>(y.bytes());
  if (all % 16 == 0) return SelectUnits<Bytes16>(cond, a, b, y);
  switch (SizeOf(y.dtype)) {
    case 1:
      return SelectUnits<uint8_t>(cond, a, b, y);
    case 2:
      return SelectUnits<uint16_t>(cond, a, b, y);
    case 4:
      return SelectUnits<uint32_t>(cond, a, b, y);
    default:
      return SelectUnits<uint64_t>(cond, a, b, y);
  }
}

void IsFinite(const TensorView& x, const TensorView& y) {
  Fill(1, y);
  WithPacks(true, {x}, [&]<typename T, int W>(T, std::integral_constant<int, W>) {
    const Packs<W> packs(x.size());
    ForEach(packs.num_items, StoreZeroUnlessFinite<T, W>{In(x), Out(y), packs});
  });
}

int64_t SumSquaresWorkspaceBytes(const Dims& bounds) {
  return NumSquareGroups(bounds.Product()) * static_cast<int64_t>(sizeof(double));
}

void SumSquares(const TensorView& x, const Dims& bounds, const TensorView& y) {
  TACC_KERNEL_CHECK(bounds.rank() == x.dims.rank() && y.size() == 1);
  for (int d = 0; d < bounds.rank(); ++d) TACC_KERNEL_CHECK(bounds[d] >= 0 && bounds[d] <= x.dims[d]);
  // A run is what lies densely inside the bounds: the dims from the last one that is cut.
  int cut = bounds.rank() - 1;
  while (cut > 0 && bounds[cut] == x.dims[cut]) --cut;
  const int64_t n = bounds.Product(), num_groups = NumSquareGroups(n);
  Scratch scratch(SumSquaresWorkspaceBytes(bounds));
  double* partial = static_cast<double*>(scratch.data());
  const int64_t run = bounds.Product(std::max(cut, 0), bounds.rank());
  const int64_t stride = x.dims.Product(std::max(cut, 0), bounds.rank());
  const bool dense = cut <= 0 || n == 0;
  WithPacks(dense || (run % kPack == 0 && stride % kPack == 0), {x}, [&](auto zero, auto width) {
    constexpr int W = decltype(width)::value;
    SumSquaresOfGroup<decltype(zero), W> kernel{In(x), Packs<W>(n), num_groups, {}, partial};
    if (!dense) {
      Dims dims(bounds.begin(), bounds.begin() + cut), strides = dims;
      int64_t step = stride / W;
      for (int d = cut - 1; d >= 0; step *= x.dims[d], --d) strides[d] = step;
      dims.push_back(run / W);
      strides.push_back(1);
      kernel.runs = {dims, {strides}};
    }
    ForEachTeam<kSumTeam>(num_groups, kSumTeam, 0, kernel);
  });
  ForEachTeam<kSumTeam>(1, kSumTeam, 0, SumOfPartials{partial, num_groups, Out(y)});
}

void Fill(double value, const TensorView& y) {
  const int width = PackWidth(&y, &y + 1);
  if (width == kPack) return FillPacks<float, kPack>(value, y);
  if (width == 4) return FillPacks<float, 4>(value, y);
  FillPacks<double, 1>(value, y);
}

void Iota(int dim, int64_t first, const TensorView& y) {
  TACC_KERNEL_CHECK(dim >= 0 && dim < y.dims.rank());
  ForEach(y.size(), IotaElement{y.dims.Product(dim + 1, y.dims.rank()), y.dims[dim], first, Out(y)});
}

}  // namespace tacc::kernels::cuda
