// How much the frequencies of single tokens say.
#ifndef TACC_WORKER_DATA_TARGET_ENTROPY_H_
#define TACC_WORKER_DATA_TARGET_ENTROPY_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/data/shards.h"

namespace tacc::worker {

// Counts token ids.
class TokenCounts {
 public:
  // Of negative ones, as a target that is ignored has, none is counted.
  void Add(absl::Span<const int32_t> tokens);

  int64_t num_tokens() const { return num_tokens_; }
  // Different ids.
  int64_t num_ids() const;
  // Of those, the ones that came once.
  int64_t num_single_ids() const;
  // Of the distribution of the ids, in nats: the least loss of a model that knows only how frequent each token is. 0
  // where there is no token.
  double Entropy() const;

 private:
  std::vector<int64_t> counts_;  // By id.
  int64_t num_tokens_ = 0;
};

// The entropy of the targets that a job is trained on: those of `max_tokens` tokens of the data (in whole samples, at
// least one and up to `max_samples`, each read from another place), taken as the seed orders them, of all where there
// are fewer. What a part of the data lacks for being one is added (Source: Miller 1955, "Note on the bias of
// information estimates"), and what the ids that did not come may lack beyond, so that it is rather too high than too
// low. NotFound when none of them is a target; otherwise as BatchReader::Read.
absl::StatusOr<double> TargetEntropy(const Dataset& dataset, int64_t seq_len, uint64_t seed, int64_t max_tokens,
                                     int64_t max_samples);

}  // namespace tacc::worker

#endif  // TACC_WORKER_DATA_TARGET_ENTROPY_H_
