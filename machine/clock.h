// Clocks as numbers.
#ifndef MACHINE_CLOCK_H_
#define MACHINE_CLOCK_H_

#include <chrono>

namespace tacc {

// Seconds since some start; never jumps: for durations and time-outs.
inline double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds since the epoch: for people and logs.
inline double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace tacc

#endif  // MACHINE_CLOCK_H_
