// Whether prepared data suits a job.
#ifndef TACC_WORKER_DATA_TOOL_CHECK_H_
#define TACC_WORKER_DATA_TOOL_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "worker/data/shards.h"

namespace tacc::worker {

struct CheckRequest {
  enum class Depth { kIndex, kEveryByte };

  std::string data;                   // The folder of the training data.
  std::string eval;                   // Of the held-out data; empty: none.
  int64_t seq_len = 0;                // 0: the length that the data was prepared with, at most the model's.
  int64_t global_batch_size = 0;      // 0: not known.
  int64_t vocab_size = 0;             // The model's; 0: that of `model`, if any.
  std::string model;                  // A model's folder; empty: none. Its tokenizer must be the data's.
  std::string tokenizer_fingerprint;  // Wanted; empty: any.
  Depth depth = Depth::kIndex;        // kEveryByte also compares the checksum of every shard.
};

struct CheckResult {
  std::vector<std::string> problems;  // Each one line: what, where, and what to do. Empty: the data suits the job.
  // vocab_size, seq_len, num_tokens, num_samples, eval_tokens, fingerprint; meaningful when there is no problem.
  nlohmann::ordered_json summary;
};

CheckResult CheckData(const CheckRequest& request);

}  // namespace tacc::worker

#endif  // TACC_WORKER_DATA_TOOL_CHECK_H_
