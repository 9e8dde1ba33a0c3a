// One line of a rank's stdout, as in docs/contracts.md, made a value.
#ifndef TACC_COORDINATOR_CORE_RANK_EVENT_H_
#define TACC_COORDINATOR_CORE_RANK_EVENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tacc/v1/coordinator.pb.h"

namespace tacc::coordinator {

// Codes of ranks' ends and warnings that the core looks at (docs/contracts.md).
// Of a rank that was to stop and could not save where it stopped.
inline constexpr char kCheckpointCode[] = "checkpoint";
// Of ranks whose process could not be started.
inline constexpr char kStartCode[] = "start";
// Of ranks that could not read or write files which may come back.
inline constexpr char kUnavailableCode[] = "unavailable";
// Of ranks that found the checkpoint damaged which they were to begin with: a warning's code, and that of the failure.
inline constexpr char kDamagedCode[] = "checkpoint_damaged";
// Of a rank that could not write its part of a checkpoint, or all of it.
inline constexpr char kNotSavedCode[] = "checkpoint_failed";

struct RankEvent {
  std::string event;  // "started", "listening", ...
  double time = 0;
  int64_t step = 0;
  int port = 0;              // listening
  std::string file;          // listening
  std::string secret;        // listening
  std::string resumed_from;  // ready
  int64_t device_memory_used_bytes = 0;
  int64_t arena_bytes = 0;                     // ready
  double load_seconds = 0;                     // ready
  std::vector<v1::AttentionChoice> attention;  // ready
  std::vector<v1::ProductChoice> products;     // ready
  v1::RankEndpoint endpoint;                   // ready
  std::string code;                            // warning, failed
  std::string message;                         // warning, failed, log, stopped
  std::string path;                            // checkpoint, exported, report, trace
  v1::StepMetrics metrics;                     // step
  v1::EvalMetrics eval;                        // eval
  v1::Checkpoint checkpoint;                   // checkpoint
};

// InvalidArgument: not a JSON object with `event`, a number that is not one, or a field of the event missing.
absl::StatusOr<RankEvent> ParseRankEvent(const std::string& line);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_CORE_RANK_EVENT_H_
