// What is in a data folder.
#ifndef TACC_WORKER_DATA_TOOL_SUMMARY_H_
#define TACC_WORKER_DATA_TOOL_SUMMARY_H_

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/data/shards.h"

namespace tacc::worker {

// The facts of the index, and the entropy in nats of the distribution of single token ids: the loss of a model that
// knows only how frequent each token is. Reads every token. DataLoss as Dataset::ReadTokens.
absl::StatusOr<nlohmann::ordered_json> Summarize(const Dataset& dataset);

}  // namespace tacc::worker

#endif  // TACC_WORKER_DATA_TOOL_SUMMARY_H_
