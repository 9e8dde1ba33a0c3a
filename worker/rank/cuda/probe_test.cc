// Without a GPU: what the probe says then. With one: that it is probed, and that LibTorch's attention agrees with ours.
#include "worker/rank/cuda/probe.h"

#include <chrono>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/rank/cuda/attention_picker.h"

namespace tacc::worker {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
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

// Its name, and why it is refused, a line.
std::vector<std::string> Refusals(const AttentionMeasurement& measured) {
  std::vector<std::string> lines;
  for (const AttentionTiming& timing : measured.timings) lines.push_back(timing.backend + ": " + timing.refused);
  return lines;
}

TEST(MeasureAttention, LibtorchAgreesWithOurKernels) {
  if (NumGpus() == 0) GTEST_SKIP() << "no GPU";
  for (kernels::DType dtype : {kernels::DType::kBF16, kernels::DType::kF16}) {
    for (const auto& [heads, kv_heads, head_dim] : {std::tuple{16, 16, 128}, {16, 4, 64}, {8, 2, 80}, {4, 4, 256}}) {
      for (const bool causal : {true, false}) {
        const kernels::TensorView q{nullptr, dtype, {1, 777, heads, head_dim}};
        const kernels::TensorView k{nullptr, dtype, {1, 777, kv_heads, head_dim}};
        const AttentionMeasurement measured =
            MeasureAttention(q, k, {}, {.causal = causal, .scale = 1 / std::sqrt(static_cast<double>(head_dim))});
        const std::vector<std::string> refusals = Refusals(measured);
        ASSERT_EQ(refusals.size(), 4u);
        EXPECT_EQ(refusals[0], "tiles: ");
        EXPECT_EQ(refusals[1], head_dim > 128 ? "tensor: its head dim is 256" : "tensor: ");
        EXPECT_EQ(refusals[2], "flash: ");
        EXPECT_EQ(measured.backends.count("flash"), 1u);
      }
    }
  }
}

TEST(MeasureAttention, LeavesToOurKernelsWhatLibtorchDoesNotTake) {
  const kernels::TensorView q{nullptr, kernels::DType::kBF16, {1, 64, 4, 32}};
  kernels::AttentionParameters parameters{.causal = true, .scale = 1};
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(q, q, {}, parameters), "");
  parameters.queries = parameters.keys = {{.length = 64}};
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(q, q, {}, parameters), "");
  parameters.keys = {{.length = 32}, {.length = 32, .position = 96}};
  parameters.alibi_slopes = {1, 1, 1, 1};
  EXPECT_EQ(kernels::cuda::WhyNotLibtorch(q, q, {}, parameters), "it has alibi slopes");
  const kernels::TensorView narrow{nullptr, kernels::DType::kBF16, {1, 64, 4, 12}};
  const AttentionMeasurement measured = MeasureAttention(narrow, narrow, {}, parameters);
  EXPECT_TRUE(measured.backends.empty());
  EXPECT_THAT(Refusals(measured), ElementsAre("tiles: ", "tensor: its head dim is 12", "flash: its head dim is 12",
                                              "cudnn: its head dim is 12"));
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

TEST(AttentionPicker, MeasuresAShapeOnce) {
  AttentionPicker picker;
  const kernels::TensorView q{nullptr, kernels::DType::kF32, {2, 64, 4, 32}},
      k{nullptr, kernels::DType::kF32, {2, 64, 2, 32}};
  const auto first = picker.Pick(q, k, {}, {.causal = true, .scale = 0.5});
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(picker.Pick(q, k, {}, {.causal = true, .scale = 0.5}), first);
  ASSERT_EQ(picker.Measured().size(), 1u);
  EXPECT_EQ(picker.Measured()[0].shape, "f32[2,64,4,32] of [2,64,2,32] causal, scale 0.5, its dtype is f32");
  EXPECT_EQ(picker.Measured()[0].backend, "");
  EXPECT_EQ(picker.Measured()[0].timings.size(), 4u);
  EXPECT_NE(picker.Pick(q, k, {}, {.causal = false, .scale = 0.5}), first);
  EXPECT_EQ(picker.Measured().size(), 2u);
}

// Without a GPU, or on one that fails, the texts say so and our own kernels are left.
TEST(MeasureAttention, DoesNotThrow) {
  if (NumGpus() > 0) GTEST_SKIP() << "there is a GPU";
  const kernels::TensorView q{nullptr, kernels::DType::kBF16, {1, 64, 4, 32}};
  const AttentionMeasurement measured = MeasureAttention(q, q, {}, {.causal = true, .scale = 1});
  EXPECT_TRUE(measured.backends.empty());
  ASSERT_EQ(measured.timings.size(), 4u);
  EXPECT_THAT(measured.timings[3].refused, HasSubstr("measuring failed: "));
}

}  // namespace
}  // namespace tacc::worker
