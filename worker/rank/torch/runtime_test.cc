#include "worker/rank/torch/runtime.h"

#include "gtest/gtest.h"
#include "kernels/cpu/einsum.h"
#include "nlohmann/json.hpp"

namespace tacc::worker {
namespace {

// Between any two looks at the clock four seconds pass, however little was to be done.
TEST(ProbeDeviceTest, OnABusyMachineMeasuresEachThingButOnce) {
  int num_looks = 0;
  const nlohmann::json device = nlohmann::json::parse(ProbeDevice(1, [&] { return 4.0 * ++num_looks; }));
  EXPECT_LE(num_looks, 20);
  for (const char* field : {"matmul_fraction", "memory_bytes_per_second", "link_bytes_per_second"}) {
    EXPECT_GT(device[field].get<double>(), 0) << field;
  }
  EXPECT_EQ(device["link_latency_seconds"], 2.0);
  // One product of each dtype, the smallest layer's first.
  EXPECT_EQ(device["matmul_flops_per_second"]["bf16"], 2.0 * 1024 * 512 * 1536 / 4);
  EXPECT_EQ(device["matmul_fraction"], 1.0);
  EXPECT_EQ(device["cut_short"], true);
}

// By a clock on which all that is measured later is slower.
TEST(ProbeDeviceTest, ProductsHaveTheSpeedOfTheTypeThatTheyAreComputedIn) {
  double now = 0, step = 1;
  const nlohmann::json device = nlohmann::json::parse(ProbeDevice(1, [&] { return now += step *= 1.5; }));
  const nlohmann::json& rates = device["matmul_flops_per_second"];
  EXPECT_EQ(device["multiplies_bf16"], kernels::cpu::HasBf16Multiply());
  EXPECT_EQ(rates["f16"], rates["f32"]);
  if (kernels::cpu::HasBf16Multiply()) {
    EXPECT_LT(rates["bf16"], rates["f32"]);
  } else {
    EXPECT_EQ(rates["bf16"], rates["f32"]);
  }
}

}  // namespace
}  // namespace tacc::worker
