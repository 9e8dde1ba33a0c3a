#include "worker/data/target_entropy.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "worker/data/loader.h"

namespace tacc::worker {
namespace {

// Nats for each target of an id that did not come. Of ids with frequencies as Zipf's law has them (50,000 and 150,000,
// exponents 1 to 1.2) what is missing of the entropy after Miller's correction is at most 2.5 times the share of such
// targets, whatever part is looked at.
constexpr double kNatsOfUnseen = 3;

}  // namespace

void TokenCounts::Add(absl::Span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    if (token < 0) continue;
    if (token >= static_cast<int64_t>(counts_.size())) counts_.resize(token + 1);
    ++counts_[token];
    ++num_tokens_;
  }
}

int64_t TokenCounts::num_ids() const {
  return std::count_if(counts_.begin(), counts_.end(), [](int64_t count) { return count > 0; });
}

int64_t TokenCounts::num_single_ids() const { return std::count(counts_.begin(), counts_.end(), 1); }

double TokenCounts::Entropy() const {
  double entropy = 0;
  for (const int64_t count : counts_) {
    if (count == 0) continue;
    const double probability = static_cast<double>(count) / static_cast<double>(num_tokens_);
    entropy -= probability * std::log(probability);
  }
  return entropy;
}

absl::StatusOr<double> TargetEntropy(const Dataset& dataset, int64_t seq_len, uint64_t seed, int64_t max_tokens,
                                     int64_t max_samples) {
  LoaderOptions options;
  options.seq_len = seq_len;
  options.global_batch_size = options.last_row = 1;
  options.seed = seed;
  const absl::StatusOr<BatchReader> reader = BatchReader::Create(&dataset, options);
  if (!reader.ok()) return reader.status();
  std::vector<int32_t> tokens(seq_len), targets(seq_len);
  TokenCounts counts;
  const int64_t num_samples =
      std::min({reader->num_samples(), max_samples, std::max<int64_t>(1, max_tokens / seq_len)});
  for (int64_t i = 0; i < num_samples; ++i) {
    if (const auto read = reader->Read(i, tokens.data(), targets.data()); !read.ok()) return read.status();
    counts.Add(targets);
  }
  if (counts.num_tokens() == 0) return absl::NotFoundError(absl::StrCat(dataset.dir(), ": no targets"));
  if (num_samples == reader->num_samples()) return counts.Entropy();
  const double num_targets = static_cast<double>(counts.num_tokens());
  // Source: Good 1953, "The population frequencies of species and the estimation of population parameters".
  const double unseen = static_cast<double>(counts.num_single_ids()) / num_targets;
  return counts.Entropy() + static_cast<double>(counts.num_ids() - 1) / (2 * num_targets) + kNatsOfUnseen * unseen;
}

}  // namespace tacc::worker
