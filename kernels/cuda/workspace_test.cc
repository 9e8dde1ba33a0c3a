// That kernels take no more scratch than they say: on the host, where LibTorch's own share is that of a CPU.
#include "kernels/cuda/workspace.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/contract/attention.h"
#include "kernels/contract/dispatch.h"
#include "kernels/contract/embedding.h"
#include "kernels/contract/expert.h"
#include "kernels/contract/norm.h"
#include "kernels/cpu/counting_allocator.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/einsum.h"
#include "kernels/cuda/kernels.h"
#include "kernels/reference/buffer.h"
#include "kernels/reference/reference.h"

namespace tacc::kernels::cuda {
namespace {

using reference::Buffer;
using reference::Random;

class Workspace : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { cpu::InstallCountingAllocator(); }
  // The counting allocator's header of each block, and small blocks of LibTorch's.
  static constexpr int64_t kSlack = 8 << 10;
  static void ExpectTaken(int64_t bytes) {
    EXPECT_GE(cpu::PeakBytes(), bytes);
    EXPECT_LE(cpu::PeakBytes(), bytes + kSlack);
  }
};

TEST_F(Workspace, OfAttention) {
  const Dims q{2, 70, 4, 24}, k{2, 70, 2, 24};
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const Buffer bq(dtype, Random(q, 1)), bk(dtype, Random(k, 2)), out(dtype, q), lse(dtype, Dims{2, 4, 70});
    const Buffer dq(dtype, q), dk(dtype, k), dv(dtype, k);
    cpu::ResetPeak();
    kAttention.Attention(bq, bk, bk, {}, {.causal = true}, out, lse);
    EXPECT_EQ(cpu::PeakBytes(), AttentionWorkspaceBytes(q, k, dtype));
    cpu::ResetPeak();
    kAttention.AttentionGrad(bq, bq, bk, bk, out, lse, {}, {.causal = true}, dq, dk, dv);
    const int64_t bytes = AttentionGradWorkspaceBytes(q, k, dtype, Determinism::kAny);
    EXPECT_GE(cpu::PeakBytes(), bytes);
    EXPECT_LE(cpu::PeakBytes(), bytes + kSlack);
  }
}

TEST_F(Workspace, OfLibtorchsAttentionHoldsItsResults) {
  const Dims q{2, 1024, 16, 128}, k{2, 1024, 4, 128};
  const int64_t forward = AttentionWorkspaceBytes(q, k, DType::kBF16);
  EXPECT_GE(forward, q.Product() * 2 + 2 * 1024 * 16 * 4);
  EXPECT_LE(forward, q.Product() * 2 + (8 << 20));
  const int64_t any = AttentionGradWorkspaceBytes(q, k, DType::kBF16, Determinism::kAny);
  // dq, dk, dv; dk and dv for each query head; dq in f32.
  EXPECT_GE(any, 2 * (3 * q.Product() + 2 * k.Product()) + 4 * q.Product());
  EXPECT_LE(any, 2 * (3 * q.Product() + 2 * k.Product()) + 4 * q.Product() + (8 << 20));
  // 32 pairs of sequence and head take five rounds to fill 160 multiprocessors.
  EXPECT_EQ(AttentionGradWorkspaceBytes(q, k, DType::kBF16, Determinism::kRequired), any + 4 * 4 * q.Product());
  // Few queries: keys are cut, and partial results are kept.
  EXPECT_GT(AttentionWorkspaceBytes({1, 64, 2, 128}, {1, 4096, 2, 128}, DType::kBF16), 64 * 128 * 128 * 4);
}

TEST_F(Workspace, OfGradientsOfNorms) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    for (int64_t n : {16, 3000}) {
      constexpr int64_t kRows = 700;
      const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
      const Buffer x(dtype, Random({kRows, n}, 1)), w(dtype, Random({n}, 2)), dx(dtype, Dims{kRows, n});
      const Buffer mean(wide, Dims{kRows}), rstd(wide, Dims{kRows}), dw(wide, Dims{n}), db(wide, Dims{n});
      cpu::ResetPeak();
      kNorm.RmsNormGrad(x, x, w, rstd, dx, dw, {});
      ExpectTaken(NormGradWorkspaceBytes(kRows, n, 1, wide));
      cpu::ResetPeak();
      kNorm.LayerNormGrad(x, x, mean, rstd, w, dx, dw, db, {});
      ExpectTaken(NormGradWorkspaceBytes(kRows, n, 2, wide));
      cpu::ResetPeak();
      kNorm.LayerNormGrad(x, x, mean, rstd, {}, dx, {}, {}, {});
      EXPECT_EQ(cpu::PeakBytes(), 0);
    }
  }
}

TEST_F(Workspace, OfWhatIsSortedById) {
  constexpr int64_t kTokens = 500, kSlots = 2, kExperts = 3, kN = 12, kM = 300;
  std::vector<int32_t> ids, places(kTokens * kSlots), row_ids(2 * 3 * 10);
  for (int64_t i = 0; i < kTokens * kSlots; ++i) ids.push_back(static_cast<int32_t>(i * i % 7));
  const TensorView slots{ids.data(), DType::kI32, {kTokens, kSlots}};
  const Buffer x(DType::kBF16, Random({kTokens, kN}, 1)), w(DType::kBF16, Random({kExperts, kM, kN}, 2));
  const Buffer y(DType::kF32, Dims{kTokens, kM}), dw(DType::kF32, Dims{kExperts, kM, kN});
  cpu::ResetPeak();
  kExpert.ExpertMatmul(x, slots, w, ExpertWeights::kPlain, 0, y);
  const int64_t bytes = ExpertMatmulWorkspaceBytes(kTokens * kSlots, kExperts, kM, DType::kBF16);
  ExpectTaken(bytes);
  cpu::ResetPeak();
  kExpert.ExpertMatmulGrad(Buffer(DType::kBF16, Random({kTokens, kM}, 3)), x, slots, 0, dw);
  ExpectTaken(ExpertMatmulWorkspaceBytes(kTokens * kSlots, kExperts, 0, DType::kBF16));

  const Buffer dtable(DType::kF32, Dims{5, kN});
  cpu::ResetPeak();
  kEmbedding.EmbeddingGrad(x, {ids.data(), DType::kI32, {kTokens}}, 1, dtable);
  ExpectTaken(EmbeddingGradWorkspaceBytes(kTokens, 5, kN, DType::kF32));

  const Buffer overflow(DType::kF32, Dims{});
  cpu::ResetPeak();
  kDispatch.DispatchSlots({ids.data(), DType::kI32, {1, kTokens, kSlots}}, 6,
                          {places.data(), DType::kI32, {1, kTokens, kSlots}},
                          {row_ids.data(), DType::kI32, {1, 2, 3, 10}}, overflow);
  ExpectTaken(DispatchSlotsWorkspaceBytes(2));
}

TEST_F(Workspace, OfEinsum) {
  struct Case {
    const char* spec;
    Dims a, b, y;
    DType a_type, b_type, y_type;
    int64_t copied;  // elements of 4 bytes
  };
  const DType f32 = DType::kF32, bf16 = DType::kBF16;
  const Case cases[] = {
      {"mk,nk->mn", {64, 96}, {128, 96}, {64, 128}, f32, f32, f32, 0},
      {"bihd,bjhd->bhij", {2, 60, 4, 16}, {2, 70, 4, 16}, {2, 4, 60, 70}, f32, f32, f32, -1},
      {"mkb,nkb->bmn", {60, 16, 30}, {70, 16, 30}, {30, 60, 70}, f32, f32, f32, -1},
      {"mk,nk->mn", {64, 96}, {128, 96}, {64, 128}, f32, bf16, f32, 128 * 96},
      {"mk,nk->mn", {64, 96}, {128, 96}, {64, 128}, f32, f32, bf16, 64 * 128},
  };
  for (const Case& c : cases) {
    const Buffer a(c.a_type, Random(c.a, 1)), b(c.b_type, Random(c.b, 2)), y(c.y_type, Random(c.y, 3));
    auto kernel = CudaEinsum::Prepare(c.spec, a, b, y);
    ASSERT_TRUE(kernel.ok());
    if (c.copied >= 0) {
      EXPECT_EQ(kernel->WorkspaceBytes(), c.copied * 4) << c.spec;
    }
    kernel->Run(a, b, y);
    cpu::ResetPeak();
    kernel->Run(a, b, y);
    EXPECT_GE(cpu::PeakBytes(), kernel->WorkspaceBytes()) << c.spec;
    EXPECT_LE(cpu::PeakBytes(), kernel->WorkspaceBytes() + kSlack) << c.spec;
    if (c.y_type != f32) continue;  // On a CPU LibTorch adds numbers of two dtypes by way of copies.
    cpu::ResetPeak();
    kernel->RunAccumulate(y, a, b, y);
    EXPECT_LE(cpu::PeakBytes(), kernel->WorkspaceBytes() + kSlack) << c.spec;
  }
}

}  // namespace
}  // namespace tacc::kernels::cuda
