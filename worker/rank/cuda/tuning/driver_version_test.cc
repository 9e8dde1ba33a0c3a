#include "gtest/gtest.h"
#include "worker/rank/cuda/tuning/probe.h"

namespace tacc::worker {
namespace {

TEST(DriverVersion, IsTheFirstNumberWithPoints) {
  EXPECT_EQ(DriverVersion("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\n"
                          "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"),
            "535.183.01");
  EXPECT_EQ(DriverVersion("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"),
            "580.65.06");
  EXPECT_EQ(DriverVersion("NVRM version: none"), "");
  EXPECT_EQ(DriverVersion(""), "");
}

}  // namespace
}  // namespace tacc::worker
