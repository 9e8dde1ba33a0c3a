// Unary, UnaryGrad and CastMany of many_tensors.h.
#include <type_traits>

#include "kernels/contract/unary.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/elementary.h"
#include "kernels/cuda/launch/map.h"
#include "kernels/cuda/launch/table_launch.h"
#include "kernels/cuda/many_tensors.h"

namespace tacc::kernels::cuda {
namespace {

template <typename T, int W, typename F>
TACC_DEVICE void Each(const T (&x)[1][W], T (&y)[1][W], F f) {
  for (int j = 0; j < W; ++j) y[0][j] = f(x[0][j]);
}

template <typename T, int W, typename F>
TACC_DEVICE void EachPair(const T (&x)[2][W], T (&y)[1][W], F f) {
  for (int j = 0; j < W; ++j) y[0][j] = f(x[0][j], x[1][j]);
}

// The branch on the operation is one a pack, the same for all threads.
struct UnaryOf {
  UnaryOp op;
  double p0, p1;

  template <typename T, int W>
  TACC_DEVICE void operator()(int64_t, const T (&x)[1][W], T (&y)[1][W]) const {
    const T c0 = static_cast<T>(p0), c1 = static_cast<T>(p1);
    switch (op) {
      case UnaryOp::kCast:
        return Each(x, y, [](T v) { return v; });
      case UnaryOp::kNeg:
        return Each(x, y, [](T v) { return -v; });
      case UnaryOp::kRelu:  // NaN stays NaN
        return Each(x, y, [](T v) { return v < T(0) ? T(0) : v; });
      case UnaryOp::kSquare:
        return Each(x, y, [](T v) { return v * v; });
      case UnaryOp::kScale:
        return Each(x, y, [=](T v) { return v * c0; });
      case UnaryOp::kAddScalar:
        return Each(x, y, [=](T v) { return v + c0; });
      case UnaryOp::kClamp:
        return Each(x, y, [=](T v) {
          const T low = v < c0 ? c0 : v;
          return low > c1 ? c1 : low;
        });
      default:
        if constexpr (std::is_floating_point_v<T>) Float(x, y);
    }
  }

  template <typename T, int W>
  TACC_DEVICE void Float(const T (&x)[1][W], T (&y)[1][W]) const {
    switch (op) {
      case UnaryOp::kExp:
        return Each(x, y, [](T v) { return Exp(v); });
      case UnaryOp::kLog:
        return Each(x, y, [](T v) { return Log(v); });
      case UnaryOp::kSqrt:
        return Each(x, y, [](T v) { return Sqrt(v); });
      case UnaryOp::kRsqrt:
        return Each(x, y, [](T v) { return T(1) / Sqrt(v); });
      case UnaryOp::kReciprocal:
        return Each(x, y, [](T v) { return T(1) / v; });
      case UnaryOp::kSin:
        return Each(x, y, [](T v) { return Sin(v); });
      case UnaryOp::kCos:
        return Each(x, y, [](T v) { return Cos(v); });
      case UnaryOp::kTanh:
        return Each(x, y, [](T v) { return Tanh(v); });
      case UnaryOp::kSigmoid:
        return Each(x, y, [](T v) { return Sigmoid(v); });
      case UnaryOp::kSilu:
        return Each(x, y, [](T v) { return Silu(v); });
      case UnaryOp::kGelu:
        return Each(x, y, [](T v) { return Gelu(v); });
      case UnaryOp::kGeluTanh:
        return Each(x, y, [](T v) { return GeluTanh(v); });
      default:
        return;
    }
  }
};

struct UnaryGradOf {
  UnaryGradOp op;
  double p0, p1;
  DType x_dtype;

  template <typename T, int W>
  TACC_DEVICE void operator()(int64_t, const T (&x)[2][W], T (&dx)[1][W]) const {
    switch (op) {
      case UnaryGradOp::kTanh:
        return EachPair(x, dx, [](T v, T d) {
          const T t = Tanh(v);
          return d * (T(1) - t * t);
        });
      case UnaryGradOp::kRelu:
        return EachPair(x, dx, [](T v, T d) { return v > T(0) ? d : T(0); });
      case UnaryGradOp::kSilu:
        return EachPair(x, dx, [](T v, T d) { return d * SiluGrad(v); });
      case UnaryGradOp::kSigmoid:
        return EachPair(x, dx, [](T v, T d) { return d * SigmoidGrad(v); });
      case UnaryGradOp::kGelu:
        return EachPair(x, dx, [](T v, T d) { return d * GeluGrad(v); });
      case UnaryGradOp::kGeluTanh:
        return EachPair(x, dx, [](T v, T d) { return d * GeluTanhGrad(v); });
      case UnaryGradOp::kClamp: {
        // The bounds as x's dtype has them: the clamped values of a narrow x lie on the rounded bounds, and belong
        // inside.
        const T low = RoundedTo(x_dtype, static_cast<T>(p0)), high = RoundedTo(x_dtype, static_cast<T>(p1));
        return EachPair(x, dx, [=](T v, T d) { return v >= low && v <= high ? d : T(0); });
      }
    }
  }
};

// A cast as the GPU sees it.
struct CastEntry {
  enum class By { kPacks, kFloat, kDouble, kInteger };
  AnyIn x;
  AnyOut y;
  int64_t n;
  By by;
  int64_t first_chunk = 0;
};

struct CastChunk {
  static constexpr int kWidth = 4;  // of packs: one side is f32 as a rule

  template <typename T, int W>
  TACC_DEVICE static void Elements(const Team& team, const CastEntry& e, int64_t begin, int64_t end) {
    for (int64_t i = begin + team.rank() * W; i < end; i += static_cast<int64_t>(team.size()) * W) {
      T v[W];
      Load<W>(e.x, i, v);
      Store<W>(e.y, i, v);
    }
  }

  TACC_DEVICE void operator()(Team& team, const CastEntry& e, int64_t chunk) const {
    const auto [begin, end] = RangeOfChunk(chunk, e.n);
    if (e.by == CastEntry::By::kInteger) return Elements<int64_t, 1>(team, e, begin, end);
    if (e.by == CastEntry::By::kDouble) return Elements<double, 1>(team, e, begin, end);
    const int64_t packed = e.by == CastEntry::By::kPacks ? begin + (end - begin) / kWidth * kWidth : begin;
    Elements<float, kWidth>(team, e, begin, packed);
    Elements<float, 1>(team, e, packed, end);
  }
};

CastEntry::By CastBy(const TensorView& x, const TensorView& y) {
  if (!IsFloat(x.dtype) && !IsFloat(y.dtype)) return CastEntry::By::kInteger;
  if (x.dtype == DType::kF64 || y.dtype == DType::kF64) return CastEntry::By::kDouble;
  const TensorView both[] = {x, y};
  return PackWidth(both, both + 2) > 1 ? CastEntry::By::kPacks : CastEntry::By::kFloat;
}

void Unary(UnaryOp op, const TensorView& x, const TensorView& y, UnaryParameters parameters) {
  TACC_KERNEL_CHECK(y.size() == x.size());
  const UnaryOf f{op, parameters.p0, parameters.p1};
  const bool integers = !IsFloat(x.dtype) && !IsFloat(y.dtype);
  if (integers) return Map<int64_t, 1, 1>({x}, {y}, f);
  if (x.dtype == DType::kF64 || (op == UnaryOp::kCast && y.dtype == DType::kF64)) return Map<double, 1, 1>({x}, {y}, f);
  Map<float, 1, 1>({x}, {y}, f);
}

void UnaryGrad(UnaryGradOp op, const TensorView& x, const TensorView& dy, const TensorView& dx,
               UnaryParameters parameters) {
  TACC_KERNEL_CHECK(dy.size() == x.size() && dx.size() == x.size());
  const UnaryGradOf f{op, parameters.p0, parameters.p1, x.dtype};
  WithComputeType({x, dy}, [&]<typename T>(T) { Map<T, 2, 1>({x, dy}, {dx}, f); });
}

}  // namespace

TensorTable CastTable(const std::vector<CastPair>& casts) {
  TensorTable table;
  for (const CastPair& cast : casts) {
    const int64_t n = cast.x.size();
    TACC_KERNEL_CHECK(cast.y.size() == n);
    AddTensor(CastEntry{In(cast.x), Out(cast.y), n, CastBy(cast.x, cast.y)}, NumChunks(n), table);
  }
  return table;
}

void CastMany(const TensorTable& table) { ForEachChunk<256, CastEntry>(table, 0, CastChunk()); }

const UnaryKernels kUnary = {
    .Unary = Unary,
    .UnaryGrad = UnaryGrad,
};

}  // namespace tacc::kernels::cuda
