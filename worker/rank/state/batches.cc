#include "worker/rank/state/batches.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "graph/ir/sequence_order.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/collectives/bind_collective.h"

namespace tacc::worker {
namespace {

// How the program cuts a batch.
struct Cut {
  int64_t logical_rows = 0;        // Bg
  graph::Range rows;               // Of this rank, in [0, Bg).
  std::vector<int64_t> positions;  // Of each row; empty: all, in order.
  int64_t num_positions = 0;
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
  if (input.name == "tokens" || input.name == "targets" || input.name == "document_start") {
    if (type.dtype != DType::kI32 || type.rank() != 2 || global[1] != options.seq_len)
      return fail(absl::StrCat("i32[rows,", options.seq_len, "] over all ranks (seq_len = ", options.seq_len, ")"));
    return absl::OkStatus();
  }
  if (input.name == "sample")
    return type.dtype == DType::kI64 && type.rank() == 1 ? absl::OkStatus() : fail("i64[rows]");
  if (input.name == "step") return type.dtype == DType::kI64 && type.rank() == 0 ? absl::OkStatus() : fail("i64[]");
  return absl::InvalidArgumentError(absl::StrCat("the program has an input \"", input.name,
                                                 "\"; known are tokens, targets, document_start, sample and step"));
}

absl::StatusOr<Cut> CutOf(const BatchOptions& options) {
  // The input that the others are held against: one of rows and positions, where there is one.
  const Executor::Input* reference = nullptr;
  bool has_tokens = false;
  for (const Executor::Input& input : *options.inputs) {
    TACC_RETURN_IF_ERROR(CheckInput(input, options));
    has_tokens |= input.name == "tokens";
    if (input.value.type.rank() > (reference == nullptr ? 0 : reference->value.type.rank())) reference = &input;
  }
  if (options.program->num_stages == 1 && !has_tokens)
    return absl::InvalidArgumentError("the program has no input \"tokens\"");
  Cut cut;
  if (reference == nullptr) {
    cut.logical_rows = options.global_batch_size / options.num_micro_batches;
    cut.rows = {0, 1};
    cut.is_first_replica = cut.takes_rows = false;
    return cut;
  }
  const std::vector<graph::Range> ranges = RangesOf(reference->value, options.program->mesh, options.rank);
  cut.logical_rows = reference->value.type.dims[0];
  cut.rows = ranges[0];
  const bool has_positions = ranges.size() > 1;  // a stage may have no more than the samples' indices
  cut.num_positions = has_positions ? ranges[1].end - ranges[1].begin : options.seq_len;
  if (has_positions && cut.num_positions != reference->value.type.dims[1]) {
    return absl::InvalidArgumentError(absl::StrCat("a sequence of ", options.seq_len,
                                                   " tokens does not divide over the ranks: rank ", options.rank,
                                                   " has ", cut.num_positions, " of ", reference->value.type.dims[1]));
  }
  if (has_positions && (cut.num_positions != options.seq_len || reference->zigzag > 1))
    cut.positions = graph::Positions({options.seq_len, reference->zigzag}, ranges[1]);
  if (reference->value.placement.has_value()) {
    const graph::Placement& placement = *reference->value.placement;
    cut.logical_rows = placement.global.dims[0];
    const std::vector<int64_t> coordinates = options.program->mesh.Coordinates(options.rank);
    const graph::AxisList& of_rows = placement.sharding.dims[0];
    for (size_t axis = 0; axis < coordinates.size(); ++axis) {
      const bool splits_rows = std::find(of_rows.begin(), of_rows.end(), static_cast<int>(axis)) != of_rows.end();
      if (coordinates[axis] != 0 && !splits_rows) cut.is_first_replica = false;
    }
  }
  const int64_t local_rows = reference->value.type.dims[0];
  if (cut.rows.end - cut.rows.begin != local_rows) {
    return absl::InvalidArgumentError(absl::StrCat("a micro-batch of ", cut.logical_rows,
                                                   " rows does not divide over the ranks: rank ", options.rank, " has ",
                                                   cut.rows.end - cut.rows.begin, " of ", local_rows));
  }
  for (const Executor::Input& input : *options.inputs) {
    if (input.value.type.rank() > 0 && input.value.type.dims[0] != local_rows) {
      return absl::InvalidArgumentError(absl::StrCat("the program's input \"", input.name, "\" is ",
                                                     input.value.type.ToString(), " but \"", reference->name, "\" has ",
                                                     local_rows, " rows"));
    }
    if (input.value.type.rank() > 1 &&
        (input.value.type.dims != reference->value.type.dims || input.zigzag != reference->zigzag)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the program's input \"", input.name, "\" is not cut as \"", reference->name, "\" is"));
    }
  }
  return cut;
}

std::vector<const void*> Pointers(const std::vector<Executor::Input>& inputs, const BatchColumns& columns,
                                  const int64_t* step) {
  std::vector<const void*> pointers;
  for (const Executor::Input& input : inputs) {
    pointers.push_back(input.name == "tokens"           ? static_cast<const void*>(columns.tokens.data())
                       : input.name == "targets"        ? static_cast<const void*>(columns.targets.data())
                       : input.name == "document_start" ? static_cast<const void*>(columns.document_starts.data())
                       : input.name == "sample"         ? static_cast<const void*>(columns.samples.data())
                                                        : static_cast<const void*>(step));
  }
  return pointers;
}

// Memory for `rows` rows of `length` elements.
void Resize(int64_t rows, int64_t length, BatchColumns& columns) {
  for (std::vector<int32_t>* column : {&columns.tokens, &columns.targets, &columns.document_starts})
    column->resize(rows * length);
}

// Takes the given positions of each row.
void CutRows(const BatchColumns& whole, int64_t length, const std::vector<int64_t>& positions, BatchColumns& own) {
  const size_t count = positions.size();
  for (size_t i = 0; i < own.tokens.size(); ++i) {
    const size_t from = i / count * length + positions[i % count];
    own.tokens[i] = whole.tokens[from];
    own.targets[i] = whole.targets[from];
    own.document_starts[i] = whole.document_starts[from];
  }
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
    batches->inputs_.assign(options.num_micro_batches, Pointers(*options.inputs, {}, &batches->step_));
    return batches;
  }
  batches->seq_len_ = options.seq_len;
  batches->positions_ = cut.positions;
  if (!cut.positions.empty()) Resize(rows, options.seq_len, batches->whole_);
  for (int64_t m = 0; m < options.num_micro_batches; ++m) {
    LoaderOptions loader;
    loader.seq_len = options.seq_len;
    loader.global_batch_size = options.global_batch_size;
    loader.first_row = m * cut.logical_rows + cut.rows.begin;
    loader.last_row = loader.first_row + rows;
    loader.seed = options.seed;
    MicroBatch micro_batch;
    TACC_ASSIGN_OR_RETURN(micro_batch.loader, Loader::Create(dataset, loader, first_step));
    Resize(rows, cut.num_positions, micro_batch.columns);
    micro_batch.columns.samples = Samples(loader.first_row, rows);
    batches->micro_batches_.push_back(std::move(micro_batch));
  }
  for (const MicroBatch& m : batches->micro_batches_) {
    batches->inputs_.push_back(Pointers(*options.inputs, m.columns, &batches->step_));
  }
  return batches;
}

absl::Status TrainBatches::Next() {
  hash_ = 0;
  for (MicroBatch& m : micro_batches_) {
    BatchColumns& read = positions_.empty() ? m.columns : whole_;
    TACC_ASSIGN_OR_RETURN(const BatchInfo info,
                          m.loader->Next(read.tokens.data(), read.targets.data(), read.document_starts.data()));
    if (!positions_.empty()) CutRows(whole_, seq_len_, positions_, m.columns);
    if (info.step != next_step_) {
      return absl::InternalError(
          absl::StrCat("the loader gave the batch of step ", info.step, " instead of ", next_step_));
    }
    if (counts_for_hash_) hash_ += info.hash;
  }
  step_ = next_step_++;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<EvalBatches>> EvalBatches::Create(const BatchOptions& options, const Dataset* dataset,
                                                                 int64_t max_samples) {
  TACC_ASSIGN_OR_RETURN(const Cut cut, CutOf(options));
  LoaderOptions loader;
  loader.seq_len = options.seq_len;
  loader.global_batch_size = cut.logical_rows;
  loader.first_row = cut.rows.begin;
  loader.last_row = cut.rows.end;
  loader.order = LoaderOptions::Order::kSequential;
  loader.max_samples = max_samples;
  TACC_ASSIGN_OR_RETURN(BatchReader reader, BatchReader::Create(dataset, loader));
  std::unique_ptr<EvalBatches> batches(new EvalBatches(std::move(reader)));
  const int64_t rows = batches->reader_.num_rows();
  batches->positions_ = cut.positions;
  Resize(rows, cut.num_positions, batches->columns_);
  if (!cut.positions.empty()) Resize(rows, options.seq_len, batches->whole_);
  batches->columns_.samples = Samples(cut.rows.begin, rows);
  batches->inputs_ = Pointers(*options.inputs, batches->columns_, &batches->step_);
  return batches;
}

absl::StatusOr<const std::vector<const void*>*> EvalBatches::Read(int64_t index) {
  BatchColumns& read = positions_.empty() ? columns_ : whole_;
  TACC_RETURN_IF_ERROR(
      reader_.Read(index, read.tokens.data(), read.targets.data(), read.document_starts.data()).status());
  if (!positions_.empty()) CutRows(whole_, reader_.options().seq_len, positions_, columns_);
  const int64_t first_row = reader_.options().first_row;
  for (int64_t row = 0; row < reader_.num_rows(); ++row)
    columns_.samples[row] = reader_.Sample(index, first_row + row) < 0 ? -1 : first_row + row;
  return &inputs_;
}

}  // namespace tacc::worker
