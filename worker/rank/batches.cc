#include "worker/rank/batches.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/bind_collective.h"

namespace tacc::worker {
namespace {

// How the program cuts a batch.
struct Cut {
  int64_t logical_rows = 0;  // Bg
  graph::Range rows;         // Of this rank, in [0, Bg).
  bool is_first_replica = true;
  bool takes_rows = true;  // Not: a stage in the middle of a pipeline.
};

absl::Status CheckInput(const Executor::Input& input, const BatchOptions& options) {
  using graph::DType;
  const graph::TensorType& type = input.value.type;
  const graph::Dims& global = input.value.placement.has_value() ? input.value.placement->global.dims : type.dims;
  const auto fail = [&](const std::string& wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("the program's input \"", input.name, "\" is ", type.ToString(), "; wanted ", wanted));
  };
  if (input.name == "tokens" || input.name == "targets") {
    if (type.dtype != DType::kI32 || type.rank() != 2 || global[1] != options.seq_len ||
        type.dims[1] != options.seq_len) {
      return fail(
          absl::StrCat("i32[rows,", options.seq_len, "], whole in its second dim (seq_len = ", options.seq_len, ")"));
    }
    return absl::OkStatus();
  }
  if (input.name == "sample")
    return type.dtype == DType::kI64 && type.rank() == 1 ? absl::OkStatus() : fail("i64[rows]");
  if (input.name == "step") return type.dtype == DType::kI64 && type.rank() == 0 ? absl::OkStatus() : fail("i64[]");
  return absl::InvalidArgumentError(
      absl::StrCat("the program has an input \"", input.name, "\"; known are tokens, targets, sample and step"));
}

absl::StatusOr<Cut> CutOf(const BatchOptions& options) {
  const Executor::Input* tokens = nullptr;
  for (const Executor::Input& input : *options.inputs) {
    TACC_RETURN_IF_ERROR(CheckInput(input, options));
    if (input.name == "tokens" || (tokens == nullptr && input.value.type.rank() > 0)) tokens = &input;
  }
  if (options.program->num_stages == 1 && (tokens == nullptr || tokens->name != "tokens"))
    return absl::InvalidArgumentError("the program has no input \"tokens\"");
  Cut cut;
  if (tokens == nullptr) {
    cut.logical_rows = options.global_batch_size / options.num_micro_batches;
    cut.rows = {0, 1};
    cut.is_first_replica = cut.takes_rows = false;
    return cut;
  }
  cut.logical_rows = tokens->value.type.dims[0];
  cut.rows = RangesOf(tokens->value, options.program->mesh, options.rank)[0];
  if (tokens->value.placement.has_value()) {
    const graph::Placement& placement = *tokens->value.placement;
    cut.logical_rows = placement.global.dims[0];
    const std::vector<int64_t> coordinates = options.program->mesh.Coordinates(options.rank);
    for (size_t axis = 0; axis < coordinates.size(); ++axis) {
      if (coordinates[axis] != 0 && !placement.sharding.Uses(static_cast<int>(axis))) cut.is_first_replica = false;
    }
  }
  const int64_t local_rows = tokens->value.type.dims[0];
  if (cut.rows.end - cut.rows.begin != local_rows) {
    return absl::InvalidArgumentError(absl::StrCat("a micro-batch of ", cut.logical_rows,
                                                   " rows does not divide over the ranks: rank ", options.rank, " has ",
                                                   cut.rows.end - cut.rows.begin, " of ", local_rows));
  }
  for (const Executor::Input& input : *options.inputs) {
    if (input.value.type.rank() > 0 && input.value.type.dims[0] != local_rows) {
      return absl::InvalidArgumentError(absl::StrCat("the program's input \"", input.name, "\" is ",
                                                     input.value.type.ToString(), " but \"tokens\" has ", local_rows,
                                                     " rows"));
    }
  }
  return cut;
}

std::vector<const void*> Pointers(const std::vector<Executor::Input>& inputs, const int32_t* tokens,
                                  const int32_t* targets, const int64_t* samples, const int64_t* step) {
  std::vector<const void*> pointers;
  for (const Executor::Input& input : inputs) {
    pointers.push_back(input.name == "tokens"    ? static_cast<const void*>(tokens)
                       : input.name == "targets" ? static_cast<const void*>(targets)
                       : input.name == "sample"  ? static_cast<const void*>(samples)
                                                 : static_cast<const void*>(step));
  }
  return pointers;
}

std::vector<int64_t> Samples(int64_t first, int64_t count) {
  std::vector<int64_t> samples(count);
  for (int64_t i = 0; i < count; ++i) samples[i] = first + i;
  return samples;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TrainBatches>> TrainBatches::Create(const BatchOptions& options, const Dataset* dataset,
                                                                   int64_t first_step) {
  TACC_ASSIGN_OR_RETURN(const Cut cut, CutOf(options));
  if (cut.logical_rows * options.num_micro_batches != options.global_batch_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("the program takes ", options.num_micro_batches, " micro-batches of ", cut.logical_rows,
                     " rows a step, but global_batch_size = ", options.global_batch_size));
  }
  std::unique_ptr<TrainBatches> batches(new TrainBatches());
  batches->next_step_ = first_step;
  batches->counts_for_hash_ = cut.is_first_replica;
  const int64_t rows = cut.rows.end - cut.rows.begin;
  if (!cut.takes_rows) {
    batches->inputs_.assign(options.num_micro_batches,
                            Pointers(*options.inputs, nullptr, nullptr, nullptr, &batches->step_));
    return batches;
  }
  for (int64_t m = 0; m < options.num_micro_batches; ++m) {
    LoaderOptions loader;
    loader.seq_len = options.seq_len;
    loader.global_batch_size = options.global_batch_size;
    loader.first_row = m * cut.logical_rows + cut.rows.begin;
    loader.last_row = loader.first_row + rows;
    loader.seed = options.seed;
    MicroBatch micro_batch;
    TACC_ASSIGN_OR_RETURN(micro_batch.loader, Loader::Create(dataset, loader, first_step));
    micro_batch.tokens.resize(rows * options.seq_len);
    micro_batch.targets.resize(rows * options.seq_len);
    micro_batch.samples = Samples(loader.first_row, rows);
    batches->micro_batches_.push_back(std::move(micro_batch));
  }
  for (const MicroBatch& m : batches->micro_batches_) {
    batches->inputs_.push_back(
        Pointers(*options.inputs, m.tokens.data(), m.targets.data(), m.samples.data(), &batches->step_));
  }
  return batches;
}

absl::Status TrainBatches::Next() {
  hash_ = 0;
  for (MicroBatch& m : micro_batches_) {
    TACC_ASSIGN_OR_RETURN(const BatchInfo info, m.loader->Next(m.tokens.data(), m.targets.data()));
    if (info.step != next_step_) {
      return absl::InternalError(
          absl::StrCat("the loader gave the batch of step ", info.step, " instead of ", next_step_));
    }
    if (counts_for_hash_) hash_ += info.hash;
  }
  step_ = next_step_++;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<EvalBatches>> EvalBatches::Create(const BatchOptions& options, const Dataset* dataset) {
  TACC_ASSIGN_OR_RETURN(const Cut cut, CutOf(options));
  LoaderOptions loader;
  loader.seq_len = options.seq_len;
  loader.global_batch_size = cut.logical_rows;
  loader.first_row = cut.rows.begin;
  loader.last_row = cut.rows.end;
  loader.order = LoaderOptions::Order::kSequential;
  TACC_ASSIGN_OR_RETURN(BatchReader reader, BatchReader::Create(dataset, loader));
  std::unique_ptr<EvalBatches> batches(new EvalBatches(std::move(reader)));
  const int64_t rows = batches->reader_.num_rows();
  batches->tokens_.resize(rows * options.seq_len);
  batches->targets_.resize(rows * options.seq_len);
  batches->samples_ = Samples(cut.rows.begin, rows);
  batches->inputs_ = Pointers(*options.inputs, batches->tokens_.data(), batches->targets_.data(),
                              batches->samples_.data(), &batches->step_);
  return batches;
}

absl::StatusOr<const std::vector<const void*>*> EvalBatches::Read(int64_t index) {
  TACC_RETURN_IF_ERROR(reader_.Read(index, tokens_.data(), targets_.data()).status());
  return &inputs_;
}

}  // namespace tacc::worker
