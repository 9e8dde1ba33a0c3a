// The ranks' common choice of who computes attention.
#ifndef TACC_WORKER_RANK_TUNING_ATTENTION_CHOICE_H_
#define TACC_WORKER_RANK_TUNING_ATTENTION_CHOICE_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/device/measured_attention.h"

namespace tacc::worker {

// By shape, the backend that an earlier attempt of the job took.
using EarlierAttention = std::map<std::string, std::string>;

// Which of the backends that work is taken.
enum class AttentionOrder {
  kFastest,  // forward and backward together, of the slowest rank
  kFixed,    // the last of the timings: times decide nothing
};

// How to choose; the same on every rank.
struct AttentionRule {
  AttentionOrder order = AttentionOrder::kFastest;
  EarlierAttention earlier;
  std::string wanted;  // A backend that goes before all that, of every shape; empty: none.
};

// Which backend computes attention of each shape that any rank has, by shape; the same on every rank, and all call it.
// `mine`: as this rank's device measured it (worker/rank/device/device.h). Of the ranks that have a shape the slowest's
// times count, and what one of them refuses none takes; where the rule names a backend that works, it is taken. Every
// result names a backend: plain cores ("tiles") where no other works. Unavailable when a rank does not answer.
absl::StatusOr<std::vector<AttentionChoice>> AgreeOnAttention(Collectives& collectives,
                                                              const std::vector<AttentionChoice>& mine,
                                                              const AttentionRule& rule);

// What people must know of that, a line each: backends that should have worked and did not, and that `wanted` (of the
// rule) is not what computes a shape.
std::vector<std::string> AttentionWarnings(const std::vector<AttentionChoice>& choices, const std::string& wanted);

// `attention` of the event `ready` (docs/contracts.md).
nlohmann::json AttentionJson(const std::vector<AttentionChoice>& choices);

// For logs, a line: "attention bf16[...] ...: cudnn (tiles forward 9.100 ms, backward 30.000 ms; flash refused: ...)".
std::string InWords(const AttentionChoice& choice);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TUNING_ATTENTION_CHOICE_H_
