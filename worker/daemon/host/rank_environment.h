// The environment variables that tacc-rank's libraries read.
#ifndef TACC_WORKER_DAEMON_HOST_RANK_ENVIRONMENT_H_
#define TACC_WORKER_DAEMON_HOST_RANK_ENVIRONMENT_H_

#include <cstdlib>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace tacc::worker {

// How often a thread of libgomp, which comes with LibTorch, looks for work before it sleeps: some microseconds. Its own
// 300,000 are a millisecond and more, in which it keeps a processor from those who have something to do: beside three
// busy processes on two processors a rank of two threads trained 151 tokens/s with them and 513 with these
// (bench/results.md, 2026-11-22).
inline constexpr char kSpinCount[] = "1000";

// Returns what a rank of `num_threads` threads gets on top of the daemon's environment: every thread pool of its
// libraries has that size, and waits as said above where the daemon's environment does not say how.
inline std::map<std::string, std::string> RankEnvironment(int num_threads) {
  const std::string threads = absl::StrCat(num_threads);
  std::map<std::string, std::string> variables = {
      {"OMP_NUM_THREADS", threads}, {"MKL_NUM_THREADS", threads}, {"OPENBLAS_NUM_THREADS", threads}};
  if (std::getenv("OMP_WAIT_POLICY") == nullptr && std::getenv("GOMP_SPINCOUNT") == nullptr)
    variables["GOMP_SPINCOUNT"] = kSpinCount;
  return variables;
}

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_HOST_RANK_ENVIRONMENT_H_
