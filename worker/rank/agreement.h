#ifndef TACC_WORKER_RANK_AGREEMENT_H_
#define TACC_WORKER_RANK_AGREEMENT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/collectives.h"

namespace tacc::worker {

// Tells all ranks how it went on each; all call it. OK when it went well everywhere, else the same error on every rank:
// that of the first rank that failed, named, so that whichever is read first says why, with its failure code.
// Unavailable when a rank does not answer.
absl::Status AgreeOnStatus(Collectives& collectives, const absl::Status& mine);

// Rank r's text in [r], on every rank; all call it. Unavailable when a rank does not answer.
absl::StatusOr<std::vector<std::string>> GatherTexts(Collectives& collectives, const std::string& mine);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_AGREEMENT_H_
