// Without a GPU: what the probe says then. With one: that it is probed, and that LibTorch's attention agrees with ours.
#include "worker/rank/cuda/probe.h"

#include <chrono>
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/rank/cuda/attention_choice.h"

namespace tacc::worker {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

int NumGpus() { return static_cast<int>(json::parse(CudaDevices()).size()); }

TEST(Probe, SaysWhatIsMissing) {
  const int num_gpus = NumGpus();
  for (const auto& status : {LookAtCudaDevice(num_gpus).status(), ProbeCudaDevice(num_gpus).status()}) {
    const std::string message(status.message());
    if (num_gpus > 0 || status.code() == absl::StatusCode::kNotFound) {
      EXPECT_THAT(message, HasSubstr("this machine has " + std::to_string(num_gpus) + " GPUs"));
    } else {
      EXPECT_THAT(message, HasSubstr("install an NVIDIA driver"));
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    }
  }
}

TEST(Probe, MeasuresAGpuInThreeSeconds) {
  if (NumGpus() == 0) GTEST_SKIP() << "no GPU";
  const auto begin = std::chrono::steady_clock::now();
  const absl::StatusOr<std::string> text = ProbeCudaDevice(0);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ASSERT_TRUE(text.ok()) << text.status();
  const json profile = json::parse(*text);
  EXPECT_LT(seconds, 3.0) << *text;
  EXPECT_EQ(profile["name"], "cuda:0");
  EXPECT_EQ(profile["model"], json::parse(CudaDevices())[0]["model"]);
  EXPECT_GE(profile["total_memory_bytes"], profile["free_memory_bytes"]);
  EXPECT_GT(profile["matmul_flops_per_second"]["f32"], 1e12);
  EXPECT_GT(profile["matmul_flops_per_second"]["bf16"], profile["matmul_flops_per_second"]["f32"]);
  EXPECT_GT(profile["memory_bytes_per_second"], 1e11);
  EXPECT_GT(profile["link_bytes_per_second"], 1e9);
  EXPECT_GT(profile["link_latency_seconds"], 0.0);
  EXPECT_GT(profile["matmul_fraction"], 0.3);
  EXPECT_LE(profile["matmul_fraction"], 1.0);
  EXPECT_GT(profile["attention_flops_per_second"]["flash"], profile["attention_flops_per_second"]["tiles"]);
}

TEST(AttentionChoice, LibtorchAgreesWithOurKernels) {
  if (NumGpus() == 0) GTEST_SKIP() << "no GPU";
  for (kernels::DType dtype : {kernels::DType::kBF16, kernels::DType::kF16}) {
    for (const auto& [heads, kv_heads, head_dim] : {std::tuple{16, 16, 128}, {16, 4, 64}, {8, 2, 80}, {4, 4, 256}}) {
      for (const bool causal : {true, false}) {
        const kernels::TensorView q{nullptr, dtype, {1, 777, heads, head_dim}};
        const kernels::TensorView k{nullptr, dtype, {1, 777, kv_heads, head_dim}};
        const AttentionChoice choice =
            ChooseAttention(q, k, {}, {.causal = causal, .scale = 1 / std::sqrt(static_cast<double>(head_dim))});
        ASSERT_EQ(choice.timings.size(), 4u);
        EXPECT_EQ(choice.timings[1].refused, head_dim > 128 ? "its head dim is 256" : "") << choice.ToString();
        EXPECT_EQ(choice.timings[2].refused, "") << choice.ToString();
        EXPECT_NE(choice.fast, nullptr) << choice.ToString();
      }
    }
  }
}

TEST(AttentionChoice, LeavesToOurKernelsWhatLibtorchDoesNotTake) {
  const kernels::TensorView q{nullptr, kernels::DType::kBF16, {1, 64, 4, 32}};
  kernels::AttentionParameters parameters{.causal = true, .scale = 1};
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(q, q, {}, parameters), "");
  parameters.queries = parameters.keys = {{.length = 64}};
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(q, q, {}, parameters), "");
  parameters.keys = {{.length = 32}, {.length = 32, .position = 96}};
  parameters.alibi_slopes = {1, 1, 1, 1};
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(q, q, {}, parameters), "it has alibi slopes");
  const kernels::TensorView narrow{nullptr, kernels::DType::kBF16, {1, 64, 4, 12}};
  const AttentionChoice choice = ChooseAttention(narrow, narrow, {}, parameters);
  EXPECT_EQ(choice.fast, nullptr);
  EXPECT_EQ(choice.ToString(),
            "tiles (tensor refused: its head dim is 12; flash refused: its head dim is 12; cudnn refused: its head dim "
            "is 12)");
  parameters.alibi_slopes.clear();
  EXPECT_THAT(kernels::cuda::WhyNotLibtorch(q, q, {}, parameters), HasSubstr("natural order"));
  const kernels::TensorView longer{nullptr, kernels::DType::kBF16, {1, 96, 4, 32}};
  EXPECT_THAT(kernels::cuda::WhyNotLibtorch(q, longer, {}, {.causal = true}), HasSubstr("other numbers"));
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(q, longer, {}, {.causal = false}), "");
  const kernels::TensorView odd{nullptr, kernels::DType::kBF16, {1, 64, 4, 33}};
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(odd, odd, {}, {}), "its head dim is 33");
  const kernels::TensorView wide{nullptr, kernels::DType::kF32, {1, 64, 4, 32}};
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(wide, wide, {}, {}), "its dtype is f32");
}

TEST(AttentionPicker, ChoosesOnceAndSaysSo) {
  std::vector<std::string> notes;
  AttentionPicker picker([&notes](const std::string& line) { notes.push_back(line); });
  const kernels::TensorView q{nullptr, kernels::DType::kF32, {2, 64, 4, 32}},
      k{nullptr, kernels::DType::kF32, {2, 64, 2, 32}};
  for (int i = 0; i < 2; ++i) EXPECT_EQ(picker.Pick(q, k, {}, {.causal = true, .scale = 0.5}), nullptr);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_EQ(notes[0],
            "attention f32[2,64,4,32] of [2,64,2,32] causal, scale 0.5, its dtype is f32: tiles (tensor refused: its "
            "dtype is f32; flash refused: its dtype is f32; cudnn refused: its dtype is f32)");
  EXPECT_EQ(picker.Pick(q, k, {}, {.causal = false, .scale = 0.5}), nullptr);
  EXPECT_EQ(notes.size(), 2u);
}

// Without a GPU, or on one that fails, the text says so and our own kernels are chosen.
TEST(AttentionChoice, DoesNotThrow) {
  if (NumGpus() > 0) GTEST_SKIP() << "there is a GPU";
  const kernels::TensorView q{nullptr, kernels::DType::kBF16, {1, 64, 4, 32}};
  const AttentionChoice choice = ChooseAttention(q, q, {}, {.causal = true, .scale = 1});
  EXPECT_EQ(choice.fast, nullptr);
  EXPECT_THAT(choice.ToString(), HasSubstr("choosing failed: "));
}

}  // namespace
}  // namespace tacc::worker
