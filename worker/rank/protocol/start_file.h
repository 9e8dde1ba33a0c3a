#ifndef TACC_WORKER_RANK_PROTOCOL_START_FILE_H_
#define TACC_WORKER_RANK_PROTOCOL_START_FILE_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/device/measured_products.h"

namespace tacc::worker {

// What one rank of one attempt is to do: the start file of docs/contracts.md, field by field.
struct StartFile {
  enum class Weights { kPretrained, kRandom };

  std::string version;
  std::string job;
  int64_t attempt = 1;
  int rank = 0;
  int world = 1;
  std::string device;
  int threads = 1;
  int64_t memory_bytes = 0;
  std::string advertise;
  std::string program;    // Path.
  std::string model_dir;  // Empty: none.
  Weights weights = Weights::kRandom;
  uint64_t seed = 0;

  std::string data_path;
  std::string eval_path;  // Empty: no evaluation.
  int64_t seq_len = 0;
  int64_t global_batch_size = 0;

  int64_t max_steps = 0;
  int64_t eval_steps = 0;           // 0: at the end only.
  int64_t stop_if_stuck_steps = 0;  // 0: never.
  int64_t max_eval_batches = 0;     // Of global_batch_size samples; 0: all of the data.

  // For the device. CPU kernels are deterministic as they are.
  bool deterministic = false;  // No algorithm whose order of sums varies.
  bool tf32 = false;           // Products of f32 may use TF32.

  // Who computed attention in the attempt before, by shape (worker/rank/tuning/attention_choice.h).
  std::map<std::string, std::string> attention;
  EarlierProducts products;  // By which algorithms it multiplied.

  std::string checkpoint_dir;
  bool checkpoint_claimed = false;  // A daemon has put its owner file there (worker/checkpoint/checkpoint_name.h).
  std::string service;              // Whose job it has claimed it for; empty: nobody asks.
  int64_t save_steps = 0;           // 0: at the end only.
  std::string resume;               // A checkpoint's name in checkpoint_dir, an absolute path, or empty.
  std::string export_dir;           // Empty: none.

  std::string trace_path;       // Empty: none.
  std::string predicted_trace;  // The text to write beside it; empty: none.
  int64_t trace_step = 3;       // Which one, counted from this start: the first in which everything is warm.

  // What the job's plan says of a step: the model's FLOPs, and what all ranks together could do. 0: not known.
  double flops_per_step = 0;
  double peak_flops_per_second = 0;
  std::string run = "{}";  // These and what else the page at the end of the run says, as a JSON object.

  std::string identity = "{}";  // JSON object, goes into each manifest as it is.
  double collective_timeout_seconds = 300;
};

// InvalidArgument: the file cannot be read, is not JSON, lacks a field or has one of another type or out of range; path
// and field are named.
absl::StatusOr<StartFile> ReadStartFile(const std::string& path);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROTOCOL_START_FILE_H_
