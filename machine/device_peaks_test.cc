#include "machine/device_peaks.h"

#include <gtest/gtest.h>

namespace tacc {
namespace {

TEST(DevicePeaksTest, KnownModelsHaveTheVendorsDensePeak) {
  const std::map<std::string, double> wanted = {{"NVIDIA A100-SXM4-40GB", 312e12},
                                                {"NVIDIA A100 80GB PCIe", 312e12},
                                                {"NVIDIA H100 80GB HBM3", 989e12},
                                                {"NVIDIA H200", 989e12},
                                                {"NVIDIA B200", 2250e12}};
  for (const auto& [model, peak] : wanted) {
    const std::map<std::string, double> peaks = TablePeaks(model);
    ASSERT_EQ(peaks.size(), 2u) << model;
    EXPECT_EQ(peaks.at("bf16"), peak) << model;
    EXPECT_EQ(peaks.at("f16"), peak) << model;
  }
}

TEST(DevicePeaksTest, OthersAreMeasured) {
  for (const char* model : {"NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA GB200", "NVIDIA L40S",
                            "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "AMD EPYC A100", ""}) {
    EXPECT_TRUE(TablePeaks(model).empty()) << model;
  }
}

}  // namespace
}  // namespace tacc
