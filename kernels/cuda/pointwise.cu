#include <algorithm>
#include <type_traits>

#include "kernels/contract/pointwise.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/elementary.h"
#include "kernels/cuda/launch/map.h"
#include "kernels/cuda/launch/strided.h"
#include "kernels/cuda/launch/table_launch.h"
#include "kernels/cuda/many_tensors.h"

namespace tacc::kernels::cuda {
namespace {

struct BinaryOf {
  BinaryOp op;
  // Of a b that is shorter than a:
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
    Apply(a[0], v, out[0]);
  }
  template <typename T, int W>
  TACC_DEVICE void operator()(int64_t, const T (&x)[2][W], T (&out)[1][W]) const {
    Apply(x[0], x[1], out[0]);
  }

  template <typename T, int W>
  TACC_DEVICE void Apply(const T (&u)[W], const T (&v)[W], T (&y)[W]) const {
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

// f of rows of `width` gates and as many ups. W divides width.
template <typename T, int W, typename F>
struct JoinedItem {
  AnyIn x, dy;  // no dy: the forward
  AnyOut out;
  int64_t width;
  Packs<W> packs;  // of the half
  F f;

  TACC_DEVICE void operator()(int64_t item) const {
    packs.At(item, [this](int64_t first, auto w) {
      constexpr int V = decltype(w)::value;
      const int64_t gate = first + first / width * width;
      if constexpr (std::is_same_v<F, SwigluOf>) {
        const AnyIn in[2] = {x, x};
        const int64_t at[2] = {gate, gate + width};
        T values[2][V], y[1][V] = {};
        LoadAll(in, at, values);
        f(first, values, y);
        Store<V>(out, first, y[0]);
      } else {
        const AnyIn in[3] = {x, x, dy};
        const int64_t at[3] = {gate, gate + width, first};
        T values[3][V], dx[2][V] = {};
        LoadAll(in, at, values);
        f(first, values, dx);
        Store<V>(out, gate, dx[0]);
        Store<V>(out, gate + width, dx[1]);
      }
    });
  }
};

template <typename F>
void MapJoined(const TensorView& x, const TensorView& dy, const TensorView& out, const TensorView& half) {
  TACC_KERNEL_CHECK(x.row_length() == 2 * half.row_length() && x.num_rows() == half.num_rows());
  const int64_t width = half.row_length();
  const TensorView views[] = {x, half, out};
  const auto run = [&]<typename T, int W>(T, std::integral_constant<int, W>) {
    const Packs<W> packs(half.size());
    ForEach(packs.num_items, JoinedItem<T, W, F>{In(x), In(dy), Out(out), width, packs, F()});
  };
  WithComputeType({x, half}, [&]<typename T>(T) {
    const int packed = std::is_same_v<T, float> ? PackWidth(views, views + 3) : 1;
    if constexpr (std::is_same_v<T, float>) {
      if (packed == kPack && width % kPack == 0) return run(T(), std::integral_constant<int, kPack>());
      if (packed >= 4 && width % 4 == 0) return run(T(), std::integral_constant<int, 4>());
    }
    run(T(), std::integral_constant<int, 1>());
  });
}

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

// A fill as the GPU sees it.
struct FillEntry {
  AnyOut y;
  int64_t n;
  double value;
  bool packs;
  int64_t first_chunk = 0;
};

struct FillChunk {
  static constexpr int kWidth = 4;  // of packs: accumulators are f32

  template <typename T, int W>
  TACC_DEVICE static void Elements(const Team& team, const FillEntry& e, int64_t begin, int64_t end) {
    T v[W];
    for (T& element : v) element = static_cast<T>(e.value);
    for (int64_t i = begin + team.rank() * W; i < end; i += static_cast<int64_t>(team.size()) * W) Store<W>(e.y, i, v);
  }

  TACC_DEVICE void operator()(Team& team, const FillEntry& e, int64_t chunk) const {
    const auto [begin, end] = RangeOfChunk(chunk, e.n);
    if (!e.packs) return Elements<double, 1>(team, e, begin, end);
    const int64_t packed = begin + (end - begin) / kWidth * kWidth;
    Elements<float, kWidth>(team, e, begin, packed);
    Elements<float, 1>(team, e, packed, end);
  }
};

struct IotaElement {
  int64_t inner, extent, first;
  AnyOut y;

  TACC_DEVICE void operator()(int64_t i) const { y.Store(i, static_cast<double>(first + i / inner % extent)); }
};

void Binary(BinaryOp op, const TensorView& a, const TensorView& b, const TensorView& y) {
  const int64_t n = a.size(), period = b.size();
  TACC_KERNEL_CHECK(y.size() == n);
  if (n == 0) return;
  TACC_KERNEL_CHECK(period > 0 && n % period == 0);
  const BinaryOf f{.op = op, .b = In(b), .period = period, .narrow = n <= INT32_MAX};
  if (!IsFloat(a.dtype) && !IsFloat(b.dtype)) return Map<int64_t, 1, 1>({a}, {y}, f);
  if (a.dtype == DType::kF64 || b.dtype == DType::kF64) return Map<double, 1, 1>({a}, {y}, f);
  if (period == n) return Map<float, 2, 1>({a, b}, {y}, f);
  // Where a's packs start, b's must too.
  const bool packs = period == 1 || (ArePackable({b}) && period % kPack == 0);
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

void SwigluJoined(const TensorView& x, const TensorView& y) { MapJoined<SwigluOf>(x, x, y, y); }

void SwigluJoinedGrad(const TensorView& x, const TensorView& dy, const TensorView& dx) {
  TACC_KERNEL_CHECK(dx.dims == x.dims);
  MapJoined<SwigluGradOf>(x, dy, dx, dy);
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

void Fill(double value, const TensorView& y) {
  const int width = PackWidth(&y, &y + 1);
  if (width == kPack) return FillPacks<float, kPack>(value, y);
  if (width == 4) return FillPacks<float, 4>(value, y);
  FillPacks<double, 1>(value, y);
}

void IsFinite(const TensorView& x, const TensorView& y) {
  Fill(1, y);
  WithPacks(true, {x}, [&]<typename T, int W>(T, std::integral_constant<int, W>) {
    const Packs<W> packs(x.size());
    ForEach(packs.num_items, StoreZeroUnlessFinite<T, W>{In(x), Out(y), packs});
  });
}

void Iota(int dim, int64_t first, const TensorView& y) {
  TACC_KERNEL_CHECK(dim >= 0 && dim < y.dims.rank());
  ForEach(y.size(), IotaElement{y.dims.Product(dim + 1, y.dims.rank()), y.dims[dim], first, Out(y)});
}

}  // namespace

TensorTable FillTable(const std::vector<FillOf>& fills) {
  TensorTable table;
  for (const FillOf& fill : fills) {
    const int64_t n = fill.y.size();
    AddTensor(FillEntry{Out(fill.y), n, fill.value, PackWidth(&fill.y, &fill.y + 1) > 1}, NumChunks(n), table);
  }
  return table;
}

void FillMany(const TensorTable& table) { ForEachChunk<256, FillEntry>(table, 0, FillChunk()); }

const PointwiseKernels kPointwise = {
    .Binary = Binary,
    .Swiglu = Swiglu,
    .SwigluGrad = SwigluGrad,
    .SwigluJoined = SwigluJoined,
    .SwigluJoinedGrad = SwigluJoinedGrad,
    .Select = Select,
    .IsFinite = IsFinite,
    .Fill = Fill,
    .Iota = Iota,
};

}  // namespace tacc::kernels::cuda
