#include "graph/planner/planner.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/topology.h"
#include "graph/passes/layout.h"
#include "graph/planner/analyze.h"
#include "graph/planner/finalists.h"
#include "graph/planner/simulate/cluster_times.h"

namespace tacc::graph {
namespace {

// Samples a device holds at once when the job says nothing: enough rows for full matrix products, small enough for any
// memory.
constexpr int64_t kDefaultMicroBatch = 4;
constexpr size_t kMaxMicroBatches = 6;

// How many plans are compiled: fewer for deep models, whose compilation takes longer.
size_t MaxCompiled(size_t num_layers) { return std::clamp<size_t>(400 / std::max<size_t>(num_layers, 1), 3, 12); }

std::vector<int64_t> Divisors(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    divisors.push_back(d);
    if (d * d != n) divisors.push_back(n / d);
  }
  std::sort(divisors.begin(), divisors.end());
  return divisors;
}

std::string Got(const char* field, const std::optional<int64_t>& size) {
  return absl::StrCat(field, " ", size.has_value() ? absl::StrCat(*size) : "unset");
}

// "workers / dist.pp.size / dist.ep.size / dist.cp.size / dist.tp.size" less what is 1.
std::string Workers(const PlanRequest& request, int64_t tp, int64_t ep) {
  return absl::StrCat("workers", request.pp > 1 ? " / dist.pp.size" : "", ep > 1 ? " / dist.ep.size" : "",
                      request.cp > 1 ? " / dist.cp.size" : "", tp > 1 ? " / dist.tp.size" : "");
}

// What samples are divided over, for errors.
std::string Groups(const PlanRequest& request, int64_t tp) {
  return tp * request.pp * request.cp > 1 ? absl::StrCat(" groups of workers (", Workers(request, tp, 1), ")")
                                          : " workers";
}

absl::Status CheckDivides(const char* field, int64_t size, int64_t ranks, absl::string_view what) {
  if (size >= 1 && ranks % size == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " = ", size, " does not divide the ", ranks, what, "; use ",
                                                 absl::StrJoin(Divisors(ranks), ", ")));
}

// The meshes of dp and fsdp over the ranks that the other axes leave, with pp before them.
absl::StatusOr<std::vector<Mesh>> DataMeshes(const PlanRequest& request, int64_t tp) {
  TACC_RETURN_IF_ERROR(CheckDivides("dist.pp.size", request.pp, request.world, " workers"));
  const int64_t of_stage = request.world / request.pp;
  TACC_RETURN_IF_ERROR(CheckDivides("dist.tp.size", tp, of_stage, request.pp > 1 ? " workers of a stage" : " workers"));
  TACC_RETURN_IF_ERROR(CheckDivides("dist.cp.size", request.cp, of_stage / tp,
                                    absl::StrCat(" workers", tp > 1 ? " / dist.tp.size" : "")));
  TACC_RETURN_IF_ERROR(CheckDivides("dist.ep.size", request.ep, of_stage / tp / request.cp, Groups(request, tp)));
  const int64_t ranks = of_stage / tp / request.cp / request.ep;
  std::vector<Mesh> meshes;
  for (int64_t fsdp : Divisors(ranks)) {
    if (request.dp.has_value() && *request.dp != ranks / fsdp) continue;
    if (request.fsdp.has_value() && *request.fsdp != fsdp) continue;
    meshes.push_back({{{"dp", ranks / fsdp}, {"fsdp", fsdp}}});
    if (request.pp > 1) meshes.back().axes.insert(meshes.back().axes.begin(), {kStageAxis, request.pp});
    if (request.ep > 1) meshes.back().axes.push_back({"ep", request.ep});
  }
  if (!meshes.empty()) return meshes;
  return absl::InvalidArgumentError(absl::StrCat("dist.dp.size x dist.fsdp.size must be the number of ",
                                                 Workers(request, tp, request.ep), ", ", ranks, "; got ",
                                                 Got("dp.size", request.dp), " and ", Got("fsdp.size", request.fsdp),
                                                 "; each may be ", absl::StrJoin(Divisors(ranks), ", ")));
}

// Micro-batches to try, largest first.
absl::StatusOr<std::vector<int64_t>> MicroBatches(const PlanRequest& request, int64_t tp) {
  const int64_t ranks = request.world / (request.pp * request.cp * tp);  // that different samples go to
  if (!request.global_batch.has_value()) return std::vector<int64_t>{request.micro_batch.value_or(kDefaultMicroBatch)};
  const int64_t global = *request.global_batch;
  if (global % ranks != 0) {
    const int64_t below = global / ranks * ranks;
    return absl::InvalidArgumentError(
        absl::StrCat("train.global_batch_size = ", global, " does not divide over ", ranks, Groups(request, tp),
                     "; nearest legal values: ", below > 0 ? absl::StrCat(below, " and ") : "", below + ranks));
  }
  const int64_t rows = global / ranks;
  if (request.num_micro_batches.has_value()) {
    const int64_t m = *request.num_micro_batches;
    const int64_t size = request.micro_batch.value_or(rows / m);
    if (size > 0 && size * m == rows) return std::vector<int64_t>{size};
    return absl::InvalidArgumentError(absl::StrCat(
        "dist.pp.num_micro_batches = ", m,
        request.micro_batch.has_value() ? absl::StrCat(" of train.per_device_train_batch_size = ", size) : "",
        " do not make the ", rows, " samples of a worker (global_batch_size ", global, " over ", ranks,
        Groups(request, tp), "); use ", absl::StrJoin(Divisors(rows), ", ")));
  }
  if (request.micro_batch.has_value()) {
    if (rows % *request.micro_batch == 0) return std::vector<int64_t>{*request.micro_batch};
    return absl::InvalidArgumentError(
        absl::StrCat("train.per_device_train_batch_size = ", *request.micro_batch, " does not divide the ", rows,
                     " samples of a worker (global_batch_size ", global, " over ", ranks, Groups(request, tp),
                     "); use ", absl::StrJoin(Divisors(rows), ", ")));
  }
  std::vector<int64_t> sizes = Divisors(rows);
  std::reverse(sizes.begin(), sizes.end());
  // Large micro-batches first, as long as they are reasonable; always the smallest, which needs the least memory.
  if (sizes.size() > kMaxMicroBatches) {
    const int64_t smallest = sizes.back();
    sizes.resize(kMaxMicroBatches - 1);
    sizes.push_back(smallest);
  }
  return sizes;
}

std::vector<DType> Precisions(const PlanRequest& request) {
  if (request.bf16.has_value()) return {*request.bf16 ? DType::kBF16 : DType::kF32};
  // The probe decides: bf16 only where the device is clearly faster in it (a CPU without bf16 units is slower).
  const auto& peaks = request.device.matmul_flops_per_second;
  const auto f32 = peaks.find(DType::kF32), bf16 = peaks.find(DType::kBF16);
  if (f32 != peaks.end() && bf16 != peaks.end() && bf16->second > 1.3 * f32->second) return {DType::kBF16};
  return {DType::kF32};
}

// Sizes of tp to try. Where the job does not say: on a known machine all that divide a node, on probed devices 1.
std::vector<int64_t> TensorSizes(const PlanRequest& request) {
  if (request.tp.has_value()) return {*request.tp};
  if (request.cluster.machine.issue_seconds == 0) return {1};
  std::vector<int64_t> sizes;
  for (int64_t size : Divisors(request.world / std::max<int64_t>(1, request.pp))) {
    if (size <= request.cluster.machine.devices_per_node) sizes.push_back(size);
  }
  return sizes;
}

absl::StatusOr<int64_t> RecomputeUnits(const PlanRequest& request, const ForwardModel& model) {
  const auto num_units = static_cast<int64_t>(model.units.size());
  if (request.recompute_units == PlanRequest::kAllUnits) return num_units;
  if (request.recompute_units <= num_units) return request.recompute_units;
  return absl::InvalidArgumentError(absl::StrCat("memory.gc_cnt = ", request.recompute_units, ", but the model has ",
                                                 num_units, " layers; use at most that"));
}

absl::StatusOr<int64_t> KeptUnits(const PlanRequest& request, const ForwardModel& model) {
  const auto num_units = static_cast<int64_t>(model.units.size());
  if (!request.reshard_units.has_value() || *request.reshard_units == PlanRequest::kAllUnits) return 0;
  if (*request.reshard_units > num_units) {
    return absl::InvalidArgumentError(absl::StrCat("dist.fsdp.reshard_cnt = ", *request.reshard_units,
                                                   ", but the model has ", num_units, " layers; use at most that"));
  }
  if (request.pp > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("dist.fsdp.reshard_after_forward: false does not go with dist.pp.size = ", request.pp,
                     ": weights would be kept for each micro-batch under way; leave it out, or use "
                     "dist.fsdp.zero_stage: 2, which gathers no weights"));
  }
  return num_units - *request.reshard_units;
}

// Every plan that the request and the model allow; those of equal rows follow each other.
absl::StatusOr<std::vector<Plan>> LegalPlans(const PlanRequest& request, const ForwardModel& model) {
  TACC_ASSIGN_OR_RETURN(const int64_t recompute_units, RecomputeUnits(request, model));
  TACC_ASSIGN_OR_RETURN(const int64_t kept_units, KeptUnits(request, model));
  std::vector<Plan> plans;
  absl::Status first_error;
  for (int64_t tp : TensorSizes(request)) {
    const absl::StatusOr<std::vector<Mesh>> meshes = DataMeshes(request, tp);
    first_error.Update(meshes.status());
    if (!meshes.ok()) continue;
    const absl::StatusOr<std::vector<int64_t>> micro_batches = MicroBatches(request, tp);
    first_error.Update(micro_batches.status());
    if (!micro_batches.ok()) continue;
    const absl::StatusOr<std::vector<Mesh::Axis>> tensor_axes = TensorAxes(model.forward, tp);
    first_error.Update(tensor_axes.status());
    if (!tensor_axes.ok()) continue;
    const absl::StatusOr<std::vector<Mesh::Axis>> context_axes =
        ContextAxes(model.forward, request.cp, request.sp, *tensor_axes);
    first_error.Update(context_axes.status());
    if (!context_axes.ok()) continue;
    for (int64_t micro_batch : *micro_batches) {
      for (Mesh mesh : *meshes) {
        mesh.axes.insert(mesh.axes.end(), context_axes->begin(), context_axes->end());
        mesh.axes.insert(mesh.axes.end(), tensor_axes->begin(), tensor_axes->end());
        const absl::StatusOr<Mesh> ordered = InTopology(std::move(mesh), request.topology);
        first_error.Update(ordered.status());
        if (!ordered.ok()) continue;
        PartitionOptions layout = LayoutOf(*ordered, model.residual_module);
        if (absl::Status pins = ApplyPins(request.pins, model.forward, layout); !pins.ok()) {
          first_error.Update(pins);
          continue;
        }
        for (DType precision : Precisions(request)) {
          Plan& plan = plans.emplace_back();
          plan.mesh = *ordered;
          plan.compute_dtype = precision;
          plan.seq_len = request.seq_len;
          plan.micro_batch = micro_batch;
          const int64_t rows = micro_batch * plan.num_data_ranks();
          plan.accumulation =
              request.global_batch.has_value() ? *request.global_batch / rows : request.num_micro_batches.value_or(1);
          plan.threads = request.device.threads;
          plan.zero_stage = request.zero_stage;
          plan.kept_units = kept_units;
          plan.recompute_units = recompute_units;
        }
      }
    }
  }
  if (plans.empty()) return first_error;
  return plans;
}

// Compiled, for exact bytes, and simulated.
absl::StatusOr<Candidate> MakeCandidate(const PlanRequest& request, const Plan& plan, const ForwardModel& forward,
                                        const OpTable& ops) {
  Candidate candidate;
  candidate.plan = plan;
  PipelineObserver observer;
  observer.verification = PipelineObserver::Verification::kInput;  // the candidate that is taken is compiled again
  observer.after_step = [&](int, const Step& step, double, const std::vector<Program>& stages) {
    if (step.name == "build-training") candidate.model_flops = ModelFlops(stages[0], ops);
  };
  TACC_ASSIGN_OR_RETURN(const Compiled compiled, CompilePlan(request, plan, forward, ops, observer));
  candidate.memory = Largest(compiled.memory);
  candidate.num_parameters = forward.num_parameters;
  candidate.plan.total_bytes =
      candidate.memory.arena_bytes + candidate.memory.workspace_bytes + kIdleBytes + BufferBytes(plan.mesh);
  std::vector<const Program*> stages;
  for (const Program& program : compiled.stages) {
    stages.push_back(&program);
    const StepCost cost = EstimateStep(program, ops, request.device);
    if (cost.matmul_flops >= candidate.cost.matmul_flops) candidate.cost = cost;
  }
  const NodeTimes times = TimesOn(request.cluster, stages, ops);
  TACC_ASSIGN_OR_RETURN(const Simulation simulation, Simulate(stages, times));
  candidate.times =
      *std::max_element(simulation.stages.begin(), simulation.stages.end(),
                        [](const StageTimes& a, const StageTimes& b) { return a.compute_seconds < b.compute_seconds; });
  candidate.wait_seconds = simulation.stages[0].exposed_seconds + simulation.stages[0].idle_seconds;
  candidate.plan.step_seconds = simulation.step_seconds;
  candidate.fits = request.device.memory_bytes == 0 || candidate.plan.total_bytes <= request.device.memory_bytes;
  return candidate;
}

}  // namespace

int64_t BufferBytes(const Mesh& mesh) {
  const int stage_axis = mesh.Find(kStageAxis);
  const int64_t stages = stage_axis < 0 ? 1 : mesh.axes[stage_axis].size;
  return kBufferBytes + (mesh.num_ranks() > stages ? kStagingBytes : 0);
}

const MemoryUse& Largest(const std::vector<MemoryUse>& stages) {
  return *std::max_element(stages.begin(), stages.end(), [](const MemoryUse& a, const MemoryUse& b) {
    return a.arena_bytes + a.workspace_bytes < b.arena_bytes + b.workspace_bytes;
  });
}

absl::StatusOr<Compiled> CompilePlan(const PlanRequest& request, const Plan& plan, const ForwardModel& model,
                                     const OpTable& ops, const PipelineObserver& observer) {
  CompileOptions options;
  options.training = request.training;
  options.training.accumulation = plan.accumulation;
  options.compute_dtype = plan.compute_dtype;
  options.partition = LayoutOf(plan.mesh, model.residual_module);
  TACC_RETURN_IF_ERROR(ApplyPins(request.pins, model.forward, options.partition));
  options.sequence_blocks = SequenceBlocks(plan.mesh);
  options.experts.buffer_factor = request.expert_buffer_factor;
  for (const Mesh::Axis& axis : plan.mesh.axes) {
    if (axis.name == "ep") options.experts.ranks = axis.size;
    if (axis.name == "cp" || axis.name == "sp" || axis.name == "tp" || axis.name == "tpq")
      options.experts.sequence_groups *= axis.size;
  }
  options.partition.zero_stage = static_cast<int>(plan.zero_stage);
  options.partition.units = model.units;
  options.partition.reduce_dtype = request.reduce_dtype;
  options.remat.units.assign(model.units.begin(), model.units.begin() + plan.recompute_units);
  options.stages = request.stages;
  options.stages.units = model.units;
  options.schedule.units = model.units;
  options.schedule.kept_units = plan.kept_units;
  options.schedule.prefetch_units = static_cast<int>(plan.prefetch_units);
  options.threads = static_cast<int>(plan.threads);
  return Compile(model.forward, ops, options, observer);
}

absl::StatusOr<std::vector<Candidate>> PlanCandidates(const PlanRequest& request, const ForwardBuilder& model,
                                                      const OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const ForwardModel one_row, model(1, request.seq_len));
  TACC_ASSIGN_OR_RETURN(std::vector<Plan> plans, LegalPlans(request, one_row));
  if (const size_t limit = MaxCompiled(one_row.units.size()); plans.size() > limit) {
    TACC_ASSIGN_OR_RETURN(const ModelWork work,
                          AnalyzeModel(one_row.forward, one_row.units, plans[0].compute_dtype, ops));
    plans = Finalists(work, request.cluster, std::move(plans), limit);
  }
  std::vector<Candidate> candidates;
  ForwardModel forward;
  int64_t rows = 0;  // of `forward`; plans of equal rows follow each other
  for (const Plan& plan : plans) {
    if (rows != plan.micro_batch * plan.num_data_ranks()) {
      rows = plan.micro_batch * plan.num_data_ranks();
      TACC_ASSIGN_OR_RETURN(forward, model(rows, request.seq_len));
    }
    TACC_ASSIGN_OR_RETURN(Candidate candidate, MakeCandidate(request, plan, forward, ops));
    candidates.push_back(std::move(candidate));
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.fits != b.fits) return a.fits;
    if (!a.fits) return a.plan.total_bytes < b.plan.total_bytes;
    return a.plan.step_seconds < b.plan.step_seconds;
  });
  return candidates;
}

absl::Status DoesNotFit(const PlanRequest& request, const Candidate& smallest) {
  auto mib = [](int64_t bytes) { return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20)); };
  std::string largest;
  for (const MemoryUse::Buffer& buffer : smallest.memory.largest) {
    absl::StrAppend(&largest, largest.empty() ? "" : "; ", buffer.name, " ", mib(buffer.bytes));
  }
  std::vector<std::string> help;
  if (smallest.plan.micro_batch > 1) help.push_back("a smaller train.per_device_train_batch_size");
  if (smallest.plan.mesh.axes[smallest.plan.mesh.Find("fsdp")].size < smallest.plan.num_data_ranks())
    help.push_back("a larger dist.fsdp.size");
  help.push_back("more workers (fsdp shards weights and optimizer over them)");
  if (smallest.plan.recompute_units == 0) help.push_back("memory.gc: true");
  help.push_back("a shorter data.seq_len");
  return absl::InvalidArgumentError(
      absl::StrCat("the model does not fit: a worker needs ", mib(smallest.plan.total_bytes), " (weights ",
                   mib(smallest.memory.weights_bytes + smallest.memory.copies_bytes), ", gradients ",
                   mib(smallest.memory.gradients_bytes), ", optimizer ", mib(smallest.memory.optimizer_bytes),
                   ", activations and temporaries ", mib(smallest.memory.temporaries_bytes), ", workspace ",
                   mib(smallest.memory.workspace_bytes), ", libraries and buffers ",
                   mib(kIdleBytes + BufferBytes(smallest.plan.mesh)), ") and has ", mib(request.device.memory_bytes),
                   "; largest buffers: ", largest, "; what would help: ", absl::StrJoin(help, ", ")));
}

}  // namespace tacc::graph
