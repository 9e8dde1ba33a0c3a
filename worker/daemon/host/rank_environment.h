// The environment of tacc-rank.
#ifndef TACC_WORKER_DAEMON_HOST_RANK_ENVIRONMENT_H_
#define TACC_WORKER_DAEMON_HOST_RANK_ENVIRONMENT_H_

#include <cstdlib>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace tacc::worker {

// How often a thread of libgomp, which comes with LibTorch, looks for work before it sleeps: some microseconds. Its own
// 300,000 are a millisecond and more, in which it keeps a processor from those who have something to do: beside three
// busy processes on two processors a rank of two threads trained 151 tokens/s with them and 513 with these
// (bench/results.md, 2026-11-22).
inline constexpr char kSpinCount[] = "1000";

// Whether a rank gets this variable of the daemon's environment: what its libraries and its devices read. Secrets of
// whoever runs the daemon are none of a job's.
inline bool RankInherits(absl::string_view name) {
  for (const absl::string_view whole : {"PATH", "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
                                        "GLIBC_TUNABLES", "TACC_CPU_ISA", "TACC_FAILPOINTS"}) {
    if (name == whole) return true;
  }
  for (const absl::string_view prefix : {"LC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_", "TORCH_",
                                         "GLOO_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NCCL_"}) {
    if (absl::StartsWith(name, prefix)) return true;
  }
  return false;
}

// Returns what a rank of `num_threads` threads gets on top of what it inherits: every thread pool of its
// libraries has that size, and waits as said above where the daemon's environment does not say how.
inline std::map<std::string, std::string> RankEnvironment(int num_threads) {
  const std::string threads = absl::StrCat(num_threads);
  std::map<std::string, std::string> variables = {
      {"OMP_NUM_THREADS", threads}, {"MKL_NUM_THREADS", threads}, {"OPENBLAS_NUM_THREADS", threads}};
  if (std::getenv("OMP_WAIT_POLICY") == nullptr && std::getenv("GOMP_SPINCOUNT") == nullptr)
    variables["GOMP_SPINCOUNT"] = kSpinCount;
  return variables;
}

// Beside that, for ranks that others reach at the network interface of this name (empty: not known): NCCL uses it and
// no other, unless the daemon's environment says which.
inline std::map<std::string, std::string> NetworkEnvironment(const std::string& interface) {
  if (interface.empty() || std::getenv("NCCL_SOCKET_IFNAME") != nullptr) return {};
  return {{"NCCL_SOCKET_IFNAME", absl::StrCat("=", interface)}};  // "eth1" alone would be eth10 as well.
}

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_HOST_RANK_ENVIRONMENT_H_
