#include "worker/rank/cuda/device/errors.h"

#include <cuda_runtime_api.h>

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tacc::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CudaErrors, MeanWhatTheRankMustDo) {
  EXPECT_EQ(FaultOf(cudaSuccess), CudaFault::kNone);
  EXPECT_EQ(FaultOf(cudaErrorNotReady), CudaFault::kNone);
  EXPECT_EQ(FaultOf(cudaErrorMemoryAllocation), CudaFault::kOutOfMemory);
  for (cudaError_t error : {cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorAssert, cudaErrorUnknown})
    EXPECT_EQ(FaultOf(error), CudaFault::kSticky) << cudaGetErrorName(error);
  for (cudaError_t error : {cudaErrorECCUncorrectable, cudaErrorNoDevice, cudaErrorDevicesUnavailable})
    EXPECT_EQ(FaultOf(error), CudaFault::kLostDevice) << cudaGetErrorName(error);
  for (cudaError_t error : {cudaErrorInsufficientDriver, cudaErrorNoKernelImageForDevice})
    EXPECT_EQ(FaultOf(error), CudaFault::kNoDriver) << cudaGetErrorName(error);
  for (cudaError_t error : {cudaErrorInvalidValue, cudaErrorStreamCaptureUnsupported, cudaErrorInvalidConfiguration})
    EXPECT_EQ(FaultOf(error), CudaFault::kOther) << cudaGetErrorName(error);
}

// No two faults share a code.
TEST(CudaErrors, StatusesTellTheFaultAgain) {
  std::set<absl::StatusCode> codes;
  for (cudaError_t error : {cudaErrorMemoryAllocation, cudaErrorIllegalAddress, cudaErrorNoDevice,
                            cudaErrorInsufficientDriver, cudaErrorInvalidValue}) {
    const absl::Status status = CudaStatus(error, "a copy of 5 bytes", 3);
    EXPECT_EQ(FaultOf(status), FaultOf(error));
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("cuda:3: a copy of 5 bytes: "), HasSubstr(cudaGetErrorName(error))));
    EXPECT_TRUE(codes.insert(status.code()).second);
  }
  EXPECT_TRUE(CudaStatus(cudaSuccess, "a copy", 0).ok());
  EXPECT_EQ(FaultOf(absl::OkStatus()), CudaFault::kNone);
}

}  // namespace
}  // namespace tacc::worker
