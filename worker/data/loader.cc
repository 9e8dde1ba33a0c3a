#include "worker/data/loader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tacc::worker {

uint64_t RowHash(int64_t row, const int32_t* tokens, int64_t num_tokens) {
  uint64_t hash = MixBits(static_cast<uint64_t>(row) + 1);
  for (int64_t i = 0; i < num_tokens; ++i) hash = (hash ^ static_cast<uint32_t>(tokens[i])) * 0x9e3779b97f4a7c15u;
  return MixBits(hash);
}

std::string HashText(uint64_t hash) { return absl::StrFormat("%016x", hash); }

absl::StatusOr<BatchReader> BatchReader::Create(const Dataset* dataset, const LoaderOptions& options) {
  if (options.seq_len < 1)
    return absl::InvalidArgumentError(absl::StrCat("seq_len = ", options.seq_len, "; it must be at least 1"));
  if (options.first_row < 0 || options.last_row < options.first_row || options.last_row > options.global_batch_size) {
    return absl::InvalidArgumentError(absl::StrCat("rows [", options.first_row, ", ", options.last_row,
                                                   ") are not in a global batch of ", options.global_batch_size,
                                                   " samples"));
  }
  const int64_t num_samples = dataset->NumSamples(options.seq_len);
  if (num_samples < 1) {
    return absl::InvalidArgumentError(absl::StrCat(dataset->dir(), ": too little data: ", dataset->info().num_tokens,
                                                   " tokens do not fill one sample of seq_len = ", options.seq_len,
                                                   " tokens; prepare more text or lower seq_len"));
  }
  return BatchReader(dataset, options,
                     options.max_samples > 0 ? std::min(num_samples, options.max_samples) : num_samples);
}

int64_t BatchReader::Sample(int64_t step, int64_t row) const {
  const int64_t position = step * options_.global_batch_size + row;
  if (options_.order == LoaderOptions::Order::kShuffled) return order_.Sample(position);
  return position < order_.num_samples() ? position : -1;
}

int64_t BatchReader::NumBatches() const {
  return (order_.num_samples() + options_.global_batch_size - 1) / options_.global_batch_size;
}

absl::Status BatchReader::ReadRow(int64_t sample, int32_t* tokens, int32_t* targets, int32_t* document_starts) const {
  const int64_t length = options_.seq_len;
  if (absl::Status read = dataset_->ReadTokens(sample * length, length, tokens); !read.ok()) return read;
  std::memcpy(targets, tokens + 1, (length - 1) * sizeof(int32_t));
  targets[length - 1] = -1;
  if (document_starts != nullptr) std::fill_n(document_starts, length, 0);
  uint8_t bytes[4096];
  for (int64_t first = 1; dataset_->has_loss_mask() && first < length; first += sizeof(bytes)) {
    const int64_t count = std::min<int64_t>(sizeof(bytes), length - first);
    if (absl::Status read = dataset_->ReadLossMask(sample * length + first, count, bytes); !read.ok()) return read;
    for (int64_t i = 0; i < count; ++i) {
      if (bytes[i] == 0) targets[first + i - 1] = -1;
    }
  }
  int32_t start = 0;
  uint8_t segment = 0;
  for (int64_t first = 0; dataset_->has_segments() && first < length; first += sizeof(bytes)) {
    const int64_t count = std::min<int64_t>(sizeof(bytes), length - first);
    if (absl::Status read = dataset_->ReadSegments(sample * length + first, count, bytes); !read.ok()) return read;
    for (int64_t i = 0; i < count; ++i) {
      if (first + i > 0 && bytes[i] != segment) {
        start = static_cast<int32_t>(first + i);
        targets[start - 1] = -1;
      }
      segment = bytes[i];
      if (document_starts != nullptr) document_starts[first + i] = start;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<BatchInfo> BatchReader::Read(int64_t step, int32_t* tokens, int32_t* targets,
                                            int32_t* document_starts) const {
  const int64_t length = options_.seq_len;
  BatchInfo info;
  info.step = step;
  for (int64_t row = options_.first_row; row < options_.last_row; ++row, tokens += length, targets += length) {
    const int64_t sample = Sample(step, row);
    int32_t* starts = document_starts == nullptr ? nullptr : document_starts + (row - options_.first_row) * length;
    if (sample < 0) {
      std::fill_n(tokens, length, 0);
      std::fill_n(targets, length, -1);
      if (starts != nullptr) std::fill_n(starts, length, 0);
      continue;
    }
    if (absl::Status read = ReadRow(sample, tokens, targets, starts); !read.ok()) return read;
    info.hash += RowHash(row, tokens, length);
    info.target_tokens += std::count_if(targets, targets + length, [](int32_t target) { return target >= 0; });
  }
  return info;
}

absl::StatusOr<std::unique_ptr<Loader>> Loader::Create(const Dataset* dataset, const LoaderOptions& options,
                                                       int64_t first_step) {
  absl::StatusOr<BatchReader> reader = BatchReader::Create(dataset, options);
  if (!reader.ok()) return reader.status();
  return std::unique_ptr<Loader>(new Loader(*std::move(reader), first_step));
}

Loader::Loader(BatchReader reader, int64_t first_step)
    : reader_(std::move(reader)), next_step_(first_step), slots_(kNumSlots) {
  const size_t size = reader_.num_rows() * reader_.options().seq_len;
  for (Slot& slot : slots_) {
    slot.tokens.resize(size);
    slot.targets.resize(size);
    slot.document_starts.resize(size);
    free_.push_back(&slot);
  }
  thread_ = std::thread([this] { ReadAhead(); });
}

Loader::~Loader() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

void Loader::ReadAhead() {
  for (;;) {
    Slot* slot;
    int64_t generation;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Loader::CanRead));
      if (stop_) return;
      slot = free_.front();
      free_.pop_front();
      slot->step = next_step_++;
      generation = generation_;
    }
    slot->info = reader_.Read(slot->step, slot->tokens.data(), slot->targets.data(), slot->document_starts.data());
    absl::MutexLock lock(&mutex_);
    (generation == generation_ ? ready_ : free_).push_back(slot);
  }
}

absl::StatusOr<BatchInfo> Loader::Next(int32_t* tokens, int32_t* targets, int32_t* document_starts) {
  Slot* slot;
  {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Loader::CanTake));
    slot = ready_.front();
    ready_.pop_front();
  }
  absl::StatusOr<BatchInfo> info = std::move(slot->info);
  const int64_t step = slot->step;
  if (info.ok()) {
    std::memcpy(tokens, slot->tokens.data(), slot->tokens.size() * sizeof(int32_t));
    std::memcpy(targets, slot->targets.data(), slot->targets.size() * sizeof(int32_t));
    if (document_starts != nullptr) {
      std::memcpy(document_starts, slot->document_starts.data(), slot->document_starts.size() * sizeof(int32_t));
    }
  }
  {
    absl::MutexLock lock(&mutex_);
    free_.push_back(slot);
  }
  if (!info.ok()) Seek(step);
  return info;
}

void Loader::Seek(int64_t step) {
  absl::MutexLock lock(&mutex_);
  next_step_ = step;
  ++generation_;
  free_.insert(free_.end(), ready_.begin(), ready_.end());
  ready_.clear();
}

}  // namespace tacc::worker
