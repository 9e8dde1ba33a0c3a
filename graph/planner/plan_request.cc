#include "graph/planner/plan_request.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/planner/cost/estimate.h"
#include "graph/targets/targets.h"

namespace tacc::graph {
namespace {

// Samples a device holds at once when the job says nothing of the batch: enough rows for full matrix products, small
// enough for any memory.
constexpr int64_t kDefaultMicroBatch = 4;

// What is less may be none: the slowest of several devices of each.
constexpr double kClearSpeedup = 1.3;

// How much faster a device's products of bf16 are than those of f32; none: not both are known.
std::optional<double> Bf16Speedup(const DeviceProfile& device) {
  const auto f32 = device.matmul_flops_per_second.find(DType::kF32);
  const auto bf16 = device.matmul_flops_per_second.find(DType::kBF16);
  if (f32 == device.matmul_flops_per_second.end() || bf16 == device.matmul_flops_per_second.end()) return std::nullopt;
  return bf16->second / f32->second;
}

}  // namespace

DType Precision(const PlanRequest& request) {
  if (request.fp16) return DType::kF16;
  if (request.tf32) return DType::kF32;
  if (request.bf16.has_value()) return *request.bf16 ? DType::kBF16 : DType::kF32;
  // The probe decides: bf16 only where the devices are clearly faster in it, which none is that goes through f32.
  return request.device.multiplies_bf16.value_or(true) && Bf16Speedup(request.device).value_or(1) > kClearSpeedup
             ? DType::kBF16
             : DType::kF32;
}

std::vector<DType> Residuals(const PlanRequest& request) {
  if (request.residual_dtype.has_value()) return {*request.residual_dtype};
  if (Precision(request) == DType::kBF16) return {DType::kF32, DType::kBF16};
  return {DType::kF32};
}

TargetKind TargetKindOf(const DeviceProfile& device) {
  const TargetKind* kind = FindTargetKind(device.kind);
  return kind == nullptr ? CpuTarget() : *kind;
}

absl::Status CheckLayerCounts(const PlanRequest& request, int64_t num_layers) {
  const std::pair<const char*, std::optional<int64_t>> counts[] = {{"memory.gc_cnt", request.recompute_units},
                                                                   {"dist.fsdp.reshard_cnt", request.reshard_units}};
  for (const auto& [field, count] : counts) {
    if (count.value_or(0) <= num_layers || *count == PlanRequest::kAllUnits) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(field, " = ", *count, ", but the model has ", num_layers, " layers; use at most that"));
  }
  return absl::OkStatus();
}

SearchRequest SearchRequestOf(const PlanRequest& request, int64_t num_units, DType precision) {
  SearchRequest search;
  search.cluster = request.cluster;
  search.global_batch = GlobalBatch(request);
  search.sizes = request.sizes;
  search.micro_batch = request.micro_batch;
  search.num_micro_batches = request.num_micro_batches;
  search.schedule = request.schedule;
  search.chunks = request.num_chunks;
  if (request.recompute_units.has_value()) search.recompute = *request.recompute_units > 0;
  if (request.reshard_units.has_value()) search.reshard = *request.reshard_units >= num_units;
  search.reduce_each_micro_batch = request.reduce_each_micro_batch;
  search.zero_stage = request.zero_stage;
  // What the job says of gathers, and of reductions beside them, is of stage 3.
  if (search.reshard.has_value() || search.reduce_each_micro_batch.has_value())
    search.zero_stage = search.zero_stage.value_or(3);
  // Axes that the job's order leaves out split nothing.
  for (Axis axis : kJobAxes) {
    const bool named =
        std::find(request.topology.begin(), request.topology.end(), Name(axis)) != request.topology.end();
    std::optional<int64_t>& size = search.sizes[axis];
    if (!request.topology.empty() && !named && !size.has_value()) size = 1;
  }
  if (const auto parts = static_cast<int64_t>(request.split_points.size()) + 1; parts > 1) {
    search.cuts_between_layers = false;
    if (!search.sizes[Axis::kPp].has_value()) search.sizes[Axis::kPp] = parts / search.chunks.value_or(1);
    if (!search.chunks.has_value() && parts > *search.sizes[Axis::kPp])
      search.chunks = parts / *search.sizes[Axis::kPp];
    if (!search.schedule.has_value() && search.chunks.value_or(1) > 1) search.schedule = PipelineSchedule::kInterleaved;
    if (search.schedule == PipelineSchedule::kInterleaved)
      search.chunks = std::max<int64_t>(2, search.chunks.value_or(2));
  }
  if (request.device.memory_bytes > 0) {
    const Machine& machine = request.cluster.machine;
    const int64_t buffers = machine.shares_cores ? kBufferBytes + kStagingBytes : 0;
    search.available_bytes =
        std::max(1.0, static_cast<double>(request.device.memory_bytes - IdleBytes(machine) - buffers));
  }
  search.execution = ExecutionOf(request.cluster.machine, precision, request.reduce_dtype);
  search.execution.keeps_gradients = request.training.has_client;
  return search;
}

int64_t IdleBytes(const Machine& machine) {
  if (machine.shares_cores) return kIdleBytes;
  return machine.measured ? 0 : kGpuIdleBytes;
}

int64_t BufferBytes(const Machine& machine, const Mesh& mesh) {
  if (!machine.shares_cores) return 0;
  const int stage_axis = mesh.Find(kStageAxis);
  const int64_t stages = stage_axis < 0 ? 1 : mesh.axes[stage_axis].size;
  return kBufferBytes + (mesh.num_ranks() > stages ? kStagingBytes : 0);
}

int64_t GlobalBatch(const PlanRequest& request) {
  if (request.global_batch.has_value()) return *request.global_batch;
  const int64_t sharers = request.sizes[Axis::kPp].value_or(1) * request.sizes[Axis::kCp].value_or(1) *
                          request.sizes[Axis::kTp].value_or(1);
  return request.micro_batch.value_or(kDefaultMicroBatch) * std::max<int64_t>(request.world / sharers, 1) *
         request.num_micro_batches.value_or(1);
}

absl::StatusOr<int64_t> MaxSteps(const PlanRequest& request, int64_t global_batch) {
  if (request.num_train_epochs == 0) return request.training.max_steps;
  if (request.num_samples < 1) {
    return absl::InvalidArgumentError(
        "train.num_train_epochs needs data whose number of samples is known; give train.max_steps");
  }
  const double steps = std::ceil(request.num_train_epochs * static_cast<double>(request.num_samples) /
                                 static_cast<double>(global_batch));
  const int64_t max_steps = std::max<int64_t>(1, static_cast<int64_t>(steps));
  if (request.training.warmup_steps > max_steps) {
    return absl::InvalidArgumentError(absl::StrCat("train.warmup_steps = ", request.training.warmup_steps,
                                                   " is more than the ", max_steps,
                                                   " steps of train.num_train_epochs = ", request.num_train_epochs));
  }
  return max_steps;
}

}  // namespace tacc::graph
