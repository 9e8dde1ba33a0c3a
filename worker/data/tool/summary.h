// What is in a data folder.
#ifndef WORKER_DATA_TOOL_SUMMARY_H_
#define WORKER_DATA_TOOL_SUMMARY_H_

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/data/shards.h"

namespace tacc::worker {

// Entropy in nats of the distribution of single token ids: the loss of a model that knows only how frequent each token
// is. Reads every token. DataLoss as Dataset::ReadTokens; 0 for an empty stream.
absl::StatusOr<double> UnigramEntropy(const Dataset& dataset);

// The facts of the index and the unigram entropy.
absl::StatusOr<nlohmann::ordered_json> Summarize(const Dataset& dataset);

}  // namespace tacc::worker

#endif  // WORKER_DATA_TOOL_SUMMARY_H_
