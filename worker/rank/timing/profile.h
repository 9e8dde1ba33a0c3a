#ifndef TACC_WORKER_RANK_TIMING_PROFILE_H_
#define TACC_WORKER_RANK_TIMING_PROFILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/ir/program.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/device/host_workspace.h"
#include "worker/rank/program/step_timer.h"

namespace tacc::worker {

// Where the time of many steps and evaluations went: seconds in the nodes of one op and module.
class Profile {
 public:
  struct Entry {
    std::string op;
    std::string module;
    int64_t count = 0;  // of calls; a GPU does several nodes in one
    double seconds = 0;
  };

  void Add(const graph::Program& program, const StepTimes& times);
  // By seconds, most first.
  std::vector<Entry> Entries() const;
  // Writes it as JSON, with what the collectives did and what LibTorch allocated; `workspace` may be null.
  void Write(const std::string& path, const CollectiveStats& collectives, const graph::Program& program,
             const HostWorkspace* workspace) const;

 private:
  std::map<std::pair<std::string, std::string>, Entry> entries_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TIMING_PROFILE_H_
