// Batches of a job, for one rank. Legend: B global_batch_size, R rows of this rank, S seq_len.
//
// Row k of the batch after `step` updates (0: the first batch) is sample SampleOrder(step * B + k), or, in sequential
// order (evaluation), sample step * B + k. tokens[i] = stream[sample * S + i]; targets[i] = tokens[i + 1], shifted
// inside the row: the last target of a row is -1 (ignored), and so is one whose loss_mask is 0, or that is the first
// token of another document where documents are apart (column segment). document_starts[i] is the index in the row of
// the first token of token i's document; a row begins a document, and without the column is one. In sequential order a
// row past the last sample is padding: tokens 0, targets -1, document_starts 0.
#ifndef TACC_WORKER_DATA_LOADER_H_
#define TACC_WORKER_DATA_LOADER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/data/order.h"
#include "worker/data/shards.h"

namespace tacc::worker {

struct LoaderOptions {
  enum class Order { kShuffled, kSequential };

  int64_t seq_len = 0;
  int64_t global_batch_size = 0;
  // This rank's rows of the global batch: [first_row, last_row).
  int64_t first_row = 0;
  int64_t last_row = 0;
  Order order = Order::kShuffled;
  uint64_t seed = 0;        // Of the shuffled order.
  int64_t max_samples = 0;  // The first ones of the data only; 0: all.
};

struct BatchInfo {
  int64_t step = 0;           // Updates done before it.
  int64_t target_tokens = 0;  // Targets >= 0 in these rows.
  // Sum of RowHash over these rows, modulo 2^64: the sums of all ranks add up to the hash of the global batch, whatever
  // the layout. Padding rows count as 0.
  uint64_t hash = 0;
};

// Hash of the token ids of row k of a global batch.
uint64_t RowHash(int64_t row, const int32_t* tokens, int64_t num_tokens);

// 16 hex digits.
std::string HashText(uint64_t hash);

// Makes any batch on request, on the calling thread. Const methods may be called from any thread.
class BatchReader {
 public:
  // `dataset` must outlive the reader. InvalidArgument: sizes or rows that make no sense; less than one sample in the
  // data.
  static absl::StatusOr<BatchReader> Create(const Dataset* dataset, const LoaderOptions& options);

  // [R, S] each, written in full; document_starts may be null. DataLoss and OutOfRange as Dataset::ReadTokens.
  absl::StatusOr<BatchInfo> Read(int64_t step, int32_t* tokens, int32_t* targets,
                                 int32_t* document_starts = nullptr) const;

  // The sample at `row` of the global batch, or -1 for padding.
  int64_t Sample(int64_t step, int64_t row) const;

  int64_t num_samples() const { return order_.num_samples(); }
  // Batches that cover every sample once, the last one padded: the number of batches of an evaluation.
  int64_t NumBatches() const;
  int64_t num_rows() const { return options_.last_row - options_.first_row; }
  const LoaderOptions& options() const { return options_; }

 private:
  BatchReader(const Dataset* dataset, const LoaderOptions& options, int64_t num_samples)
      : dataset_(dataset), options_(options), order_(num_samples, options.seed) {}

  absl::Status ReadRow(int64_t sample, int32_t* tokens, int32_t* targets, int32_t* document_starts) const;

  const Dataset* dataset_;
  LoaderOptions options_;
  SampleOrder order_;
};

// Reads batches ahead on one thread of its own. All memory is taken at Create. One thread calls Next and Seek.
class Loader {
 public:
  // Starts reading at first_step (updates already done). `dataset` must outlive the loader.
  static absl::StatusOr<std::unique_ptr<Loader>> Create(const Dataset* dataset, const LoaderOptions& options,
                                                        int64_t first_step);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // Copies the next batch, [R, S] each; document_starts may be null. Waits when it is not read yet. An error is of this
  // batch; the next call tries the same batch again.
  absl::StatusOr<BatchInfo> Next(int32_t* tokens, int32_t* targets, int32_t* document_starts = nullptr);

  // The next batch will be the one after `step` updates.
  void Seek(int64_t step);

  const BatchReader& reader() const { return reader_; }

 private:
  static constexpr int kNumSlots = 3;  // Batches in memory: read ahead or being copied.

  struct Slot {
    std::vector<int32_t> tokens;
    std::vector<int32_t> targets;
    std::vector<int32_t> document_starts;
    int64_t step = 0;
    absl::StatusOr<BatchInfo> info = BatchInfo();
  };

  Loader(BatchReader reader, int64_t first_step);
  void ReadAhead();
  bool CanRead() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || !free_.empty(); }
  bool CanTake() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !ready_.empty(); }

  const BatchReader reader_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t next_step_ ABSL_GUARDED_BY(mutex_);       // To be read.
  int64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;  // Counts Seeks: a batch read for an older one is dropped.
  std::deque<Slot*> free_ ABSL_GUARDED_BY(mutex_);
  std::deque<Slot*> ready_ ABSL_GUARDED_BY(mutex_);
  std::vector<Slot> slots_;
  std::thread thread_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DATA_LOADER_H_
