#ifndef TACC_WORKER_RANK_COLLECTIVES_AGREEMENT_H_
#define TACC_WORKER_RANK_COLLECTIVES_AGREEMENT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/collectives/collectives.h"

namespace tacc::worker {

// Tells all ranks how it went on each; all call it. OK when it went well everywhere, else the same error on every rank:
// that of the first rank that failed, named, so that whichever is read first says why, with its failure code.
// Unavailable when a rank does not answer.
absl::Status AgreeOnStatus(Collectives& collectives, const absl::Status& mine);

// Rank r's text in [r], on every rank; all call it. Unavailable when a rank does not answer.
absl::StatusOr<std::vector<std::string>> GatherTexts(Collectives& collectives, const std::string& mine);

// values[i] of the rank that has the largest in [i], on every rank; all call it, with as many values. A rank sends and
// receives twice that, however many ranks there are. Unavailable when a rank does not answer.
absl::StatusOr<std::vector<uint64_t>> GatherLargest(Collectives& collectives, std::vector<uint64_t> values);

// What one rank or several say alike.
struct SharedText {
  std::string text;
  int first_rank = 0;
  int num_ranks = 0;
};
// Each text that any rank has, on every rank, by the first rank that has it; all call it. For texts that most ranks
// share: a rank sends and receives two words for each rank, and each different text twice. Unavailable when a rank does
// not answer.
absl::StatusOr<std::vector<SharedText>> GatherSharedTexts(Collectives& collectives, const std::string& mine);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_COLLECTIVES_AGREEMENT_H_
