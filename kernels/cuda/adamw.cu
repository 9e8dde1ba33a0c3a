#include <math.h>

#include "kernels/contract/adamw.h"
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
  AnyIn learning_rate, grad_scale, apply, count;
  double beta1, beta2, epsilon, weight_decay;
  int64_t n;
  bool packs;  // all may be read and written in packs
  int64_t first_chunk = 0;
};

// What the scalars of a step come to.
struct Step {
  double apply, grad_scale, decay, step_size, inv_sqrt_bias2;
};

TACC_DEVICE Step StepOf(const Update& u) {
  const double learning_rate = u.learning_rate.Load<double>(0), count = u.count.Load<double>(0);
  return {.apply = u.apply.Load<double>(0),
          .grad_scale = u.grad_scale.Load<double>(0),
          .decay = 1 - learning_rate * u.weight_decay,
          .step_size = learning_rate / (1 - ::pow(u.beta1, count)),
          .inv_sqrt_bias2 = 1 / Sqrt(1 - ::pow(u.beta2, count))};
}

// The elements [begin, end), whose number is a multiple of W.
template <typename T, int W>
TACC_DEVICE void UpdateElements(const Team& team, const Update& u, const Step& step, int64_t begin, int64_t end) {
  const T one_minus_beta1 = static_cast<T>(1 - u.beta1), beta2 = static_cast<T>(u.beta2);
  const T one_minus_beta2 = static_cast<T>(1 - u.beta2), epsilon = static_cast<T>(u.epsilon);
  const T decay = static_cast<T>(step.decay), step_size = static_cast<T>(step.step_size);
  const T inv_sqrt_bias2 = static_cast<T>(step.inv_sqrt_bias2), grad_scale = static_cast<T>(step.grad_scale);
  for (int64_t i = begin + team.rank() * W; i < end; i += static_cast<int64_t>(team.size()) * W) {
    T loaded[4][W];
    LoadAll({u.w, u.m, u.v, u.g}, {i, i, i, i}, loaded);
    T(&w)[W] = loaded[0], (&m)[W] = loaded[1], (&v)[W] = loaded[2];
    const T(&g)[W] = loaded[3];
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const T gradient = g[j] * grad_scale;
      m[j] = m[j] + (gradient - m[j]) * one_minus_beta1;
      v[j] = v[j] * beta2 + gradient * gradient * one_minus_beta2;
      const T denominator = Sqrt(v[j]) * inv_sqrt_bias2 + epsilon;
      w[j] = w[j] * decay - step_size * (m[j] / denominator);
    }
    Store<W>(u.new_w, i, w);
    Store<W>(u.new_m, i, m);
    Store<W>(u.new_v, i, v);
    if (u.copy) Store<W>(u.copy, i, w);
  }
}

template <typename U>
TACC_DEVICE void KeepUnits(const Team& team, const void* from, void* to, int64_t begin, int64_t end) {
  for (int64_t i = begin + team.rank(); i < end; i += team.size())
    static_cast<U*>(to)[i] = static_cast<const U*>(from)[i];
}

// Bit by bit.
TACC_DEVICE void Keep(const Team& team, const AnyIn& from, const AnyOut& to, int64_t begin, int64_t end) {
  if (from.data == to.data) return;
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
    if (u.w.dtype == DType::kF64 || u.g.dtype == DType::kF64)
      return UpdateElements<double, 1>(team, u, *step, begin, end);
    const int64_t packed = u.packs ? begin + (end - begin) / kWidth * kWidth : begin;
    UpdateElements<float, kWidth>(team, u, *step, begin, packed);
    UpdateElements<float, 1>(team, u, *step, packed, end);
  }
};

Update Describe(const AdamWUpdate& u) {
  const int64_t n = u.w.size();
  TACC_KERNEL_CHECK(u.m.size() == n && u.v.size() == n && u.g.size() == n);
  TACC_KERNEL_CHECK(u.new_w.size() == n && u.new_m.size() == n && u.new_v.size() == n);
  TACC_KERNEL_CHECK(u.w.dtype == u.new_w.dtype && u.m.dtype == u.new_m.dtype && u.v.dtype == u.new_v.dtype);
  TACC_KERNEL_CHECK(IsFloat(u.w.dtype) && IsFloat(u.m.dtype) && IsFloat(u.v.dtype));
  TACC_KERNEL_CHECK(u.copy.data == nullptr || u.copy.size() == n);
  const AdamWScalars& s = u.scalars;
  TACC_KERNEL_CHECK(s.learning_rate.size() == 1 && s.grad_scale.size() == 1);
  TACC_KERNEL_CHECK(s.apply.size() == 1 && s.count.size() == 1);
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
          .beta1 = u.parameters.beta1,
          .beta2 = u.parameters.beta2,
          .epsilon = u.parameters.epsilon,
          .weight_decay = u.parameters.weight_decay,
          .n = n,
          .packs = ArePackable({u.w, u.m, u.v, u.g, u.new_w, u.new_m, u.new_v, u.copy})};
}

void AdamW(const TensorView& w, const TensorView& m, const TensorView& v, const TensorView& g,
           const AdamWScalars& scalars, const AdamWParameters& parameters, const TensorView& new_w,
           const TensorView& new_m, const TensorView& new_v, const TensorView& copy) {
  const Update update = Describe({w, m, v, g, scalars, parameters, new_w, new_m, new_v, copy});
  ForEachChunkOf<kTeam>(update, NumChunks(update.n), sizeof(Step), UpdateChunk());
}

}  // namespace

TensorTable AdamWTable(const std::vector<AdamWUpdate>& updates) {
  TensorTable table;
  for (const AdamWUpdate& given : updates) {
    const Update update = Describe(given);
    AddTensor(update, NumChunks(update.n), table);
  }
  return table;
}

void AdamWMany(const TensorTable& table) { ForEachChunk<kTeam, Update>(table, sizeof(Step), UpdateChunk()); }

const AdamWKernels kAdamW = {
    .AdamW = AdamW,
};

}  // namespace tacc::kernels::cuda
