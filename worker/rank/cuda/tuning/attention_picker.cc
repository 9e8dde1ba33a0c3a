#include "worker/rank/cuda/tuning/attention_picker.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/contract/attention.h"
#include "kernels/cuda/aten.h"
#include "kernels/cuda/attention_tensor.h"
#include "kernels/cuda/kernels.h"
#include "worker/rank/cuda/tuning/recorded_calls.h"

namespace tacc::worker {
namespace {

using kernels::Dims;
using kernels::DType;
using kernels::TensorView;
using kernels::cuda::AttentionBackend;

using Fast = kernels::cuda::FastAttention;

// Of a backend that is timed, and of plain cores, which take ten times as long.
constexpr int kCalls = 10, kPlainCalls = 1;
// bf16 probabilities and sums in another order: distance over length of all results together. A wrong mask, scale or
// layout is tenths.
constexpr double kTolerance = 0.03;

// A tensor of LibTorch's and the view of it.
struct Operand {
  at::Tensor tensor;
  TensorView view;

  Operand(at::Tensor x, DType dtype, const Dims& dims) : tensor(std::move(x)), view{tensor.data_ptr(), dtype, dims} {}
};

c10::IntArrayRef Ref(const Dims& dims) { return {dims.begin(), static_cast<size_t>(dims.rank())}; }

Operand Empty(DType dtype, const Dims& dims) {
  return {at::empty(Ref(dims), kernels::cuda::AtenOptions(dtype)), dtype, dims};
}

Operand Random(DType dtype, const Dims& dims) {
  Operand x = Empty(dtype, dims);
  x.tensor.copy_(at::randn(Ref(dims)));
  return x;
}

// Elements from a token to the next of one tensor [B,S,H+2K,D].
int64_t PitchOfOneTensor(const Dims& q, const Dims& k) { return (q[2] + 2 * k[2]) * q[3]; }

// Queries, keys and values, or their gradients.
struct Heads {
  Operand q, k, v;

  // Heads of one tensor if `pitch` says so.
  Heads(DType dtype, const Dims& q_dims, const Dims& k_dims, int64_t pitch, Operand (*make)(DType, const Dims&))
      : Heads(pitch > 0
                  ? PartsOf(make(dtype, {q_dims[0], q_dims[1], q_dims[2] + 2 * k_dims[2], q_dims[3]}), q_dims, k_dims)
                  : Heads{make(dtype, q_dims), make(dtype, k_dims), make(dtype, k_dims)}) {}

 private:
  Heads(Operand q_heads, Operand k_heads, Operand v_heads)
      : q(std::move(q_heads)), k(std::move(k_heads)), v(std::move(v_heads)) {}

  static Heads PartsOf(const Operand& whole, const Dims& q_dims, const Dims& k_dims) {
    const auto part = [&whole](int64_t first, const Dims& dims) {
      return Operand(whole.tensor.narrow(2, first, dims[2]), whole.view.dtype, dims);
    };
    return {part(0, q_dims), part(q_dims[2], k_dims), part(q_dims[2] + k_dims[2], k_dims)};
  }
};

struct Results {
  Operand out, lse;
  Heads gradients;

  Results(DType dtype, const Dims& q, const Dims& k, int64_t pitch)
      : out(Empty(dtype, q)), lse(Empty(DType::kF32, {q[0], q[2], q[1]})), gradients(dtype, q, k, pitch, Empty) {}
};

double Distance(const Operand& x, const Operand& want) {
  const at::Tensor a = x.tensor.to(at::kFloat), b = want.tensor.to(at::kFloat);
  return a.sub(b).norm().item<double>() / (b.norm().item<double>() + 1e-30);
}

// Empty, or which of the results is another.
std::string Differs(const Results& x, const Results& want) {
  const std::pair<const char*, double> distances[] = {{"out", Distance(x.out, want.out)},
                                                      {"lse", Distance(x.lse, want.lse)},
                                                      {"dq", Distance(x.gradients.q, want.gradients.q)},
                                                      {"dk", Distance(x.gradients.k, want.gradients.k)},
                                                      {"dv", Distance(x.gradients.v, want.gradients.v)}};
  for (const auto& [name, distance] : distances) {
    if (!(distance <= kTolerance))
      return absl::StrCat("its ", name, " is ", distance, " from that of plain cores, at most ", kTolerance);
  }
  return "";
}

// Ours, by which the others are judged.
class PlainCores : public Fast {
 public:
  void Run(const TensorView& q, const TensorView& k, const TensorView& v, const kernels::AttentionExtras& extras,
           const kernels::AttentionParameters& parameters, const TensorView& out,
           const TensorView& lse) const override {
    kernels::cuda::kAttention.Attention(q, k, v, extras, parameters, out, lse);
  }
  void RunGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
               const TensorView& out, const TensorView& lse, const TensorView& first_keys,
               const kernels::AttentionParameters& parameters, const TensorView& dq, const TensorView& dk,
               const TensorView& dv) const override {
    kernels::cuda::kAttention.AttentionGrad(dout, q, k, v, out, lse, first_keys, parameters, dq, dk, dv);
  }
};

// A problem that is enough to choose by. Its operands and results lie as those given do.
struct Problem {
  kernels::AttentionParameters parameters;
  Heads heads;
  Operand dout;

  Problem(DType dtype, const Dims& q_dims, const Dims& k_dims, const kernels::AttentionParameters& given)
      : parameters{.causal = given.causal,
                   .scale = given.scale,
                   .pitch = given.pitch > 0 ? PitchOfOneTensor(q_dims, k_dims) : 0},
        heads(dtype, q_dims, k_dims, parameters.pitch, Random),
        dout(Random(dtype, q_dims)) {}

  Results Room() const { return {dout.view.dtype, heads.q.view.dims, heads.k.view.dims, parameters.pitch}; }
};

class Measuring {
 public:
  Measuring(AttentionBench* bench, const TensorView& q, const TensorView& k,
            const kernels::AttentionParameters& parameters)
      : bench_(*bench), q_(q), k_(k), pitch_(parameters.pitch) {
    const int64_t group = q.dims[2] / k.dims[2];
    const int64_t kv_heads = std::min(k.dims[2], std::max<int64_t>(1, kMeasuredHeads / group)),
                  heads = kv_heads * group;
    const int64_t batches = std::min(q.dims[0], (kMeasuredHeads + heads - 1) / heads);
    const auto cut = [&](const Dims& x, int64_t num_heads) {
      return Dims{batches, std::min(x[1], kMeasuredSequence), num_heads, x[3]};
    };
    bench_.Beside([&] {
      problem_.emplace(q.dtype, cut(q.dims, heads), cut(k.dims, kv_heads), parameters);
      wanted_.emplace(problem_->Room());
    });
  }

  // Plain cores first: the others are held to its results.
  AttentionTiming TimePlainCores() {
    AttentionTiming timing{Name(AttentionBackend::kTiles)};
    Time(PlainCores(), kPlainCalls, *wanted_, timing);
    return timing;
  }

  // Says in `timing` what is wrong; null: something is.
  std::shared_ptr<const Fast> Try(AttentionBackend backend, AttentionTiming& timing) {
    std::shared_ptr<const Fast> fast;
    try {
      std::optional<Results> results;
      bench_.Beside([&] {
        fast = bench_.Make(backend, q_.dtype, q_.dims[3]);
        results.emplace(problem_->Room());
      });
      if (q_.data != nullptr) timing.workspace_bytes = WorkspaceBytes(*fast);
      Time(*fast, kCalls, *results, timing);
      bench_.Beside([&] { timing.refused = Differs(*results, *wanted_); });
    } catch (const std::exception& error) {
      timing.refused = bench_.WhyThrown(error);
    }
    timing.failed = !timing.refused.empty();
    return timing.failed ? nullptr : fast;
  }

 private:
  void Time(const Fast& fast, int num_calls, const Results& results, AttentionTiming& timing) {
    const Problem& p = *problem_;
    timing.forward_seconds = bench_.Seconds(num_calls, [&] {
      fast.Run(p.heads.q.view, p.heads.k.view, p.heads.v.view, {}, p.parameters, results.out.view, results.lse.view);
    });
    timing.backward_seconds = bench_.Seconds(num_calls, [&] {
      fast.RunGrad(p.dout.view, p.heads.q.view, p.heads.k.view, p.heads.v.view, results.out.view, results.lse.view, {},
                   p.parameters, results.gradients.q.view, results.gradients.k.view, results.gradients.v.view);
    });
  }

  // What a call of the whole operands takes of the workspace, the most of forward and backward. All that it reads and
  // writes is q's memory and k's: how much is allocated does not depend on what lies there.
  int64_t WorkspaceBytes(const Fast& fast) {
    const TensorView lse{q_.data, DType::kF32, {q_.dims[0], q_.dims[2], q_.dims[1]}};
    kernels::AttentionParameters parameters = problem_->parameters;
    parameters.pitch = pitch_;
    bench_.TakePeakBytes();
    bench_.Do([&] { fast.Run(q_, k_, k_, {}, parameters, q_, lse); });
    bench_.Do([&] { fast.RunGrad(q_, q_, k_, k_, q_, lse, {}, parameters, q_, k_, k_); });
    return bench_.TakePeakBytes();
  }

  AttentionBench& bench_;
  const TensorView q_, k_;
  const int64_t pitch_;
  std::optional<Problem> problem_;
  std::optional<Results> wanted_;
};

// `why_not`: which backends do not take the operands, and why.
AttentionMeasurement Measure(AttentionBench& bench, const TensorView& q, const TensorView& k,
                             const kernels::AttentionParameters& parameters,
                             const std::map<AttentionBackend, std::string>& why_not) {
  Measuring measuring(&bench, q, k, parameters);
  AttentionMeasurement measurement;
  measurement.timings.push_back(measuring.TimePlainCores());
  const bool is_deterministic = at::globalContext().deterministicAlgorithms();
  for (const auto& [backend, why] : why_not) {
    AttentionTiming& timing = measurement.timings.emplace_back(AttentionTiming{Name(backend)});
    timing.refused = why;
    if (why.empty() && backend == AttentionBackend::kCudnn && is_deterministic)
      timing.refused = "it is not deterministic";
    if (!timing.refused.empty()) continue;
    if (std::shared_ptr<const Fast> fast = measuring.Try(backend, timing); fast != nullptr)
      measurement.backends[timing.backend] = std::move(fast);
  }
  return measurement;
}

AttentionMeasurement AllRefused(const std::map<AttentionBackend, std::string>& why_not) {
  AttentionMeasurement measurement{{{Name(AttentionBackend::kTiles)}}, {}};
  for (const auto& [backend, why] : why_not) measurement.timings.push_back({Name(backend), 0, 0, why});
  return measurement;
}

}  // namespace

AttentionMeasurement MeasureAttention(AttentionBench& bench, const TensorView& q, const TensorView& k,
                                      const kernels::AttentionExtras& extras,
                                      const kernels::AttentionParameters& parameters) {
  std::map<AttentionBackend, std::string> why_not = {
      {AttentionBackend::kTensor, kernels::cuda::WhyNotTensorAttention(q)},
      {AttentionBackend::kFlash, kernels::cuda::WhyNotLibtorch(q, k, extras, parameters)},
      {AttentionBackend::kCudnn, kernels::cuda::WhyNotLibtorch(q, k, extras, parameters)}};
  for (auto& [backend, why] : why_not) {
    if (q.size() == 0 || k.size() == 0) why = "it has no elements";
  }
  if (std::none_of(why_not.begin(), why_not.end(), [](const auto& entry) { return entry.second.empty(); }))
    return AllRefused(why_not);
  try {
    return Measure(bench, q, k, parameters, why_not);
  } catch (const std::exception& error) {
    AttentionMeasurement measurement = AllRefused(why_not);
    const std::string why_thrown = bench.WhyThrown(error);
    for (AttentionTiming& timing : measurement.timings) {
      if (timing.backend == Name(AttentionBackend::kTiles) || !timing.refused.empty()) continue;
      timing.refused = absl::StrCat("measuring failed: ", why_thrown);
      timing.failed = true;
    }
    return measurement;
  }
}

// Plain cores until another is taken.
class AttentionPicker::Chosen : public Fast {
 public:
  void Take(std::shared_ptr<const Fast> fast) { fast_ = std::move(fast); }

  void Run(const TensorView& q, const TensorView& k, const TensorView& v, const kernels::AttentionExtras& extras,
           const kernels::AttentionParameters& parameters, const TensorView& out,
           const TensorView& lse) const override {
    fast_->Run(q, k, v, extras, parameters, out, lse);
  }
  void RunGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
               const TensorView& out, const TensorView& lse, const TensorView& first_keys,
               const kernels::AttentionParameters& parameters, const TensorView& dq, const TensorView& dk,
               const TensorView& dv) const override {
    fast_->RunGrad(dout, q, k, v, out, lse, first_keys, parameters, dq, dk, dv);
  }

 private:
  std::shared_ptr<const Fast> fast_ = std::make_shared<const PlainCores>();
};

std::shared_ptr<const Fast> AttentionPicker::Pick(const TensorView& q, const TensorView& k,
                                                  const kernels::AttentionExtras& extras,
                                                  const kernels::AttentionParameters& parameters) {
  const std::string why = kernels::cuda::WhyNotLibtorch(q, k, extras, parameters);
  const std::string shape =
      absl::StrCat(Name(q.dtype), "[", absl::StrJoin(q.dims, ","), "] of [", absl::StrJoin(k.dims, ","), "]",
                   parameters.causal ? " causal" : "", ", scale ", parameters.scale,
                   parameters.pitch > 0 ? ", in one tensor" : "", why.empty() ? "" : ", ", why);
  const auto [it, is_new] = shapes_.try_emplace(shape);
  if (is_new) it->second = {MeasureAttention(bench_, q, k, extras, parameters), std::make_shared<Chosen>()};
  return it->second.chosen;
}

std::vector<AttentionChoice> AttentionPicker::Measured() const {
  std::vector<AttentionChoice> measured;
  for (const auto& [name, shape] : shapes_) measured.push_back({name, "", shape.measurement.timings});
  return measured;
}

void AttentionPicker::Take(const std::vector<AttentionChoice>& choices) {
  for (const AttentionChoice& choice : choices) {
    const auto found = shapes_.find(choice.shape);
    if (found == shapes_.end()) continue;
    auto& backends = found->second.measurement.backends;
    if (const auto backend = backends.find(choice.backend); backend != backends.end())
      found->second.chosen->Take(backend->second);
    backends.clear();
  }
}

}  // namespace tacc::worker
