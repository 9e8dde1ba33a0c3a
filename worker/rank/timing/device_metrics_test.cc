#include "worker/rank/timing/device_metrics.h"

#include "gtest/gtest.h"
#include "worker/rank/device/host_device.h"
#include "worker/rank/testing/naive_kernels.h"
#include "worker/rank/testing/simulated_device.h"

namespace tacc::worker {
namespace {

using nlohmann::json;

TEST(DeviceMetrics, OfACpuThereAreNone) {
  const NaiveKernels kernels;
  HostDevice device(&kernels);
  DeviceMetrics metrics(&device);
  json step = json::object();
  EXPECT_EQ(metrics.MemoryUsedBytes(), std::nullopt);
  metrics.AddToStep(std::nullopt, 0.5, &step);
  EXPECT_TRUE(step.empty());
}

TEST(DeviceMetrics, IdleIsWhatIsNotActive) {
  const NaiveKernels kernels;
  SimulatedDevice device(&kernels);
  DeviceMetrics metrics(&device);
  const auto idle_share = [&metrics](double active, double seconds) {
    json step = json::object();
    metrics.AddToStep(active, seconds, &step);
    return step.value("device_idle_share", -1.0);
  };
  EXPECT_DOUBLE_EQ(idle_share(0.375, 0.5), 0.25);
  EXPECT_EQ(idle_share(0.51, 0.5), 0);  // The host's clock began later.
  EXPECT_EQ(idle_share(0, 0.5), 1);
  EXPECT_EQ(idle_share(0.1, 0), -1);
}

TEST(DeviceMetrics, MemoryIsAskedForInTheFirstStepsThenRarely) {
  const NaiveKernels kernels;
  SimulatedDevice device(&kernels);
  DeviceMetrics metrics(&device);
  EXPECT_EQ(metrics.MemoryUsedBytes(), 0);
  json event = json::object();
  const auto arena = device.CreateArena(5000, 100);
  ASSERT_TRUE(arena.ok()) << arena.status();
  const int64_t bytes = Arena::TotalBytes(5000, 100);
  for (int64_t step = 0; step < DeviceMetrics::kFirstSteps; ++step) {
    metrics.AddToStep(0.1, 0.1, &event);
    EXPECT_EQ(event["device_memory_used_bytes"], bytes);
  }
  const auto more = device.AllocateDevice(100);
  ASSERT_TRUE(more.ok()) << more.status();
  metrics.AddToStep(0.1, 0.1, &event);
  EXPECT_EQ(event["device_memory_used_bytes"], bytes);
}

}  // namespace
}  // namespace tacc::worker
