#include "worker/rank/cuda/device/exceptions.h"

#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <stdexcept>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/rank/cuda/device/errors.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(StatusOfException, FindsCudasErrorBehindLibtorchs) {
  const c10::AcceleratorError error({"f", "file.cc", 7}, cudaErrorIllegalAddress,
                                    "CUDA error: an illegal memory access was encountered\nCompile with ...\n");
  const absl::Status status = StatusOfException(error, 1);
  EXPECT_EQ(FaultOf(status), CudaFault::kSticky);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("cuda:1: CUDA error: an illegal memory access was encountered: "));
  EXPECT_THAT(message, HasSubstr("cudaErrorIllegalAddress"));
  EXPECT_THAT(message, Not(HasSubstr("Compile with")));
}

TEST(StatusOfException, TellsAFullWorkspaceFromOtherFailures) {
  try {
    TORCH_CHECK_WITH(OutOfMemoryError, false, "the planned GPU workspace of 5 bytes is too small");
  } catch (const std::exception& error) {
    const absl::Status status = StatusOfException(error, 0);
    EXPECT_EQ(FaultOf(status), CudaFault::kOutOfMemory);
    EXPECT_EQ(std::string(status.message()), "cuda:0: the planned GPU workspace of 5 bytes is too small");
  }
}

TEST(StatusOfException, AddsCudasLastErrorToWhatElseFails) {
  // Where there is no driver, that is CUDA's last error always.
  const bool has_driver = cudaGetLastError() == cudaSuccess;
  const CudaFault fault = has_driver ? CudaFault::kOther : CudaFault::kNoDriver;
  try {
    TORCH_CHECK(false, "shapes differ");
  } catch (const std::exception& error) {
    const absl::Status status = StatusOfException(error, 2);
    EXPECT_EQ(FaultOf(status), fault);
    EXPECT_THAT(std::string(status.message()), StartsWith("cuda:2: shapes differ"));
  }
  const absl::Status status = StatusOfException(std::runtime_error("no such thing"), 0);
  EXPECT_EQ(FaultOf(status), fault);
  EXPECT_THAT(std::string(status.message()), StartsWith("cuda:0: no such thing"));
}

}  // namespace
}  // namespace tacc::worker
