// The clock for leases and time-outs.
#ifndef WORKER_DAEMON_STEADY_CLOCK_H_
#define WORKER_DAEMON_STEADY_CLOCK_H_

#include <chrono>

namespace tacc::worker {

// Seconds since some start; never jumps.
inline double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds since the epoch.
inline double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace tacc::worker

#endif  // WORKER_DAEMON_STEADY_CLOCK_H_
