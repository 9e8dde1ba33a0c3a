// The environment variables that tacc-rank's libraries read.
#ifndef WORKER_DAEMON_RANK_ENVIRONMENT_H_
#define WORKER_DAEMON_RANK_ENVIRONMENT_H_

#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace tacc::worker {

// Returns what a rank of `num_threads` threads gets on top of the daemon's environment: every thread pool of its
// libraries has that size.
inline std::map<std::string, std::string> RankEnvironment(int num_threads) {
  const std::string threads = absl::StrCat(num_threads);
  return {{"OMP_NUM_THREADS", threads}, {"MKL_NUM_THREADS", threads}, {"OPENBLAS_NUM_THREADS", threads}};
}

}  // namespace tacc::worker

#endif  // WORKER_DAEMON_RANK_ENVIRONMENT_H_
