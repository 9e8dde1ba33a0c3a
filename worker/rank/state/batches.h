// Batches of training and held-out data, as a program's inputs.
#ifndef TACC_WORKER_RANK_STATE_BATCHES_H_
#define TACC_WORKER_RANK_STATE_BATCHES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/ir/program.h"
#include "worker/data/loader.h"
#include "worker/data/shards.h"
#include "worker/rank/program/executor.h"

namespace tacc::worker {

// The batches of one rank, as the inputs that its program asks for. Legend: Bg logical rows of the program's "tokens"
// (all ranks, one micro-batch), B global_batch_size, S seq_len.
//
// Micro-batch m covers the rows [m*Bg, (m+1)*Bg) of the global batch; of those the rank takes the range that the
// sharding of dim 0 of "tokens" gives it, and of each row the positions that dim 1 and the program's order of the
// sequence give it. A stage of a pipeline without tokens goes by its targets, else by the numbers of its samples, or
// reads no rows. Inputs: tokens, targets and document_start i32[rows,positions], sample i64[rows] (row in the global
// batch, -1: padding), step i64[] (updates done).
struct BatchOptions {
  const graph::Program* program = nullptr;
  int64_t rank = 0;
  int64_t num_micro_batches = 1;
  const std::vector<Executor::Input>* inputs = nullptr;  // Must outlive the object.
  int64_t seq_len = 0;
  int64_t global_batch_size = 0;
  uint64_t seed = 0;
};

// What one rank holds of one micro-batch.
struct BatchColumns {
  std::vector<int32_t> tokens, targets, document_starts;
  std::vector<int64_t> samples;
};

// Training batches, read ahead.
class TrainBatches {
 public:
  // Starts with the batch after `first_step` updates. `dataset` must outlive the object. InvalidArgument: the program's
  // inputs do not fit sizes of the job, both named; too little data.
  static absl::StatusOr<std::unique_ptr<TrainBatches>> Create(const BatchOptions& options, const Dataset* dataset,
                                                              int64_t first_step);

  // Takes the next batch. What inputs() gave before is overwritten.
  absl::Status Next();

  // [micro-batch][input].
  const std::vector<std::vector<const void*>>& inputs() const { return inputs_; }
  // Of the batch: the sum over ranks is the hash of the global batch. Ranks that hold copies of others' rows give 0.
  uint64_t hash() const { return hash_; }

 private:
  struct MicroBatch {
    std::unique_ptr<Loader> loader;
    BatchColumns columns;
  };

  TrainBatches() = default;

  std::vector<MicroBatch> micro_batches_;  // None on a stage that takes no rows.
  std::vector<int64_t> positions_;         // Of each row; empty: all, in order.
  BatchColumns whole_;                     // Rows that are cut.
  int64_t seq_len_ = 0;
  std::vector<std::vector<const void*>> inputs_;
  int64_t step_ = 0;  // The input: updates done before the batch taken last.
  int64_t next_step_ = 0;
  bool counts_for_hash_ = true;
  uint64_t hash_ = 0;
};

// Held-out batches, in order, each sample once; the last batch is padded with rows whose sample and targets are -1.
class EvalBatches {
 public:
  // Of the first `max_samples` samples of the data; 0: all.
  static absl::StatusOr<std::unique_ptr<EvalBatches>> Create(const BatchOptions& options, const Dataset* dataset,
                                                             int64_t max_samples);

  int64_t num_batches() const { return reader_.NumBatches(); }
  // Reads batch `index`; valid until the next Read.
  absl::StatusOr<const std::vector<const void*>*> Read(int64_t index);

 private:
  explicit EvalBatches(BatchReader reader) : reader_(std::move(reader)) {}

  BatchReader reader_;
  std::vector<int64_t> positions_;
  BatchColumns columns_, whole_;
  int64_t step_ = 0;
  std::vector<const void*> inputs_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_STATE_BATCHES_H_
