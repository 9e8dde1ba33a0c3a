#include "worker/rank/cuda/device/errors.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"

namespace tacc::worker {
namespace {

struct Advice {
  absl::StatusCode code;
  const char* text;
};

Advice AdviceFor(CudaFault fault) {
  switch (fault) {
    case CudaFault::kNone:
      return {absl::StatusCode::kOk, ""};
    case CudaFault::kOutOfMemory:
      return {
          absl::StatusCode::kResourceExhausted,
          "the GPU's free memory is used up, by this rank or by other processes (nvidia-smi lists them): stop those, "
          "or let the job use less (a smaller train.per_device_train_batch_size)"};
    case CudaFault::kSticky:
      return {absl::StatusCode::kAborted,
              "this process can no longer use the GPU and ends; the job goes on from its last checkpoint in a new "
              "process. If it comes again at the same step, it is a bug of a kernel: please report the job"};
    case CudaFault::kLostDevice:
      return {
          absl::StatusCode::kUnavailable,
          "the GPU is lost to this machine until it is reset: look for Xid messages in `dmesg` and at `nvidia-smi`, "
          "and take the device out of service until then"};
    case CudaFault::kNoDriver:
      return {absl::StatusCode::kFailedPrecondition,
              "install an NVIDIA driver for CUDA 13 (580 or newer) on this machine"};
    case CudaFault::kOther:
      return {absl::StatusCode::kInternal, "please report the job"};
  }
  return {absl::StatusCode::kInternal, ""};
}

}  // namespace

CudaFault FaultOf(int cuda_error) {
  switch (cuda_error) {
    case cudaSuccess:
    case cudaErrorNotReady:  // A question's answer, no error.
      return CudaFault::kNone;
    case cudaErrorMemoryAllocation:
      return CudaFault::kOutOfMemory;
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorContextIsDestroyed:
    case cudaErrorCudartUnloading:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorContained:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return CudaFault::kSticky;
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceUninitialized:
    case cudaErrorInvalidDevice:
    case cudaErrorNoDevice:
    case cudaErrorSystemNotReady:
    case cudaErrorMpsServerNotReady:
    case cudaErrorMpsConnectionFailed:
    case cudaErrorMpsRpcFailure:
      return CudaFault::kLostDevice;
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorStubLibrary:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorCallRequiresNewerDriver:
      return CudaFault::kNoDriver;
    default:
      return CudaFault::kOther;
  }
}

absl::Status CudaStatus(int cuda_error, absl::string_view what, int device) {
  if (cuda_error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();
  const CudaFault fault = FaultOf(cuda_error);
  if (fault == CudaFault::kNone) return absl::OkStatus();
  const Advice advice = AdviceFor(fault);
  const cudaError_t error = static_cast<cudaError_t>(cuda_error);
  return absl::Status(advice.code, absl::StrCat("cuda:", device, ": ", what, ": ", cudaGetErrorName(error), " (",
                                                cudaGetErrorString(error), "): ", advice.text));
}

CudaFault FaultOf(const absl::Status& status) {
  for (CudaFault fault :
       {CudaFault::kNone, CudaFault::kOutOfMemory, CudaFault::kSticky, CudaFault::kLostDevice, CudaFault::kNoDriver}) {
    if (AdviceFor(fault).code == status.code()) return fault;
  }
  return CudaFault::kOther;
}

}  // namespace tacc::worker
