#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/cuda/collectives/nccl_communication.h"
#include "worker/rank/cuda/device/errors.h"

namespace tacc::worker {
namespace {

absl::StatusOr<ncclDataType_t> NcclType(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kF32:
      return ncclFloat32;
    case kernels::DType::kF64:
      return ncclFloat64;
    case kernels::DType::kBF16:
      return ncclBfloat16;
    case kernels::DType::kF16:
      return ncclFloat16;
    case kernels::DType::kI32:
      return ncclInt32;
    case kernels::DType::kI64:
      return ncclInt64;
    default:
      return absl::UnimplementedError(absl::StrCat("NCCL has no sums of ", kernels::Name(dtype)));
  }
}

// The calls of all rows as one.
ncclResult_t InOneLaunch(int64_t rows, const std::function<ncclResult_t(int64_t row)>& call) {
  if (rows == 1) return call(0);
  ncclResult_t result = ncclGroupStart();
  // Within a group a call that is in progress is no reason to leave the others out.
  const auto goes_on = [&] { return result == ncclSuccess || result == ncclInProgress; };
  if (!goes_on()) return result;
  for (int64_t row = 0; row < rows && goes_on(); ++row) result = call(row);
  const ncclResult_t ended = ncclGroupEnd();
  return goes_on() ? ended : result;
}

}  // namespace

absl::Status NcclGroup::Connect(ncclComm_t communicator) {
  {
    absl::MutexLock lock(&owner_.mutex());
    communicator_ = communicator;
  }
  TACC_RETURN_IF_ERROR(Talk().WaitUntilReady("making a group"));
  absl::MutexLock lock(&owner_.mutex());
  TACC_RETURN_IF_ERROR(Talk().CheckConnected());
  int size = 0, me = 0;
  if (const ncclResult_t result = ncclCommCount(communicator_, &size); result != ncclSuccess)
    return Talk().Error(result, "a group's size");
  if (const ncclResult_t result = ncclCommUserRank(communicator_, &me); result != ncclSuccess)
    return Talk().Error(result, "a group's order");
  if (size == static_cast<int>(ranks_.size()) && me == me_) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("rank ", owner_.rank(), " is number ", me, " of a group of ", size,
                                          ", but should be ", me_, " among ", RanksText(ranks_)));
}

absl::Status NcclGroup::Queue(const char* what, const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& call) {
  if (!has_called_) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    TACC_RETURN_IF_CUDA_ERROR(cudaStreamIsCapturing(stream_.stream(), &capture), "a group's first call",
                              owner_.options().gpu);
    if (capture != cudaStreamCaptureStatusNone)
      return absl::InternalError(
          absl::StrCat("the first call among ", RanksText(ranks_), ", in which NCCL connects them, is recorded"));
    has_called_ = true;
  }
  {
    absl::MutexLock lock(&owner_.mutex());
    TACC_RETURN_IF_ERROR(Talk().CheckConnected());
    const ncclResult_t result = call(communicator_, stream_.stream());
    if (result != ncclSuccess && result != ncclInProgress) return Talk().Error(result, what);
  }
  // At first it connects the ranks; only then it is queued, and what follows may be.
  return Talk().WaitUntilReady(what);
}

absl::Status NcclGroup::AllGather(const void* send, void* receive, int64_t bytes, int64_t rows) {
  const auto n = static_cast<int64_t>(ranks_.size());
  return Queue("all-gather", [&](ncclComm_t communicator, cudaStream_t stream) {
    return InOneLaunch(rows, [&](int64_t row) {
      return ncclAllGather(static_cast<const char*>(send) + row * bytes, static_cast<char*>(receive) + row * n * bytes,
                           static_cast<size_t>(bytes), ncclUint8, communicator, stream);
    });
  });
}

absl::Status NcclGroup::ReduceScatter(const void* send, void* receive, int64_t elements, kernels::DType dtype,
                                      int64_t rows) {
  TACC_ASSIGN_OR_RETURN(const ncclDataType_t type, NcclType(dtype));
  const int64_t n = static_cast<int64_t>(ranks_.size()), bytes = elements * kernels::SizeOf(dtype);
  return Queue("reduce-scatter", [&](ncclComm_t communicator, cudaStream_t stream) {
    return InOneLaunch(rows, [&](int64_t row) {
      return ncclReduceScatter(static_cast<const char*>(send) + row * n * bytes,
                               static_cast<char*>(receive) + row * bytes, static_cast<size_t>(elements), type, ncclSum,
                               communicator, stream);
    });
  });
}

absl::Status NcclGroup::AllReduce(const void* send, void* receive, int64_t elements, kernels::DType dtype) {
  TACC_ASSIGN_OR_RETURN(const ncclDataType_t type, NcclType(dtype));
  return Queue("all-reduce", [&](ncclComm_t communicator, cudaStream_t stream) {
    return ncclAllReduce(send, receive, static_cast<size_t>(elements), type, ncclSum, communicator, stream);
  });
}

}  // namespace tacc::worker
