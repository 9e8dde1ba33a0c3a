#include "kernels/cpu/simd/pointwise.h"

#include "kernels/cpu/simd/block.h"
#include "kernels/cpu/simd/vector_math.h"

namespace tacc::kernels::simd::TACC_ISA {
namespace {

template <typename C, typename F>
TACC_INLINE void Map(const In& x, const Out& y, int64_t begin, int64_t end, F f) {
  Buffer<C> bx, by;
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = Min(kBlock, end - i);
    const C* px = Load<C>(x, i, n, bx);
    C* py = Target<C>(y, i, by);
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) py[j] = f(px[j]);
    Store<C>(y, i, n, py);
  }
}

template <typename C, typename F>
TACC_INLINE void Map2(const In& a, const In& b, const Out& y, int64_t begin, int64_t end, F f) {
  Buffer<C> ba, bb, by;
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = Min(kBlock, end - i);
    const C* pa = Load<C>(a, i, n, ba);
    const C* pb = Load<C>(b, i, n, bb);
    C* py = Target<C>(y, i, by);
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) py[j] = f(pa[j], pb[j]);
    Store<C>(y, i, n, py);
  }
}

template <typename C>
void UnaryArithmetic(UnaryOp op, double p0, double p1, const In& x, const Out& y, int64_t begin, int64_t end) {
  const C c0 = static_cast<C>(p0), c1 = static_cast<C>(p1);
  switch (op) {
    case UnaryOp::kCast:
      return Map<C>(x, y, begin, end, [](C v) { return v; });
    case UnaryOp::kNeg:
      return Map<C>(x, y, begin, end, [](C v) { return -v; });
    case UnaryOp::kRelu:  // NaN stays NaN
      return Map<C>(x, y, begin, end, [](C v) { return v < C(0) ? C(0) : v; });
    case UnaryOp::kSquare:
      return Map<C>(x, y, begin, end, [](C v) { return v * v; });
    case UnaryOp::kScale:
      return Map<C>(x, y, begin, end, [=](C v) { return v * c0; });
    case UnaryOp::kAddScalar:
      return Map<C>(x, y, begin, end, [=](C v) { return v + c0; });
    case UnaryOp::kClamp:
      return Map<C>(x, y, begin, end, [=](C v) {
        const C low = v < c0 ? c0 : v;
        return low > c1 ? c1 : low;
      });
    default:
      __builtin_trap();
  }
}

template <typename C>
void UnaryFloat(UnaryOp op, double p0, double p1, const In& x, const Out& y, int64_t begin, int64_t end) {
  switch (op) {
    case UnaryOp::kExp:
      return Map<C>(x, y, begin, end, [](C v) { return Exp(v); });
    case UnaryOp::kLog:
      return Map<C>(x, y, begin, end, [](C v) { return Log(v); });
    case UnaryOp::kSqrt:
      return Map<C>(x, y, begin, end, [](C v) { return Sqrt(v); });
    case UnaryOp::kRsqrt:
      return Map<C>(x, y, begin, end, [](C v) { return C(1) / Sqrt(v); });
    case UnaryOp::kReciprocal:
      return Map<C>(x, y, begin, end, [](C v) { return C(1) / v; });
    // By libm, in doubles: arguments of any size, which are many turns, are reduced exactly.
    case UnaryOp::kSin:
      return Map<C>(x, y, begin, end, [](C v) { return static_cast<C>(::sin(static_cast<double>(v))); });
    case UnaryOp::kCos:
      return Map<C>(x, y, begin, end, [](C v) { return static_cast<C>(::cos(static_cast<double>(v))); });
    case UnaryOp::kTanh:
      return Map<C>(x, y, begin, end, [](C v) { return Tanh(v); });
    case UnaryOp::kSigmoid:
      return Map<C>(x, y, begin, end, [](C v) { return Sigmoid(v); });
    case UnaryOp::kSilu:
      return Map<C>(x, y, begin, end, [](C v) { return Silu(v); });
    case UnaryOp::kGelu:
      return Map<C>(x, y, begin, end, [](C v) { return Gelu(v); });
    case UnaryOp::kGeluTanh:
      return Map<C>(x, y, begin, end, [](C v) { return GeluTanh(v); });
    default:
      return UnaryArithmetic<C>(op, p0, p1, x, y, begin, end);
  }
}

template <typename C>
void UnaryGradOf(UnaryGradOp op, double p0, double p1, const In& x, const In& dy, const Out& dx, int64_t begin,
                 int64_t end) {
  const C c0 = static_cast<C>(p0), c1 = static_cast<C>(p1);
  switch (op) {
    case UnaryGradOp::kTanh:
      return Map2<C>(x, dy, dx, begin, end, [](C v, C d) {
        const C t = Tanh(v);
        return d * (C(1) - t * t);
      });
    case UnaryGradOp::kRelu:
      return Map2<C>(x, dy, dx, begin, end, [](C v, C d) { return v > C(0) ? d : C(0); });
    case UnaryGradOp::kSilu:
      return Map2<C>(x, dy, dx, begin, end, [](C v, C d) { return d * SiluGrad(v); });
    case UnaryGradOp::kSigmoid:
      return Map2<C>(x, dy, dx, begin, end, [](C v, C d) { return d * SigmoidGrad(v); });
    case UnaryGradOp::kGelu:
      return Map2<C>(x, dy, dx, begin, end, [](C v, C d) { return d * GeluGrad(v); });
    case UnaryGradOp::kGeluTanh:
      return Map2<C>(x, dy, dx, begin, end, [](C v, C d) { return d * GeluTanhGrad(v); });
    case UnaryGradOp::kClamp:
      return Map2<C>(x, dy, dx, begin, end, [=](C v, C d) { return (v >= c0) & (v <= c1) ? d : C(0); });
  }
}

template <typename C, typename F>
TACC_INLINE void MapPeriodic(const In& a, const In& b, int64_t period, const Out& y, int64_t begin, int64_t end, F f) {
  Buffer<C> ba, bb, by;
  if (period == 1) {
    const C value = LoadOne<C>(b, 0);
    return Map<C>(a, y, begin, end, [=](C v) { return f(v, value); });
  }
  int64_t position = begin % period;
  for (int64_t i = begin; i < end;) {
    const int64_t n = Min(Min(kBlock, end - i), period - position);
    const C* pa = Load<C>(a, i, n, ba);
    const C* pb = Load<C>(b, position, n, bb);
    C* py = Target<C>(y, i, by);
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) py[j] = f(pa[j], pb[j]);
    Store<C>(y, i, n, py);
    i += n;
    position += n;
    if (position == period) position = 0;
  }
}

// f64 if one is, integer if both are, else f32.
template <typename C>
void BinaryOf(BinaryOp op, const In& a, const In& b, int64_t period, const Out& y, int64_t begin, int64_t end) {
  switch (op) {
    case BinaryOp::kAdd:
      return MapPeriodic<C>(a, b, period, y, begin, end, [](C u, C v) { return u + v; });
    case BinaryOp::kSub:
      return MapPeriodic<C>(a, b, period, y, begin, end, [](C u, C v) { return u - v; });
    case BinaryOp::kMul:
      return MapPeriodic<C>(a, b, period, y, begin, end, [](C u, C v) { return u * v; });
    case BinaryOp::kDiv:
      return MapPeriodic<C>(a, b, period, y, begin, end, [](C u, C v) { return u / v; });
    case BinaryOp::kMaximum:  // NaN in either gives NaN
      return MapPeriodic<C>(a, b, period, y, begin, end, [](C u, C v) { return (u != u) | (u > v) ? u : v; });
    case BinaryOp::kMinimum:
      return MapPeriodic<C>(a, b, period, y, begin, end, [](C u, C v) { return (u != u) | (u < v) ? u : v; });
  }
}

template <typename C>
void SwigluOf(const In& gate, const In& up, const Out& y, int64_t begin, int64_t end) {
  Map2<C>(gate, up, y, begin, end, [](C g, C u) { return Silu(g) * u; });
}

template <typename C>
void SwigluGradOf(const In& gate, const In& up, const In& dy, const Out& dgate, const Out& dup, int64_t begin,
                  int64_t end) {
  Buffer<C> bg, bu, bd, bdg, bdu;
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = Min(kBlock, end - i);
    const C* pg = Load<C>(gate, i, n, bg);
    const C* pu = Load<C>(up, i, n, bu);
    const C* pd = Load<C>(dy, i, n, bd);
    C* qg = Target<C>(dgate, i, bdg);
    C* qu = Target<C>(dup, i, bdu);
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      const C g = pg[j], u = pu[j], d = pd[j];
      const C s = Sigmoid(g);
      qg[j] = d * u * s * (C(1) + g * (C(1) - s));
      qu[j] = d * g * s;
    }
    Store<C>(dgate, i, n, qg);
    Store<C>(dup, i, n, qu);
  }
}

template <typename C, typename F>
TACC_INLINE double SumOf(const In& x, int64_t begin, int64_t end, F f) {
  Buffer<C> bx;
  double total = 0;
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = Min(kBlock, end - i);
    const C* px = Load<C>(x, i, n, bx);
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; ++j) sum += f(static_cast<double>(px[j]));
    total += sum;
  }
  return total;
}

template <typename C>
double MaxOf(const In& x, int64_t begin, int64_t end) {
  Buffer<C> bx;
  C result = -static_cast<C>(__builtin_inf());
  bool nan = false;
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = Min(kBlock, end - i);
    const C* px = Load<C>(x, i, n, bx);
    C block = result;
    int bad = 0;
#pragma omp simd reduction(max : block) reduction(| : bad)
    for (int64_t j = 0; j < n; ++j) {
      block = px[j] > block ? px[j] : block;
      bad |= px[j] != px[j];
    }
    result = block;
    nan |= bad != 0;
  }
  return nan ? __builtin_nan("") : static_cast<double>(result);
}

template <typename C>
bool IsFiniteOf(const In& x, int64_t begin, int64_t end) {
  Buffer<C> bx;
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = Min(kBlock, end - i);
    const C* px = Load<C>(x, i, n, bx);
    int bad = 0;
#pragma omp simd reduction(| : bad)
    for (int64_t j = 0; j < n; ++j) bad |= !(Abs(px[j]) <= (sizeof(C) == 4 ? C(3.40282347e+38f) : C(__DBL_MAX__)));
    if (bad != 0) return false;
  }
  return true;
}

template <typename Acc, typename C, typename F>
TACC_INLINE void AccumulateOf(Acc* acc, const In& x, int64_t offset, int64_t n, F f) {
  Buffer<C> bx;
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t m = Min(kBlock, n - i);
    const C* px = Load<C>(x, offset + i, m, bx);
    Acc* target = acc + i;
#pragma omp simd
    for (int64_t j = 0; j < m; ++j) target[j] = f(target[j], static_cast<Acc>(px[j]));
  }
}

// Philox 4x32-10. Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC11, section 3.3.
TACC_INLINE void Philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1, uint32_t* r0,
                        uint32_t* r1, uint32_t* r2, uint32_t* r3) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0;
    const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  *r0 = c0;
  *r1 = c1;
  *r2 = c2;
  *r3 = c3;
}

template <typename C>
void DropoutOf(const DropoutRun& run) {
  Buffer<C> bx, by;
  alignas(64) uint32_t r0[kBlock / 4], r1[kBlock / 4], r2[kBlock / 4], r3[kBlock / 4], random[kBlock];
  const C scale = static_cast<C>(run.scale);
  const uint64_t sample = static_cast<uint64_t>(run.sample);
  const uint32_t step = static_cast<uint32_t>(run.step), threshold = run.threshold;
  const uint32_t high =
      static_cast<uint32_t>(static_cast<uint64_t>(run.step) >> 32) ^ static_cast<uint32_t>(sample >> 32) * 0x85EBCA6Bu;
  // Philox makes four words at a time: blocks start at logical positions that are multiples of four.
  const int64_t lead = run.position & 3;
  for (int64_t i = -lead; i < run.n; i += kBlock) {
    const uint64_t first = static_cast<uint64_t>(run.position + i) / 4;
    const uint32_t first_low = static_cast<uint32_t>(first);
    const uint32_t last = high ^ static_cast<uint32_t>(first >> 32) * 0xC2B2AE35u;
    const int64_t calls = Min(kBlock / 4, (run.n - i + 3) / 4);
#pragma omp simd
    for (int64_t j = 0; j < calls; ++j) {
      Philox(first_low + static_cast<uint32_t>(j), static_cast<uint32_t>(sample), step, last, run.key0, run.key1,
             &r0[j], &r1[j], &r2[j], &r3[j]);
    }
    for (int64_t j = 0; j < calls; ++j) {
      random[4 * j] = r0[j];
      random[4 * j + 1] = r1[j];
      random[4 * j + 2] = r2[j];
      random[4 * j + 3] = r3[j];
    }
    const int64_t start = i < 0 ? 0 : i;
    const uint32_t* words = random + (start - i);
    const int64_t n = Min(i + kBlock, run.n) - start;
    const C* px = Load<C>(run.x, start, n, bx);
    C* py = Target<C>(run.y, start, by);
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) py[j] = words[j] < threshold ? C(0) : px[j] * scale;
    Store<C>(run.y, start, n, py);
  }
}

}  // namespace

void Unary(UnaryOp op, double p0, double p1, In x, Out y, int64_t begin, int64_t end) {
  if (IsInteger(x.dtype) && IsInteger(y.dtype)) return UnaryArithmetic<int64_t>(op, p0, p1, x, y, begin, end);
  const bool f64 = x.dtype == DType::kF64 || (op == UnaryOp::kCast && y.dtype == DType::kF64);
  if (f64) return UnaryFloat<double>(op, p0, p1, x, y, begin, end);
  UnaryFloat<float>(op, p0, p1, x, y, begin, end);
}

void UnaryGrad(UnaryGradOp op, double p0, double p1, In x, In dy, Out dx, int64_t begin, int64_t end) {
  if (IsF64(x) || IsF64(dy)) return UnaryGradOf<double>(op, p0, p1, x, dy, dx, begin, end);
  UnaryGradOf<float>(op, p0, p1, x, dy, dx, begin, end);
}

void Binary(BinaryOp op, In a, In b, int64_t b_period, Out y, int64_t begin, int64_t end) {
  if (IsInteger(a.dtype) && IsInteger(b.dtype)) return BinaryOf<int64_t>(op, a, b, b_period, y, begin, end);
  if (IsF64(a) || IsF64(b)) return BinaryOf<double>(op, a, b, b_period, y, begin, end);
  BinaryOf<float>(op, a, b, b_period, y, begin, end);
}

void Swiglu(In gate, In up, Out y, int64_t begin, int64_t end) {
  if (IsF64(gate) || IsF64(up)) return SwigluOf<double>(gate, up, y, begin, end);
  SwigluOf<float>(gate, up, y, begin, end);
}

void SwigluGrad(In gate, In up, In dy, Out dgate, Out dup, int64_t begin, int64_t end) {
  if (IsF64(gate) || IsF64(up) || IsF64(dy)) return SwigluGradOf<double>(gate, up, dy, dgate, dup, begin, end);
  SwigluGradOf<float>(gate, up, dy, dgate, dup, begin, end);
}

double Sum(In x, int64_t begin, int64_t end) {
  const auto identity = [](double v) { return v; };
  if (IsF64(x)) return SumOf<double>(x, begin, end, identity);
  return SumOf<float>(x, begin, end, identity);
}

double SumSquares(In x, int64_t begin, int64_t end) {
  const auto square = [](double v) { return v * v; };
  if (IsF64(x)) return SumOf<double>(x, begin, end, square);
  return SumOf<float>(x, begin, end, square);
}

double Max(In x, int64_t begin, int64_t end) {
  if (IsF64(x)) return MaxOf<double>(x, begin, end);
  return MaxOf<float>(x, begin, end);
}

bool IsFinite(In x, int64_t begin, int64_t end) {
  if (IsF64(x)) return IsFiniteOf<double>(x, begin, end);
  return IsFiniteOf<float>(x, begin, end);
}

void AccumulateF64(double* acc, In x, int64_t offset, int64_t n) {
  const auto add = [](double a, double v) { return a + v; };
  if (IsF64(x)) return AccumulateOf<double, double>(acc, x, offset, n, add);
  AccumulateOf<double, float>(acc, x, offset, n, add);
}

void AccumulateF32(float* acc, In x, int64_t offset, int64_t n) {
  AccumulateOf<float, float>(acc, x, offset, n, [](float a, float v) { return a + v; });
}

void AccumulateMax(double* acc, In x, int64_t offset, int64_t n) {
  const auto maximum = [](double a, double v) { return (a != a) | (a > v) ? a : v; };
  if (IsF64(x)) return AccumulateOf<double, double>(acc, x, offset, n, maximum);
  AccumulateOf<double, float>(acc, x, offset, n, maximum);
}

void Dropout(const DropoutRun& run) {
  if (IsF64(run.x)) return DropoutOf<double>(run);
  DropoutOf<float>(run);
}

}  // namespace tacc::kernels::simd::TACC_ISA
