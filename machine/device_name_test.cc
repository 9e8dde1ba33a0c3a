#include "machine/device_name.h"

#include <gtest/gtest.h>

namespace tacc {
namespace {

TEST(DeviceName, IsAKindOrAGpu) {
  for (const char* device : {"cpu", "cuda:0", "cuda:17", "cuda:999"}) EXPECT_TRUE(IsDevice(device)) << device;
  for (const char* device : {"", "cuda", "cuda:", "cuda:1000", "cuda:-1", "cuda:1x", "cpu:0", "CPU", "gpu", " cpu"}) {
    EXPECT_FALSE(IsDevice(device)) << device;
    EXPECT_EQ(GpuOrdinal(device), -1) << device;
  }
  EXPECT_EQ(GpuOrdinal("cuda:17"), 17);
  EXPECT_FALSE(IsGpu("cpu"));
}

}  // namespace
}  // namespace tacc
