// How a job that is followed is shown: lines of JSON, lines of text, or a progress line on a terminal.
#ifndef TACC_CLIENT_TACCCTL_SHOW_PROGRESS_H_
#define TACC_CLIENT_TACCCTL_SHOW_PROGRESS_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/types/optional.h"
#include "client/taccctl/session/context.h"
#include "tacc/v1/coordinator.pb.h"

namespace tacc::client {

class Progress {
 public:
  Progress(Context* context, OutputForm form, int64_t max_steps);
  // Clears the progress line.
  ~Progress();

  // Of a job whose steps were not known before it was planned; 0: still not known.
  void SetMaxSteps(int64_t max_steps) { max_steps_ = max_steps; }

  // One item of Watch. JSON: one line each. Text: events and evaluations as lines; steps in the progress line, or
  // without a terminal as a line at most every five seconds, and the last step.
  void Take(const v1::WatchResponse& item);

  // A remark for the person, on stderr.
  void Note(const std::string& text);

  // The job has ended: the last step is shown, without an ETA, and the progress line is left behind.
  void Finish();

 private:
  using Clock = std::chrono::steady_clock;

  void TakeStep(const v1::StepMetrics& step);
  // What does not fit in `width` characters is left out, the least needed first; step, loss and ETA stay.
  std::string StepText(size_t width = std::string::npos) const;
  void Draw();
  void Clear();

  Context* context_;
  const OutputForm form_;
  int64_t max_steps_;
  absl::optional<v1::StepMetrics> step_;
  absl::optional<double> eval_loss_;
  // Smoothed seconds of a step, 0 before the first.
  double step_seconds_ = 0;
  bool drawn_ = false;
  bool step_printed_ = true;
  bool has_ended_ = false;
  absl::optional<Clock::time_point> last_shown_;
};

// One line about an event: time and message.
std::string EventText(const v1::JobEvent& event);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_SHOW_PROGRESS_H_
