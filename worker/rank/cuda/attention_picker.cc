#include "worker/rank/cuda/attention_picker.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/cuda/aten.h"
#include "kernels/cuda/attention_tensor.h"
#include "kernels/cuda/stream.h"
#include "worker/rank/cuda/timer.h"

namespace tacc::worker {
namespace {

using kernels::Dims;
using kernels::DType;
using kernels::TensorView;
using kernels::cuda::AttentionBackend;

constexpr int kRepeats = 3;
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

struct Results {
  Operand out, lse, dq, dk, dv;

  Results(DType dtype, const Dims& q, const Dims& k)
      : out(Empty(dtype, q)),
        lse(Empty(DType::kF32, {q[0], q[2], q[1]})),
        dq(Empty(dtype, q)),
        dk(Empty(dtype, k)),
        dv(Empty(dtype, k)) {}
};

// LibTorch's text goes on with a stack.
std::string FirstLine(const std::exception& error) {
  const std::string what = error.what();
  return what.substr(0, what.find('\n'));
}

double Distance(const Operand& x, const Operand& want) {
  const at::Tensor a = x.tensor.to(at::kFloat), b = want.tensor.to(at::kFloat);
  return a.sub(b).norm().item<double>() / (b.norm().item<double>() + 1e-30);
}

// Empty, or which of the results is another.
std::string Differs(const Results& x, const Results& want) {
  const std::pair<const char*, double> distances[] = {{"out", Distance(x.out, want.out)},
                                                      {"lse", Distance(x.lse, want.lse)},
                                                      {"dq", Distance(x.dq, want.dq)},
                                                      {"dk", Distance(x.dk, want.dk)},
                                                      {"dv", Distance(x.dv, want.dv)}};
  for (const auto& [name, distance] : distances) {
    if (!(distance <= kTolerance))
      return absl::StrCat("its ", name, " is ", distance, " from that of plain cores, at most ", kTolerance);
  }
  return "";
}

// One sequence of `x`, cut to what is enough to choose by.
Dims Small(const Dims& x, int64_t heads) { return {1, std::min(x[1], kMeasuredSequence), heads, x[3]}; }

AttentionTiming TimeOwn(const Operand& dout, const Operand& q, const Operand& k, const Operand& v,
                        const kernels::AttentionParameters& parameters, const Results& results) {
  AttentionTiming own{Name(AttentionBackend::kTiles)};
  own.forward_seconds = BestSeconds(
      1, [&] { kernels::cuda::Attention(q.view, k.view, v.view, {}, parameters, results.out.view, results.lse.view); });
  own.backward_seconds = BestSeconds(1, [&] {
    kernels::cuda::AttentionGrad(dout.view, q.view, k.view, v.view, results.out.view, results.lse.view, {}, parameters,
                                 results.dq.view, results.dk.view, results.dv.view);
  });
  return own;
}

using Fast = kernels::cuda::FastAttention;

std::shared_ptr<const Fast> MakeFast(AttentionBackend backend, DType dtype, int64_t head_dim) {
  if (backend == AttentionBackend::kTensor) return std::make_shared<const kernels::cuda::TensorAttention>();
  return std::make_shared<const kernels::cuda::LibtorchAttention>(backend, dtype, head_dim);
}

// `why_not`: which backends do not take the operands, and why.
AttentionMeasurement Measure(const TensorView& q, const TensorView& k, const kernels::AttentionParameters& given,
                             const std::map<AttentionBackend, std::string>& why_not) {
  AttentionMeasurement measurement;
  const int64_t group = q.dims[2] / k.dims[2];
  const int64_t kv_heads = std::min(k.dims[2], std::max<int64_t>(1, kMeasuredHeads / group));
  const Dims q_dims = Small(q.dims, kv_heads * group), k_dims = Small(k.dims, kv_heads);
  const kernels::AttentionParameters parameters{.causal = given.causal, .scale = given.scale};
  const Operand bq = Random(q.dtype, q_dims), bk = Random(q.dtype, k_dims), bv = Random(q.dtype, k_dims);
  const Operand dout = Random(q.dtype, q_dims);
  const Results want(q.dtype, q_dims, k_dims);
  measurement.timings.push_back(TimeOwn(dout, bq, bk, bv, parameters, want));
  const bool is_deterministic = at::globalContext().deterministicAlgorithms();
  for (const auto& [backend, why] : why_not) {
    AttentionTiming& timing = measurement.timings.emplace_back(AttentionTiming{Name(backend)});
    timing.refused = why;
    if (why.empty() && backend == AttentionBackend::kCudnn && is_deterministic)
      timing.refused = "it is not deterministic";
    if (!timing.refused.empty()) continue;
    try {
      std::shared_ptr<const Fast> fast = MakeFast(backend, q.dtype, q_dims[3]);
      const Results results(q.dtype, q_dims, k_dims);
      timing.forward_seconds = BestSeconds(
          kRepeats, [&] { fast->Run(bq.view, bk.view, bv.view, {}, parameters, results.out.view, results.lse.view); });
      timing.backward_seconds = BestSeconds(kRepeats, [&] {
        fast->RunGrad(dout.view, bq.view, bk.view, bv.view, results.out.view, results.lse.view, {}, parameters,
                      results.dq.view, results.dk.view, results.dv.view);
      });
      timing.refused = Differs(results, want);
      if (timing.refused.empty()) measurement.backends[timing.backend] = std::move(fast);
    } catch (const std::exception& error) {
      timing.refused = FirstLine(error);
    }
  }
  return measurement;
}

AttentionMeasurement AllRefused(const std::map<AttentionBackend, std::string>& why_not) {
  AttentionMeasurement measurement{{{Name(AttentionBackend::kTiles)}}, {}};
  for (const auto& [backend, why] : why_not) measurement.timings.push_back({Name(backend), 0, 0, why});
  return measurement;
}

AttentionMeasurement AllRefused(const std::string& why) {
  return AllRefused(
      {{AttentionBackend::kTensor, why}, {AttentionBackend::kFlash, why}, {AttentionBackend::kCudnn, why}});
}

}  // namespace

AttentionMeasurement MeasureAttention(const TensorView& q, const TensorView& k, const kernels::AttentionExtras& extras,
                                      const kernels::AttentionParameters& parameters) {
  if (q.size() == 0 || k.size() == 0) return AllRefused("it has no elements");
  const std::string libtorch = kernels::cuda::WhyNotLibtorch(q, k, extras, parameters);
  const std::map<AttentionBackend, std::string> why_not = {
      {AttentionBackend::kTensor, kernels::cuda::WhyNotTensorAttention(q)},
      {AttentionBackend::kFlash, libtorch},
      {AttentionBackend::kCudnn, libtorch}};
  if (std::none_of(why_not.begin(), why_not.end(), [](const auto& entry) { return entry.second.empty(); }))
    return AllRefused(why_not);
  try {
    const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
    const c10::cuda::CUDAStreamGuard guard(stream);
    const kernels::cuda::StreamScope scope(stream.stream());
    return Measure(q, k, parameters, why_not);
  } catch (const std::exception& error) {
    return AllRefused(absl::StrCat("measuring failed: ", FirstLine(error)));
  }
}

// Plain cores until another is taken.
class AttentionPicker::Chosen : public Fast {
 public:
  void Take(std::shared_ptr<const Fast> fast) { fast_ = std::move(fast); }

  void Run(const TensorView& q, const TensorView& k, const TensorView& v, const kernels::AttentionExtras& extras,
           const kernels::AttentionParameters& parameters, const TensorView& out,
           const TensorView& lse) const override {
    if (fast_ != nullptr) return fast_->Run(q, k, v, extras, parameters, out, lse);
    kernels::cuda::Attention(q, k, v, extras, parameters, out, lse);
  }
  void RunGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
               const TensorView& out, const TensorView& lse, const TensorView& first_keys,
               const kernels::AttentionParameters& parameters, const TensorView& dq, const TensorView& dk,
               const TensorView& dv) const override {
    if (fast_ != nullptr) return fast_->RunGrad(dout, q, k, v, out, lse, first_keys, parameters, dq, dk, dv);
    kernels::cuda::AttentionGrad(dout, q, k, v, out, lse, first_keys, parameters, dq, dk, dv);
  }

 private:
  std::shared_ptr<const Fast> fast_;
};

std::shared_ptr<const Fast> AttentionPicker::Pick(const TensorView& q, const TensorView& k,
                                                  const kernels::AttentionExtras& extras,
                                                  const kernels::AttentionParameters& parameters) {
  const std::string why = kernels::cuda::WhyNotLibtorch(q, k, extras, parameters);
  const std::string shape =
      absl::StrCat(Name(q.dtype), "[", absl::StrJoin(q.dims, ","), "] of [", absl::StrJoin(k.dims, ","), "]",
                   parameters.causal ? " causal" : "", ", scale ", parameters.scale, why.empty() ? "" : ", ", why);
  const auto [it, is_new] = shapes_.try_emplace(shape);
  if (is_new) it->second = {MeasureAttention(q, k, extras, parameters), std::make_shared<Chosen>()};
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
