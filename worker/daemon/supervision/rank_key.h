// Names a rank process: one rank of one attempt of a job.
#ifndef TACC_WORKER_DAEMON_SUPERVISION_RANK_KEY_H_
#define TACC_WORKER_DAEMON_SUPERVISION_RANK_KEY_H_

#include <cstdint>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace tacc::worker {

struct RankKey {
  std::string job;
  int32_t attempt = 0;
  int32_t rank = 0;

  friend bool operator==(const RankKey& a, const RankKey& b) {
    return a.job == b.job && a.attempt == b.attempt && a.rank == b.rank;
  }
  friend bool operator<(const RankKey& a, const RankKey& b) {
    return std::tie(a.job, a.attempt, a.rank) < std::tie(b.job, b.attempt, b.rank);
  }
  std::string Text() const { return absl::StrCat("job ", job, " attempt ", attempt, " rank ", rank); }
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_SUPERVISION_RANK_KEY_H_
