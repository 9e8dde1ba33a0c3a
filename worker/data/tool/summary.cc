#include "worker/data/tool/summary.h"

#include <algorithm>
#include <vector>

#include "absl/types/span.h"
#include "worker/data/target_entropy.h"

namespace tacc::worker {

namespace {

absl::StatusOr<double> UnigramEntropy(const Dataset& dataset) {
  TokenCounts counts;
  std::vector<int32_t> tokens(1 << 16);
  const int64_t total = dataset.info().num_tokens;
  for (int64_t first = 0; first < total;) {
    const int64_t count = std::min<int64_t>(total - first, static_cast<int64_t>(tokens.size()));
    if (absl::Status read = dataset.ReadTokens(first, count, tokens.data()); !read.ok()) return read;
    counts.Add(absl::MakeConstSpan(tokens).first(count));
    first += count;
  }
  return counts.Entropy();
}

}  // namespace

absl::StatusOr<nlohmann::ordered_json> Summarize(const Dataset& dataset) {
  const absl::StatusOr<double> entropy = UnigramEntropy(dataset);
  if (!entropy.ok()) return entropy.status();
  const DatasetInfo& info = dataset.info();
  int64_t num_bytes = 0;
  for (const ShardInfo& shard : info.shards) num_bytes += shard.num_bytes;
  return nlohmann::ordered_json{{"path", dataset.dir()},
                                {"num_tokens", info.num_tokens},
                                {"num_documents", info.num_documents},
                                {"num_shards", info.shards.size()},
                                {"num_bytes", num_bytes},
                                {"seq_len", info.seq_len},
                                {"num_samples", info.seq_len > 0 ? dataset.NumSamples(info.seq_len) : 0},
                                {"vocab_size", info.vocab_size},
                                {"max_token_id", info.max_token_id},
                                {"eos_token", info.eos_token},
                                {"eos_token_id", info.eos_token_id},
                                {"tokenizer_fingerprint", info.tokenizer_fingerprint},
                                {"fingerprint", info.fingerprint},
                                {"unigram_entropy_nats", *entropy}};
}

}  // namespace tacc::worker
