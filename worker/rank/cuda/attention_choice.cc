#include "worker/rank/cuda/attention_choice.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/aten.h"
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

double Distance(const Operand& x, const Operand& want) {
  const at::Tensor a = x.tensor.to(at::kDouble), b = want.tensor.to(at::kDouble);
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
      return absl::StrCat("its ", name, " is ", distance, " from that of our own kernels, at most ", kTolerance);
  }
  return "";
}

}  // namespace

std::string AttentionChoice::ToString() const {
  std::string text = Name(backend), rest;
  for (const AttentionTiming& timing : timings) {
    const std::string line = timing.refused.empty()
                                 ? absl::StrFormat("forward %.3f ms, backward %.3f ms", timing.forward_seconds * 1e3,
                                                   timing.backward_seconds * 1e3)
                                 : absl::StrCat("refused: ", timing.refused);
    absl::StrAppend(&rest, rest.empty() ? "" : "; ", Name(timing.backend), " ", line);
  }
  return rest.empty() ? text : absl::StrCat(text, " (", rest, ")");
}

AttentionChoice ChooseAttention(const TensorView& q, const TensorView& k, const kernels::AttentionExtras& extras,
                                const kernels::AttentionParameters& parameters) {
  AttentionChoice choice;
  if (const std::string why = kernels::cuda::WhyNotLibtorch(q, k, extras, parameters); !why.empty()) {
    for (AttentionBackend backend : {AttentionBackend::kFlash, AttentionBackend::kCudnn})
      choice.timings.push_back({backend, 0, 0, why});
    return choice;
  }
  Dims q_dims = q.dims, k_dims = k.dims;
  q_dims[0] = k_dims[0] = 1;
  const Operand bq = Random(q.dtype, q_dims), bk = Random(q.dtype, k_dims), bv = Random(q.dtype, k_dims);
  const Operand dout = Random(q.dtype, q_dims);

  const Results want(q.dtype, q_dims, k_dims);
  AttentionTiming own{AttentionBackend::kTiles};
  own.forward_seconds = BestSeconds(
      1, [&] { kernels::cuda::Attention(bq.view, bk.view, bv.view, {}, parameters, want.out.view, want.lse.view); });
  own.backward_seconds = BestSeconds(1, [&] {
    kernels::cuda::AttentionGrad(dout.view, bq.view, bk.view, bv.view, want.out.view, want.lse.view, {}, parameters,
                                 want.dq.view, want.dk.view, want.dv.view);
  });
  double best = own.forward_seconds + own.backward_seconds;
  choice.timings.push_back(own);
  for (AttentionBackend backend : {AttentionBackend::kFlash, AttentionBackend::kCudnn}) {
    AttentionTiming timing{backend};
    if (backend == AttentionBackend::kCudnn && at::globalContext().deterministicAlgorithms()) {
      timing.refused = "it is not deterministic";
      choice.timings.push_back(timing);
      continue;
    }
    try {
      auto libtorch = std::make_shared<const kernels::cuda::LibtorchAttention>(backend, q.dtype, q_dims[3]);
      const Results results(q.dtype, q_dims, k_dims);
      timing.forward_seconds = BestSeconds(
          kRepeats, [&] { libtorch->Run(bq.view, bk.view, bv.view, parameters, results.out.view, results.lse.view); });
      timing.backward_seconds = BestSeconds(kRepeats, [&] {
        libtorch->RunGrad(dout.view, bq.view, bk.view, bv.view, results.out.view, results.lse.view, parameters,
                          results.dq.view, results.dk.view, results.dv.view);
      });
      timing.refused = Differs(results, want);
      const double seconds = timing.forward_seconds + timing.backward_seconds;
      if (timing.refused.empty() && seconds < best) {
        best = seconds;
        choice.backend = backend;
        choice.libtorch = std::move(libtorch);
      }
    } catch (const std::exception& error) {
      // LibTorch's text goes on with a stack: its first line says it.
      const std::string what = error.what();
      timing.refused = what.substr(0, what.find('\n'));
    }
    choice.timings.push_back(timing);
  }
  return choice;
}

}  // namespace tacc::worker
