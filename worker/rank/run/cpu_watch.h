#ifndef TACC_WORKER_RANK_RUN_CPU_WATCH_H_
#define TACC_WORKER_RANK_RUN_CPU_WATCH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace tacc::worker {

// Notices that others use a rank's processors: threads of its process have work and do not run. One that waits holds up
// all of its rank, and its rank all others, so the thread that waits longest counts.
class CpuWatch {
 public:
  // Time is looked at in pieces of at least kWindowSeconds. Of a rank's own threads, what is written or read beside a
  // step takes far less of one than kMostShare.
  static constexpr double kWindowSeconds = 30, kMostShare = 0.25;

  // Gives the seconds in which each thread, by its id, has waited until now (ThreadWaitSeconds).
  using Read = std::function<std::map<int, double>()>;
  explicit CpuWatch(Read read) : read_(std::move(read)) {}

  // Between two steps. The share (0 to 1) of the last whole window in which the thread that waited longest did so, of
  // those that lived through it; 0 while there is none. Takes a reading where a window begins or ends; none while
  // `is_saving`: the window under way does not count, and the next begins after.
  double Take(double steady_seconds, bool is_saving = false);
  // What is under way does not count: the rank itself uses more processors than its own, to write a checkpoint.
  void BeginAnew() { begin_.reset(); }

  // What to warn of; empty where it is nothing to speak of.
  static std::string Warning(int64_t rank, double share);

 private:
  struct Reading {
    double steady_seconds;
    std::map<int, double> waits;
  };

  const Read read_;
  std::optional<Reading> begin_;  // Of the window under way.
  double share_ = 0;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_RUN_CPU_WATCH_H_
