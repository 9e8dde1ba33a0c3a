#include <math.h>

#include <utility>

#include "kernels/contract/optimizer.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/elementary.h"
#include "kernels/cuda/launch/pack.h"
#include "kernels/cuda/launch/table_launch.h"
#include "kernels/cuda/many_tensors.h"

namespace tacc::kernels::cuda {
namespace {

constexpr int kTeam = 256;
constexpr int kWidth = 4;  // of packs: the states are f32 as a rule

// One parameter's update as the GPU sees it. No pointer to the host.
struct Update {
  AnyIn w, m, v, g;
  AnyOut new_w, new_m, new_v, copy;
  AnyIn learning_rate, grad_scale, apply, count, momentum;  // momentum may be absent
  UpdateParameters parameters;
  int64_t n;
  bool packs;  // all may be read and written in packs
  int64_t first_chunk = 0;
};

// What the scalars of a step come to; as simd::WeightUpdate.
struct Step {
  double apply, grad_scale, beta1, momentum, decay, coupled_decay, step_size, inv_sqrt_bias2, undamped;
};

TACC_DEVICE Step StepOf(const Update& u) {
  const UpdateParameters& p = u.parameters;
  const double learning_rate = u.learning_rate.Load<double>(0), count = u.count.Load<double>(0);
  const double beta1 = u.momentum ? u.momentum.Load<double>(0) : p.beta1;
  const bool is_adam = p.kind == UpdateKind::kAdamW || p.kind == UpdateKind::kAdam;
  const bool is_decoupled = p.kind == UpdateKind::kAdamW || p.kind == UpdateKind::kLion;
  return {.apply = u.apply.Load<double>(0),
          .grad_scale = u.grad_scale.Load<double>(0),
          .beta1 = beta1,
          .momentum = u.momentum ? u.momentum.Load<double>(0) : p.momentum,
          .decay = is_decoupled ? 1 - learning_rate * p.weight_decay : 1,
          .coupled_decay = is_decoupled ? 0 : p.weight_decay,
          .step_size = is_adam                                ? learning_rate / (1 - ::pow(beta1, count))
                       : p.kind == UpdateKind::kMovingAverage ? 1 - learning_rate
                                                              : learning_rate,
          .inv_sqrt_bias2 = is_adam ? 1 / Sqrt(1 - ::pow(p.beta2, count)) : 1,
          // The buffer begins as the first gradient.
          .undamped = count == 1 ? 1 : 1 - p.dampening};
}

template <typename T>
struct Constants {
  TACC_DEVICE Constants(const UpdateParameters& p, const Step& s)
      : one_minus_beta1(static_cast<T>(1 - s.beta1)),
        beta2(static_cast<T>(p.beta2)),
        one_minus_beta2(static_cast<T>(1 - p.beta2)),
        epsilon(static_cast<T>(p.epsilon)),
        decay(static_cast<T>(s.decay)),
        coupled_decay(static_cast<T>(s.coupled_decay)),
        step_size(static_cast<T>(s.step_size)),
        inv_sqrt_bias2(static_cast<T>(s.inv_sqrt_bias2)),
        momentum(static_cast<T>(s.momentum)),
        undamped(static_cast<T>(s.undamped)),
        grad_scale(static_cast<T>(s.grad_scale)),
        nesterov(p.nesterov) {}

  T one_minus_beta1, beta2, one_minus_beta2, epsilon, decay, coupled_decay, step_size, inv_sqrt_bias2, momentum,
      undamped, grad_scale;
  bool nesterov;
};

// Each: one element's update by the gradient. m and v that an optimizer does not have are not looked at.
struct AdamWRule {
  template <typename T>
  static TACC_DEVICE void Update(const Constants<T>& c, T gradient, T& w, T& m, T& v) {
    m = m + (gradient - m) * c.one_minus_beta1;
    v = v * c.beta2 + gradient * gradient * c.one_minus_beta2;
    const T denominator = Sqrt(v) * c.inv_sqrt_bias2 + c.epsilon;
    w = w * c.decay - c.step_size * (m / denominator);
  }
};

struct AdamRule {
  template <typename T>
  static TACC_DEVICE void Update(const Constants<T>& c, T gradient, T& w, T& m, T& v) {
    AdamWRule::Update(c, gradient + c.coupled_decay * w, w, m, v);
  }
};

struct SgdRule {
  template <typename T>
  static TACC_DEVICE void Update(const Constants<T>& c, T gradient, T& w, T& /*m*/, T& /*v*/) {
    w = w - c.step_size * (gradient + c.coupled_decay * w);
  }
};

struct SgdWithMomentumRule {
  template <typename T>
  static TACC_DEVICE void Update(const Constants<T>& c, T gradient, T& w, T& m, T& /*v*/) {
    const T decayed = gradient + c.coupled_decay * w;
    m = m * c.momentum + decayed * c.undamped;
    w = w - c.step_size * (c.nesterov ? decayed + m * c.momentum : m);
  }
};

struct LionRule {
  template <typename T>
  static TACC_DEVICE void Update(const Constants<T>& c, T gradient, T& w, T& m, T& /*v*/) {
    const T direction = m + (gradient - m) * c.one_minus_beta1;
    m = m + (gradient - m) * c.one_minus_beta2;
    // NaN stays NaN.
    const T sign = direction > T(0) ? T(1) : direction < T(0) ? T(-1) : direction;
    w = w * c.decay - c.step_size * sign;
  }
};

struct MovingAverageRule {
  template <typename T>
  static TACC_DEVICE void Update(const Constants<T>& c, T gradient, T& w, T& /*m*/, T& /*v*/) {
    w = w + (gradient - w) * c.step_size;
  }
};

// The elements [begin, end), whose number is a multiple of W.
template <typename Rule, typename T, int W>
TACC_DEVICE void UpdateElements(const Team& team, const Update& u, const Step& step, int64_t begin, int64_t end) {
  const Constants<T> c(u.parameters, step);
  for (int64_t i = begin + team.rank() * W; i < end; i += static_cast<int64_t>(team.size()) * W) {
    T loaded[4][W] = {};
    LoadAll({u.w, u.m, u.v, u.g}, {i, i, i, i}, loaded);
    T(&w)[W] = loaded[0], (&m)[W] = loaded[1], (&v)[W] = loaded[2];
    const T(&g)[W] = loaded[3];
#pragma unroll
    for (int j = 0; j < W; ++j) Rule::Update(c, g[j] * c.grad_scale, w[j], m[j], v[j]);
    Store<W>(u.new_w, i, w);
    if (u.new_m) Store<W>(u.new_m, i, m);
    if (u.new_v) Store<W>(u.new_v, i, v);
    if (u.copy) Store<W>(u.copy, i, w);
  }
}

template <typename Rule>
TACC_DEVICE void UpdateRange(const Team& team, const Update& u, const Step& step, int64_t begin, int64_t end) {
  if (u.w.dtype == DType::kF64 || u.g.dtype == DType::kF64)
    return UpdateElements<Rule, double, 1>(team, u, step, begin, end);
  const int64_t packed = u.packs ? begin + (end - begin) / kWidth * kWidth : begin;
  UpdateElements<Rule, float, kWidth>(team, u, step, begin, packed);
  UpdateElements<Rule, float, 1>(team, u, step, packed, end);
}

template <typename U>
TACC_DEVICE void KeepUnits(const Team& team, const void* from, void* to, int64_t begin, int64_t end) {
  for (int64_t i = begin + team.rank(); i < end; i += team.size())
    static_cast<U*>(to)[i] = static_cast<const U*>(from)[i];
}

// Bit by bit; nothing of what is absent.
TACC_DEVICE void Keep(const Team& team, const AnyIn& from, const AnyOut& to, int64_t begin, int64_t end) {
  if (!from || from.data == to.data) return;
  switch (SizeOf(from.dtype)) {
    case 2:
      return KeepUnits<uint16_t>(team, from.data, to.data, begin, end);
    case 4:
      return KeepUnits<uint32_t>(team, from.data, to.data, begin, end);
    default:
      return KeepUnits<uint64_t>(team, from.data, to.data, begin, end);
  }
}

struct UpdateChunk {
  TACC_DEVICE void operator()(Team& team, const Update& u, int64_t chunk) const {
    const auto [begin, end] = RangeOfChunk(chunk, u.n);
    Step* step = team.shared<Step>();
    if (team.rank() == 0) *step = StepOf(u);
    team.Sync();
    if (step->apply == 0) {
      Keep(team, u.w, u.new_w, begin, end);
      Keep(team, u.m, u.new_m, begin, end);
      Keep(team, u.v, u.new_v, begin, end);
      for (int64_t i = begin + team.rank(); u.copy && i < end; i += team.size()) u.copy.Store(i, u.w.Load<double>(i));
      return;
    }
    switch (u.parameters.kind) {
      case UpdateKind::kAdamW:
        return UpdateRange<AdamWRule>(team, u, *step, begin, end);
      case UpdateKind::kAdam:
        return UpdateRange<AdamRule>(team, u, *step, begin, end);
      case UpdateKind::kSgd:
        if (!u.m) return UpdateRange<SgdRule>(team, u, *step, begin, end);
        return UpdateRange<SgdWithMomentumRule>(team, u, *step, begin, end);
      case UpdateKind::kLion:
        return UpdateRange<LionRule>(team, u, *step, begin, end);
      case UpdateKind::kMovingAverage:
        return UpdateRange<MovingAverageRule>(team, u, *step, begin, end);
    }
  }
};

Update Describe(const WeightUpdate& u) {
  const int64_t n = u.w.size();
  TACC_KERNEL_CHECK(u.g.size() == n && u.new_w.size() == n && u.w.dtype == u.new_w.dtype && IsFloat(u.w.dtype));
  for (const auto& [from, to] : {std::pair(u.m, u.new_m), {u.v, u.new_v}}) {
    TACC_KERNEL_CHECK((from.data == nullptr) == (to.data == nullptr));
    TACC_KERNEL_CHECK(from.data == nullptr || (from.size() == n && to.size() == n && from.dtype == to.dtype));
    TACC_KERNEL_CHECK(IsFloat(from.dtype));
  }
  TACC_KERNEL_CHECK(u.copy.data == nullptr || u.copy.size() == n);
  const UpdateScalars& s = u.scalars;
  TACC_KERNEL_CHECK(s.learning_rate.size() == 1 && s.grad_scale.size() == 1);
  TACC_KERNEL_CHECK(s.apply.size() == 1 && s.count.size() == 1);
  TACC_KERNEL_CHECK(s.momentum.data == nullptr || s.momentum.size() == 1);
  return {.w = In(u.w),
          .m = In(u.m),
          .v = In(u.v),
          .g = In(u.g),
          .new_w = Out(u.new_w),
          .new_m = Out(u.new_m),
          .new_v = Out(u.new_v),
          .copy = Out(u.copy),
          .learning_rate = In(s.learning_rate),
          .grad_scale = In(s.grad_scale),
          .apply = In(s.apply),
          .count = In(s.count),
          .momentum = In(s.momentum),
          .parameters = u.parameters,
          .n = n,
          .packs = ArePackable({u.w, u.m, u.v, u.g, u.new_w, u.new_m, u.new_v, u.copy})};
}

void UpdateWeight(const WeightUpdate& given) {
  const Update update = Describe(given);
  ForEachChunkOf<kTeam>(update, NumChunks(update.n), sizeof(Step), UpdateChunk());
}

}  // namespace

TensorTable UpdateTable(const std::vector<WeightUpdate>& updates) {
  TensorTable table;
  for (const WeightUpdate& given : updates) {
    const Update update = Describe(given);
    AddTensor(update, NumChunks(update.n), table);
  }
  return table;
}

void UpdateMany(const TensorTable& table) { ForEachChunk<kTeam, Update>(table, sizeof(Step), UpdateChunk()); }

const OptimizerKernels kOptimizer = {
    .Update = UpdateWeight,
};

}  // namespace tacc::kernels::cuda
