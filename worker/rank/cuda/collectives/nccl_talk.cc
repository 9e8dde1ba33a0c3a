#include <exception>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/cuda/collectives/nccl_communication.h"

namespace tacc::worker {
namespace {

// NCCL takes tens of microseconds for a group, less than a sleep; what takes longer is slept for.
constexpr absl::Duration kSpin = absl::Microseconds(300);

// Memory that is used up is an error of CUDA to NCCL, which says no more of it.
std::string FreeMemoryText(ncclResult_t result) {
  size_t free = 0, total = 0;
  if (result != ncclUnhandledCudaError || cudaMemGetInfo(&free, &total) != cudaSuccess) return "";
  return absl::StrCat(", ", free, " of the GPU's ", total, " bytes are free");
}

}  // namespace

bool AreSeveralMachines(const Collectives& host) {
  for (int rank = 1; rank < host.world(); ++rank) {
    if (host.machine_of(rank) != host.machine_of(0)) return true;
  }
  return false;
}

absl::Status QueueOn(cudaStream_t stream, int gpu, const std::function<void()>& kernels) {
  const kernels::cuda::StreamScope scope(stream);
  try {
    kernels();
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("cuda:", gpu, ": ", error.what()));
  }
  return absl::OkStatus();
}

std::vector<int> NcclTalk::Peers() const {
  std::vector<int> peers;
  for (int rank : ranks) {
    if (rank != owner.rank()) peers.push_back(rank);
  }
  return peers;
}

absl::Status NcclTalk::Error(ncclResult_t result, const std::string& what) const {
  return absl::UnavailableError(absl::StrCat("rank ", owner.rank(), ", NCCL with ", RanksText(Peers()), ": ", what,
                                             ": ", ncclGetErrorString(result), " (", ncclGetLastError(communicator),
                                             FreeMemoryText(result),
                                             "); NCCL_DEBUG=WARN in the worker's environment says more"));
}

absl::Status NcclTalk::CheckConnected() const {
  if (communicator != nullptr) return absl::OkStatus();
  TACC_RETURN_IF_ERROR(owner.Check());
  return absl::InternalError(absl::StrCat("not connected to ", RanksText(Peers())));
}

absl::Status NcclTalk::Check() const {
  if (communicator == nullptr) return absl::OkStatus();
  ncclResult_t state = ncclSuccess;
  if (const ncclResult_t result = ncclCommGetAsyncError(communicator, &state); result != ncclSuccess)
    return Error(result, "watching");
  return state == ncclSuccess || state == ncclInProgress ? absl::OkStatus() : Error(state, "what was queued");
}

absl::Status NcclTalk::WaitUntilReady(const char* what) const {
  const absl::Duration timeout = owner.options().timeout;
  const absl::Time begin = absl::Now();
  while (true) {
    {
      absl::MutexLock lock(&owner.mutex());
      TACC_RETURN_IF_ERROR(CheckConnected());
      ncclResult_t state = ncclSuccess;
      if (const ncclResult_t result = ncclCommGetAsyncError(communicator, &state); result != ncclSuccess)
        return Error(result, what);
      if (state == ncclSuccess) return absl::OkStatus();
      if (state != ncclInProgress) return Error(state, what);
    }
    const absl::Duration waited = absl::Now() - begin;
    if (waited > timeout) {
      return absl::UnavailableError(absl::StrCat("no answer from ", RanksText(Peers()), " for ",
                                                 absl::FormatDuration(timeout), " in NCCL's ", what));
    }
    if (waited < kSpin) {
      std::this_thread::yield();
    } else {
      absl::SleepFor(kNcclPollInterval);
    }
  }
}

}  // namespace tacc::worker
