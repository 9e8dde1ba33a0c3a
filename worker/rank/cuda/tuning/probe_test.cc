// Without a GPU: what the probe says then. With one: that it is probed, and that LibTorch's attention agrees with ours.
#include "worker/rank/cuda/tuning/probe.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/launch/stream.h"
#include "nlohmann/json.hpp"
#include "worker/rank/cuda/device/timer.h"
#include "worker/rank/cuda/tuning/attention_on_gpu.h"
#include "worker/rank/cuda/tuning/attention_picker.h"

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
  // A context, and libraries that the machine may read for the first time, are none of the measurement.
  const absl::StatusOr<std::string> first = ProbeCudaDevice(0);
  ASSERT_TRUE(first.ok()) << first.status();
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

// The device has not waited for the host, which takes ten times as long.
TEST(Timer, LeavesOutWhatTheHostTakesToQueue) {
  if (NumGpus() == 0) GTEST_SKIP() << "no GPU";
  at::Tensor x = at::ones({8}, at::TensorOptions(at::kCUDA));
  const kernels::cuda::StreamScope scope(c10::cuda::getCurrentCUDAStream().stream());
  const double seconds = BestSeconds(3, [&] {
    for (int i = 0; i < 10; ++i) {
      x.add_(1);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  EXPECT_LT(seconds, 250e-6);
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
        StreamAttentionBench bench;
        const AttentionMeasurement measured = MeasureAttention(
            bench, q, k, {}, {.causal = causal, .scale = 1 / std::sqrt(static_cast<double>(head_dim))});
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

// Without a GPU, or on one that fails, the texts say so and our own kernels are left.
TEST(MeasureAttention, DoesNotThrow) {
  if (NumGpus() > 0) GTEST_SKIP() << "there is a GPU";
  const kernels::TensorView q{nullptr, kernels::DType::kBF16, {1, 64, 4, 32}};
  StreamAttentionBench bench;
  const AttentionMeasurement measured = MeasureAttention(bench, q, q, {}, {.causal = true, .scale = 1});
  EXPECT_TRUE(measured.backends.empty());
  ASSERT_EQ(measured.timings.size(), 4u);
  EXPECT_THAT(measured.timings[3].refused, HasSubstr("measuring failed: "));
}

}  // namespace
}  // namespace tacc::worker
