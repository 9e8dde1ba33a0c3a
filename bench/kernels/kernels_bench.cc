// The CPU's kernels beside LibTorch's operators for the same work, in the shapes of `make bench`'s model: 2,048 tokens,
// hidden size 512, 8 heads, MLP 1,408, vocabulary 32,000. Items are elements (products: floating-point operations).
//   ninja -C build kernels_bench && build/kernels_bench --benchmark_filter=RmsNorm
#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include <cmath>

#include "kernels/contract/kernels.h"
#include "kernels/cpu/einsum.h"
#include "kernels/cpu/kernels.h"

namespace tacc::kernels::cpu {
namespace {

constexpr int64_t kBatch = 4, kSequence = 512, kTokens = kBatch * kSequence, kHidden = 512, kHeads = 8, kMlp = 1408;
constexpr int64_t kVocabulary = 32000;

// A tensor of LibTorch's and the view of it.
struct Data {
  at::Tensor tensor;
  TensorView view;

  Data(DType dtype, const Dims& dims) {
    const at::IntArrayRef sizes(dims.begin(), dims.rank());
    const at::ScalarType type = dtype == DType::kBF16 ? at::kBFloat16 : dtype == DType::kI32 ? at::kInt : at::kFloat;
    tensor =
        dtype == DType::kI32 ? at::randint(0, kVocabulary, sizes, at::kInt) : at::randn(sizes, at::kFloat).to(type);
    view = {tensor.data_ptr(), dtype, dims};
  }
};

DType TypeOf(const benchmark::State& state) { return state.range(0) == 16 ? DType::kBF16 : DType::kF32; }

template <typename Run>
void Loop(benchmark::State& state, int64_t items, const Run& run) {
  run();
  for (auto _ : state) run();
  state.SetItemsProcessed(state.iterations() * items);
}

void BM_Swiglu(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data gate(t, {kTokens, kMlp}), up(t, {kTokens, kMlp}), y(t, {kTokens, kMlp});
  Loop(state, y.view.size(), [&] { kPointwise.Swiglu(gate.view, up.view, y.view); });
}
void BM_SwigluTorch(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data gate(t, {kTokens, kMlp}), up(t, {kTokens, kMlp}), y(t, {kTokens, kMlp});
  Loop(state, y.view.size(), [&] {
    at::silu_out(y.tensor, gate.tensor);
    y.tensor.mul_(up.tensor);
  });
}

void BM_SwigluGrad(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data gate(t, {kTokens, kMlp}), up(t, {kTokens, kMlp}), dy(t, {kTokens, kMlp}), dg(t, {kTokens, kMlp}),
      du(t, {kTokens, kMlp});
  Loop(state, dy.view.size(), [&] { kPointwise.SwigluGrad(gate.view, up.view, dy.view, dg.view, du.view); });
}

void BM_Gelu(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data x(t, {kTokens, kMlp}), y(t, {kTokens, kMlp});
  Loop(state, y.view.size(), [&] { kUnary.Unary(UnaryOp::kGelu, x.view, y.view, {}); });
}
void BM_GeluTorch(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data x(t, {kTokens, kMlp}), y(t, {kTokens, kMlp});
  Loop(state, y.view.size(), [&] { at::gelu_out(y.tensor, x.tensor); });
}

void BM_Add(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data a(t, {kTokens, kHidden}), b(t, {kTokens, kHidden}), y(t, {kTokens, kHidden});
  Loop(state, y.view.size(), [&] { kPointwise.Binary(BinaryOp::kAdd, a.view, b.view, y.view); });
}
void BM_AddTorch(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data a(t, {kTokens, kHidden}), b(t, {kTokens, kHidden}), y(t, {kTokens, kHidden});
  Loop(state, y.view.size(), [&] { at::add_out(y.tensor, a.tensor, b.tensor); });
}

void BM_Cast(benchmark::State& state) {
  Data x(DType::kF32, {kTokens, kMlp}), y(DType::kBF16, {kTokens, kMlp});
  Loop(state, y.view.size(), [&] {
    state.range(0) == 16 ? kUnary.Unary(UnaryOp::kCast, y.view, x.view, {})
                         : kUnary.Unary(UnaryOp::kCast, x.view, y.view, {});
  });
}
void BM_CastTorch(benchmark::State& state) {
  Data x(DType::kF32, {kTokens, kMlp}), y(DType::kBF16, {kTokens, kMlp});
  Loop(state, y.view.size(), [&] { state.range(0) == 16 ? x.tensor.copy_(y.tensor) : y.tensor.copy_(x.tensor); });
}

void BM_RmsNorm(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data x(t, {kTokens, kHidden}), w(t, {kHidden}), y(t, {kTokens, kHidden}), rstd(DType::kF32, {kTokens});
  Loop(state, x.view.size(), [&] { kNorm.RmsNorm(x.view, w.view, 1e-5, y.view, rstd.view); });
}
void BM_RmsNormTorch(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data x(t, {kTokens, kHidden}), w(t, {kHidden});
  Loop(state, x.view.size(), [&] { benchmark::DoNotOptimize(at::rms_norm(x.tensor, {kHidden}, w.tensor, 1e-5)); });
}

void BM_RmsNormGrad(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data x(t, {kTokens, kHidden}), w(t, {kHidden}), dy(t, {kTokens, kHidden}), dx(t, {kTokens, kHidden});
  Data rstd(DType::kF32, {kTokens}), dw(DType::kF32, {kHidden});
  Loop(state, x.view.size(), [&] { kNorm.RmsNormGrad(dy.view, x.view, w.view, rstd.view, dx.view, dw.view, {}); });
}

void BM_LayerNorm(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data x(t, {kTokens, kHidden}), y(t, {kTokens, kHidden}), mean(DType::kF32, {kTokens}), rstd(DType::kF32, {kTokens});
  const TensorView none;
  Loop(state, x.view.size(), [&] { kNorm.LayerNorm(x.view, none, none, 1e-5, y.view, mean.view, rstd.view); });
}
void BM_LayerNormTorch(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data x(t, {kTokens, kHidden});
  Loop(state, x.view.size(),
       [&] { benchmark::DoNotOptimize(at::native_layer_norm(x.tensor, {kHidden}, {}, {}, 1e-5)); });
}

void BM_LayerNormGrad(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data x(t, {kTokens, kHidden}), dy(t, {kTokens, kHidden}), dx(t, {kTokens, kHidden});
  Data mean(DType::kF32, {kTokens}), rstd(DType::kF32, {kTokens});
  const TensorView none;
  Loop(state, x.view.size(),
       [&] { kNorm.LayerNormGrad(dy.view, x.view, mean.view, rstd.view, none, dx.view, none, none, {}); });
}
void BM_LayerNormGradTorch(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data x(t, {kTokens, kHidden}), dy(t, {kTokens, kHidden});
  const auto [y, mean, rstd] = at::native_layer_norm(x.tensor, {kHidden}, {}, {}, 1e-5);
  Loop(state, x.view.size(), [&] {
    benchmark::DoNotOptimize(
        at::native_layer_norm_backward(dy.tensor, x.tensor, {kHidden}, mean, rstd, {}, {}, {true, false, false}));
  });
}

void BM_Rotary(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data x(t, {kBatch, kSequence, kHeads, 64}), y(t, {kBatch, kSequence, kHeads, 64});
  Data cos(DType::kF32, {kSequence, 32}), sin(DType::kF32, {kSequence, 32});
  Loop(state, x.view.size(),
       [&] { kRotary.Rotary(x.view, cos.view, sin.view, RotaryStyle::kHalf, RotaryDirection::kForward, y.view, -1); });
}

void BM_CrossEntropy(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data logits(t, {kTokens, kVocabulary}), targets(DType::kI32, {kTokens}), lse(DType::kF32, {kTokens});
  Data loss(DType::kF32, {}), count(DType::kF32, {});
  Loop(state, logits.view.size(),
       [&] { kCrossEntropy.CrossEntropy(logits.view, targets.view, 0, {kTokens}, loss.view, count.view, lse.view); });
}
void BM_CrossEntropyTorch(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data logits(t, {kTokens, kVocabulary}), targets(DType::kI32, {kTokens});
  const at::Tensor long_targets = targets.tensor.to(at::kLong);
  Loop(state, logits.view.size(),
       [&] { benchmark::DoNotOptimize(at::cross_entropy_loss(logits.tensor, long_targets)); });
}

void BM_CrossEntropyGrad(benchmark::State& state) {
  const DType t = TypeOf(state);
  Data logits(t, {kTokens, kVocabulary}), targets(DType::kI32, {kTokens}), lse(DType::kF32, {kTokens}),
      dloss(DType::kF32, {});
  Data dlogits(t, {kTokens, kVocabulary});
  Loop(state, logits.view.size(), [&] {
    kCrossEntropy.CrossEntropyGrad(logits.view, targets.view, lse.view, dloss.view, 0, {kTokens}, dlogits.view);
  });
}

void BM_AdamW(benchmark::State& state) {
  const Dims dims{10'000'000};
  Data w(DType::kF32, dims), m(DType::kF32, dims), v(DType::kF32, dims), g(DType::kF32, dims), copy(DType::kBF16, dims);
  v.tensor.abs_();
  Data lr(DType::kF32, {}), scale(DType::kF32, {}), apply(DType::kF32, {}), count(DType::kF32, {});
  lr.tensor.fill_(1e-3);
  scale.tensor.fill_(1);
  apply.tensor.fill_(1);
  count.tensor.fill_(3);
  Loop(state, w.view.size(), [&] {
    kOptimizer.Update({w.view,
                       m.view,
                       v.view,
                       g.view,
                       {lr.view, scale.view, apply.view, count.view},
                       {UpdateKind::kAdamW, 0.9, 0.95, 1e-8, 0.1},
                       w.view,
                       m.view,
                       v.view,
                       state.range(0) == 16 ? copy.view : TensorView()});
  });
}
void BM_AdamWTorch(benchmark::State& state) {
  const Dims dims{10'000'000};
  Data w(DType::kF32, dims), m(DType::kF32, dims), v(DType::kF32, dims), g(DType::kF32, dims), copy(DType::kBF16, dims);
  v.tensor.abs_();
  std::vector<at::Tensor> ws{w.tensor}, gs{g.tensor}, ms{m.tensor}, vs{v.tensor}, steps{at::full({}, 3.0f)};
  Loop(state, w.view.size(), [&] {
    at::_fused_adamw_(ws, gs, ms, vs, {}, steps, 1e-3, 0.9, 0.95, 0.1, 1e-8, false, false);
    if (state.range(0) == 16) copy.tensor.copy_(w.tensor);
  });
}

void BM_SumSquares(benchmark::State& state) {
  Data x(TypeOf(state), {10'000'000}), y(DType::kF32, {});
  Loop(state, x.view.size(), [&] { kSumSquares.SumSquares({{x.view, x.view.dims}}, y.view); });
}
void BM_SumSquaresTorch(benchmark::State& state) {
  Data x(TypeOf(state), {10'000'000});
  Loop(state, x.view.size(), [&] { benchmark::DoNotOptimize(at::norm(x.tensor)); });
}

void BM_EmbeddingGrad(benchmark::State& state) {
  Data dy(TypeOf(state), {kTokens, kHidden}), ids(DType::kI32, {kTokens}), dtable(DType::kF32, {kVocabulary, kHidden});
  Loop(state, dtable.view.size(), [&] { kEmbedding.EmbeddingGrad(dy.view, ids.view, 0, dtable.view); });
}
void BM_EmbeddingGradTorch(benchmark::State& state) {
  Data dy(TypeOf(state), {kTokens, kHidden}), ids(DType::kI32, {kTokens});
  Loop(state, kVocabulary * kHidden,
       [&] { benchmark::DoNotOptimize(at::embedding_dense_backward(dy.tensor, ids.tensor, kVocabulary, -1, false)); });
}

struct Heads {
  explicit Heads(DType t, int64_t kv_heads)
      : q(t, {kBatch, kSequence, kHeads, 64}),
        k(t, {kBatch, kSequence, kv_heads, 64}),
        v(t, {kBatch, kSequence, kv_heads, 64}),
        out(t, {kBatch, kSequence, kHeads, 64}),
        dq(t, {kBatch, kSequence, kHeads, 64}),
        dk(t, {kBatch, kSequence, kv_heads, 64}),
        dv(t, {kBatch, kSequence, kv_heads, 64}),
        lse(DType::kF32, {kBatch, kHeads, kSequence}) {}
  Data q, k, v, out, dq, dk, dv, lse;
};
constexpr int64_t kAttentionFlops = 2 * 2 * kBatch * kHeads * kSequence * kSequence * 64 / 2;

void BM_Attention(benchmark::State& state) {
  const Heads h(TypeOf(state), state.range(1));
  const AttentionParameters p{.causal = true, .scale = 0.125};
  Loop(state, kAttentionFlops,
       [&] { kAttention.Attention(h.q.view, h.k.view, h.v.view, {}, p, h.out.view, h.lse.view); });
}
void BM_AttentionGrad(benchmark::State& state) {
  const Heads h(TypeOf(state), state.range(1));
  const AttentionParameters p{.causal = true, .scale = 0.125};
  kAttention.Attention(h.q.view, h.k.view, h.v.view, {}, p, h.out.view, h.lse.view);
  Loop(state, 2 * kAttentionFlops, [&] {
    kAttention.AttentionGrad(h.q.view, h.q.view, h.k.view, h.v.view, h.out.view, h.lse.view, {}, p, h.dq.view,
                             h.dk.view, h.dv.view);
  });
}

// Range 1: columns of the weight; range 2: 0 forward, 1 gradient of x, 2 gradient of w in f32.
void BM_Linear(benchmark::State& state) {
  const DType t = TypeOf(state);
  const int64_t n = state.range(1);
  Data x(t, {kBatch, kSequence, kHidden}), w(t, {n, kHidden}), y(t, {kBatch, kSequence, n});
  Data dw(DType::kF32, {n, kHidden});
  const char* specs[] = {"bsk,nk->bsn", "bsn,nk->bsk", "bsn,bsk->nk"};
  const TensorView a = state.range(2) == 0 ? x.view : y.view, b = state.range(2) == 2 ? x.view : w.view;
  const TensorView out = state.range(2) == 0 ? y.view : state.range(2) == 1 ? x.view : dw.view;
  const auto kernel = CpuEinsum::Prepare(specs[state.range(2)], a, b, out);
  Loop(state, 2 * kTokens * n * kHidden, [&] { kernel->Run(a, b, out); });
}
void BM_LinearTorch(benchmark::State& state) {
  const DType t = TypeOf(state);
  const int64_t n = state.range(1);
  Data x(t, {kTokens, kHidden}), w(t, {n, kHidden}), y(t, {kTokens, n}), dw(DType::kF32, {n, kHidden});
  Loop(state, 2 * kTokens * n * kHidden, [&] {
    if (state.range(2) == 0) at::mm_out(y.tensor, x.tensor, w.tensor.t());
    if (state.range(2) == 1) at::mm_out(x.tensor, y.tensor, w.tensor);
    if (state.range(2) == 2) benchmark::DoNotOptimize(at::mm(y.tensor.t(), x.tensor).to(at::kFloat));
  });
}

#define TACC_BENCHMARK(name) BENCHMARK(name)->Arg(32)->Arg(16)->UseRealTime()->Unit(benchmark::kMicrosecond)
TACC_BENCHMARK(BM_Swiglu);
TACC_BENCHMARK(BM_SwigluTorch);
TACC_BENCHMARK(BM_SwigluGrad);
TACC_BENCHMARK(BM_Gelu);
TACC_BENCHMARK(BM_GeluTorch);
TACC_BENCHMARK(BM_Add);
TACC_BENCHMARK(BM_AddTorch);
TACC_BENCHMARK(BM_Cast);
TACC_BENCHMARK(BM_CastTorch);
TACC_BENCHMARK(BM_RmsNorm);
TACC_BENCHMARK(BM_RmsNormTorch);
TACC_BENCHMARK(BM_RmsNormGrad);
TACC_BENCHMARK(BM_LayerNorm);
TACC_BENCHMARK(BM_LayerNormTorch);
TACC_BENCHMARK(BM_LayerNormGrad);
TACC_BENCHMARK(BM_LayerNormGradTorch);
TACC_BENCHMARK(BM_Rotary);
TACC_BENCHMARK(BM_CrossEntropy);
TACC_BENCHMARK(BM_CrossEntropyTorch);
TACC_BENCHMARK(BM_CrossEntropyGrad);
TACC_BENCHMARK(BM_AdamW);
TACC_BENCHMARK(BM_AdamWTorch);
TACC_BENCHMARK(BM_SumSquares);
TACC_BENCHMARK(BM_SumSquaresTorch);
TACC_BENCHMARK(BM_EmbeddingGrad);
TACC_BENCHMARK(BM_EmbeddingGradTorch);
BENCHMARK(BM_Attention)->ArgsProduct({{32, 16}, {8, 2}})->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_AttentionGrad)->ArgsProduct({{32, 16}, {8, 2}})->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Linear)
    ->ArgsProduct({{32, 16}, {512, 1408, 32000}, {0, 1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_LinearTorch)
    ->ArgsProduct({{32, 16}, {512, 1408, 32000}, {0, 1, 2}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace tacc::kernels::cpu

BENCHMARK_MAIN();
