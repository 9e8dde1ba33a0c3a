#include "kernels/cpu/simd/optimizer.h"

#include "kernels/cpu/simd/block.h"
#include "kernels/cpu/simd/vector_math.h"

namespace tacc::kernels::simd::TACC_ISA {
namespace {

template <typename C>
struct Constants {
  explicit Constants(const WeightUpdate& u)
      : one_minus_beta1(static_cast<C>(1 - u.beta1)),
        beta2(static_cast<C>(u.beta2)),
        one_minus_beta2(static_cast<C>(1 - u.beta2)),
        epsilon(static_cast<C>(u.epsilon)),
        decay(static_cast<C>(u.decay)),
        coupled_decay(static_cast<C>(u.coupled_decay)),
        step_size(static_cast<C>(u.step_size)),
        inv_sqrt_bias2(static_cast<C>(u.inv_sqrt_bias2)),
        momentum(static_cast<C>(u.momentum)),
        undamped(static_cast<C>(u.undamped)),
        grad_scale(static_cast<C>(u.grad_scale)),
        nesterov(u.nesterov) {}

  C one_minus_beta1, beta2, one_minus_beta2, epsilon, decay, coupled_decay, step_size, inv_sqrt_bias2, momentum,
      undamped, grad_scale;
  bool nesterov;
};

// Each: the states that it has, and one element's update by the gradient.
struct AdamW {
  static constexpr bool kHasM = true, kHasV = true;
  template <typename C>
  static TACC_INLINE void Update(const Constants<C>& c, C gradient, C& w, C& m, C& v) {
    m = m + (gradient - m) * c.one_minus_beta1;
    v = v * c.beta2 + gradient * gradient * c.one_minus_beta2;
    const C denominator = Sqrt(v) * c.inv_sqrt_bias2 + c.epsilon;
    w = w * c.decay - c.step_size * (m / denominator);
  }
};

struct Adam {
  static constexpr bool kHasM = true, kHasV = true;
  template <typename C>
  static TACC_INLINE void Update(const Constants<C>& c, C gradient, C& w, C& m, C& v) {
    AdamW::Update(c, gradient + c.coupled_decay * w, w, m, v);
  }
};

struct Sgd {
  static constexpr bool kHasM = false, kHasV = false;
  template <typename C>
  static TACC_INLINE void Update(const Constants<C>& c, C gradient, C& w, C& /*m*/, C& /*v*/) {
    w = w - c.step_size * (gradient + c.coupled_decay * w);
  }
};

struct SgdWithMomentum {
  static constexpr bool kHasM = true, kHasV = false;
  template <typename C>
  static TACC_INLINE void Update(const Constants<C>& c, C gradient, C& w, C& m, C& /*v*/) {
    const C decayed = gradient + c.coupled_decay * w;
    m = m * c.momentum + decayed * c.undamped;
    w = w - c.step_size * (c.nesterov ? decayed + m * c.momentum : m);
  }
};

struct Lion {
  static constexpr bool kHasM = true, kHasV = false;
  template <typename C>
  static TACC_INLINE void Update(const Constants<C>& c, C gradient, C& w, C& m, C& /*v*/) {
    const C direction = m + (gradient - m) * c.one_minus_beta1;
    m = m + (gradient - m) * c.one_minus_beta2;
    // NaN stays NaN.
    const C sign = direction > C(0) ? C(1) : direction < C(0) ? C(-1) : direction;
    w = w * c.decay - c.step_size * sign;
  }
};

struct MovingAverage {
  static constexpr bool kHasM = false, kHasV = false;
  template <typename C>
  static TACC_INLINE void Update(const Constants<C>& c, C gradient, C& w, C& /*m*/, C& /*v*/) {
    w = w + (gradient - w) * c.step_size;
  }
};

template <typename Rule, typename C>
void UpdateOf(const WeightUpdate& u, int64_t begin, int64_t end) {
  Buffer<C> bw, bm, bv, bg, ow, om, ov;
  const Constants<C> c(u);
  for (int64_t i = begin; i < end; i += kBlock) {
    const int64_t n = Min(kBlock, end - i);
    const C* w = Load<C>(u.w, i, n, bw);
    const C* m = Rule::kHasM ? Load<C>(u.m, i, n, bm) : nullptr;
    const C* v = Rule::kHasV ? Load<C>(u.v, i, n, bv) : nullptr;
    const C* g = Load<C>(u.g, i, n, bg);
    C* new_w = Target<C>(u.w_out, i, ow);
    C* new_m = Rule::kHasM ? Target<C>(u.m_out, i, om) : nullptr;
    C* new_v = Rule::kHasV ? Target<C>(u.v_out, i, ov) : nullptr;
#pragma omp simd
    for (int64_t j = 0; j < n; ++j) {
      C w1 = w[j], m1 = 0, v1 = 0;
      if constexpr (Rule::kHasM) m1 = m[j];
      if constexpr (Rule::kHasV) v1 = v[j];
      Rule::Update(c, g[j] * c.grad_scale, w1, m1, v1);
      new_w[j] = w1;
      if constexpr (Rule::kHasM) new_m[j] = m1;
      if constexpr (Rule::kHasV) new_v[j] = v1;
    }
    Store<C>(u.w_out, i, n, new_w);
    if (Rule::kHasM) Store<C>(u.m_out, i, n, new_m);
    if (Rule::kHasV) Store<C>(u.v_out, i, n, new_v);
    if (u.copy.data != nullptr) ConvertOut<C>(new_w, u.copy.data, u.copy.dtype, i, n);
  }
}

template <typename C>
void UpdateIn(const WeightUpdate& u, int64_t begin, int64_t end) {
  switch (u.kind) {
    case UpdateKind::kAdamW:
      return UpdateOf<AdamW, C>(u, begin, end);
    case UpdateKind::kAdam:
      return UpdateOf<Adam, C>(u, begin, end);
    case UpdateKind::kSgd:
      return u.m.data == nullptr ? UpdateOf<Sgd, C>(u, begin, end) : UpdateOf<SgdWithMomentum, C>(u, begin, end);
    case UpdateKind::kLion:
      return UpdateOf<Lion, C>(u, begin, end);
    case UpdateKind::kMovingAverage:
      return UpdateOf<MovingAverage, C>(u, begin, end);
  }
}

}  // namespace

void Update(const WeightUpdate& update, int64_t begin, int64_t end) {
  if (IsF64(update.w) || IsF64(update.g)) return UpdateIn<double>(update, begin, end);
  UpdateIn<float>(update, begin, end);
}

}  // namespace tacc::kernels::simd::TACC_ISA
