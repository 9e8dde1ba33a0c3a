// Clocks as numbers.
#ifndef TACC_MACHINE_CLOCK_H_
#define TACC_MACHINE_CLOCK_H_

#include <algorithm>
#include <chrono>
#include <optional>

namespace tacc {

// Seconds since some start; never jumps: for durations and time-outs.
inline double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds since the epoch: for people and logs.
inline double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// A clock that stands still while its owner does: of the time between two ticks it counts at most
// `longest_tick_seconds`. What is measured with it is not blamed for a process that was stopped, a machine that was
// paused or a disk that took long. Takes and gives steady seconds.
class AwakeClock {
 public:
  explicit AwakeClock(double longest_tick_seconds) : longest_tick_seconds_(longest_tick_seconds) {}

  // The owner is awake at `steady`, and has done what was waiting for it since the tick before. Returns At(steady).
  double Tick(double steady) {
    awake_ = At(steady);
    last_tick_ = steady;
    return awake_;
  }
  // The time of the clock at `steady`, which is not before the last tick.
  double At(double steady) const {
    return last_tick_.has_value() ? awake_ + std::min(steady - *last_tick_, longest_tick_seconds_) : steady;
  }

 private:
  const double longest_tick_seconds_;
  double awake_ = 0;
  std::optional<double> last_tick_;
};

}  // namespace tacc

#endif  // TACC_MACHINE_CLOCK_H_
