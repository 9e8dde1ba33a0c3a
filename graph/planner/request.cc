#include "graph/planner/request.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "graph/ir/capture.h"
#include "graph/ir/status_macros.h"
#include "graph/planner/prediction_range.h"
#include "graph/targets/targets.h"

namespace tacc::graph {
namespace {

using nlohmann::json;

// The value at a path such as "job.train.max_steps", or null.
const json* Find(const json& root, absl::string_view path) {
  const json* at = &root;
  size_t begin = 0;
  while (begin <= path.size()) {
    size_t end = path.find('.', begin);
    if (end == absl::string_view::npos) end = path.size();
    const std::string key(path.substr(begin, end - begin));
    if (!at->is_object()) return nullptr;
    auto it = at->find(key);
    if (it == at->end()) return nullptr;
    at = &*it;
    begin = end + 1;
  }
  return at->is_null() ? nullptr : at;
}

class Reader {
 public:
  explicit Reader(const json& root) : root_(root) {}

  template <typename T>
  void Get(absl::string_view path, T* out) {
    if (const json* value = Find(root_, path)) Take(path, *value, out);
  }
  template <typename T>
  void Get(absl::string_view path, std::optional<T>* out) {
    if (const json* value = Find(root_, path)) Take(path, *value, &out->emplace());
  }
  // An enum value PREFIX_WORD as "word".
  void GetEnum(absl::string_view path, absl::string_view prefix, std::string* out) {
    std::string text;
    Get(path, &text);
    if (text.empty()) return;
    *out = absl::AsciiStrToLower(text.rfind(std::string(prefix), 0) == 0 ? text.substr(prefix.size()) : text);
  }
  const absl::Status& status() const { return status_; }

 private:
  template <typename T>
  void Take(absl::string_view path, const json& value, T* out) {
    bool fits = false;
    if constexpr (std::is_same_v<T, bool>) {
      fits = value.is_boolean();
    } else if constexpr (std::is_same_v<T, std::string>) {
      fits = value.is_string();
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      fits = value.is_array() && std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_string(); });
    } else if constexpr (std::is_same_v<T, Pins>) {
      fits = value.is_object() && std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_string(); });
    } else if constexpr (std::is_integral_v<T>) {
      // Protobuf JSON writes 64-bit integers as strings.
      if (value.is_string()) {
        int64_t parsed = 0;
        if (absl::SimpleAtoi(value.get<std::string>(), &parsed)) {
          *out = static_cast<T>(parsed);
          return;
        }
      }
      fits = value.is_number_integer();
    } else {
      fits = value.is_number();
    }
    if (fits) {
      *out = value.get<T>();
    } else if (status_.ok()) {
      status_ =
          absl::InvalidArgumentError(absl::StrCat("compile request: ", path, " has a wrong type: ", value.dump()));
    }
  }

  const json& root_;
  absl::Status status_;
};

// Of a step of that many seconds, on the peak of the candidate's type.
double Mfu(const CompileRequest& request, const Candidate& c, double seconds) {
  const double peak = request.plan.cluster.machine.CountedPeak(c.plan.compute_dtype);
  return seconds > 0 && peak > 0 ? c.model_flops / (seconds * peak * static_cast<double>(c.plan.num_ranks())) : 0.0;
}

// "predicted_step_seconds_range" and what follows from it: [least, most].
void AddRanges(const CompileRequest& request, double seconds, double tokens, double mfu, json& out) {
  if (seconds <= 0) return;
  const PredictionRange range = StepRange(request.plan.cluster.machine);
  out["predicted_step_seconds_range"] = {seconds * range.low, seconds * range.high};
  out["predicted_tokens_per_second_range"] = {tokens / (seconds * range.high), tokens / (seconds * range.low)};
  out["predicted_mfu_range"] = {mfu / range.high, mfu / range.low};
}

json BytesRange(int64_t bytes, PredictionRange range) {
  return {static_cast<int64_t>(static_cast<double>(bytes) * range.low),
          static_cast<int64_t>(static_cast<double>(bytes) * range.high)};
}

json MemoryJson(const Machine& machine, const Candidate& c) {
  json largest = json::array();
  for (const MemoryUse::Buffer& buffer : c.memory.largest)
    largest.push_back({{"name", buffer.name}, {"bytes", buffer.bytes}});
  return {{"arena_bytes", c.memory.arena_bytes},
          {"workspace_bytes", c.memory.workspace_bytes},
          {"weights_bytes", c.memory.weights_bytes + c.memory.copies_bytes},
          {"copies_bytes", c.memory.copies_bytes},
          {"gradients_bytes", c.memory.gradients_bytes},
          {"optimizer_bytes", c.memory.optimizer_bytes},
          {"stash_bytes", c.memory.stash_bytes},
          {"temporaries_bytes", c.memory.temporaries_bytes},
          {"buffers_bytes", BufferBytes(machine, c.plan.mesh)},
          {"idle_bytes", IdleBytes(machine)},
          {"checkpoint_bytes", c.memory.weights_bytes + c.memory.optimizer_bytes},
          {"total_bytes", c.plan.total_bytes},
          {"largest", std::move(largest)}};
}

// The machine's peak in a type of 16 bits is bf16's, and in f32 that without TF32: what the job asks for instead.
absl::Status TakePeaks(PlanRequest& plan) {
  const auto lacks = [&](const char* field, const char* what) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": the job's devices (",
                                                   plan.device.model.empty() ? plan.device.kind : plan.device.model,
                                                   ") have no ", what, "; leave it out"));
  };
  Machine& machine = plan.cluster.machine;
  if (plan.fp16) {
    const auto peak = plan.device.matmul_flops_per_second.find(DType::kF16);
    if (peak == plan.device.matmul_flops_per_second.end()) return lacks("compute.fp16", "products in float16");
    // Of a preset, both types have one peak.
    if (machine.measured) machine.half_flops_per_second = peak->second;
  }
  if (plan.tf32) {
    if (machine.tf32_flops_per_second <= 0) return lacks("compute.tf32", "TF32");
    machine.f32_flops_per_second = machine.tf32_flops_per_second;
  }
  return absl::OkStatus();
}

// As the keys of a device's matmul_flops_per_second.
std::string PrecisionName(const CompileRequest& request, DType compute) {
  return request.plan.tf32 && compute == DType::kF32 ? "tf32" : std::string(Name(compute));
}

// What the job says of model, data and training.
void ReadTraining(Reader& r, CompileRequest& request) {
  PlanRequest& plan = request.plan;
  TrainingOptions& train = plan.training;
  r.Get("job.name", &request.name);
  r.Get("job.model.path", &request.model_path);
  r.Get("job.model.graph", &request.graph_path);
  r.GetEnum("job.model.weights", "WEIGHTS_", &request.weights);
  r.Get("job.data.path", &request.data_path);
  r.Get("job.data.seq_len", &plan.seq_len);
  r.Get("job.train.max_steps", &train.max_steps);
  r.Get("job.train.num_train_epochs", &plan.num_train_epochs);
  r.Get("data.num_samples", &plan.num_samples);
  r.Get("job.train.global_batch_size", &plan.global_batch);
  r.Get("job.train.per_device_train_batch_size", &plan.micro_batch);
  r.Get("job.train.learning_rate", &train.learning_rate);
  r.GetEnum("job.train.lr_scheduler_type", "LR_SCHEDULER_TYPE_", &train.lr_scheduler_type);
  r.Get("job.train.warmup_steps", &train.warmup_steps);
  r.Get("job.train.min_lr_ratio", &train.min_lr_ratio);
  r.Get("job.train.weight_decay", &train.weight_decay);
  r.Get("job.train.adam_beta1", &train.adam_beta1);
  r.Get("job.train.adam_beta2", &train.adam_beta2);
  r.Get("job.train.adam_epsilon", &train.adam_epsilon);
  r.Get("job.train.max_grad_norm", &train.max_grad_norm);
  r.Get("job.train.seed", &request.seed);
  std::optional<int64_t> trace_step;
  r.Get("job.train.trace_step", &trace_step);
  request.traces = trace_step.has_value();
}

// Of types and memory.
void ReadCompute(Reader& r, CompileRequest& request) {
  PlanRequest& plan = request.plan;
  TrainingOptions& train = plan.training;
  r.Get("job.compute.bf16", &plan.bf16);
  r.Get("job.compute.fp16", &plan.fp16);
  r.Get("job.compute.tf32", &plan.tf32);
  if (plan.fp16) {
    train.loss_scale = TrainingOptions::LossScale();
    r.Get("job.compute.grad_scaler.init_scale", &train.loss_scale->init_scale);
    r.Get("job.compute.grad_scaler.growth_interval", &train.loss_scale->growth_interval);
  }
  std::string reduce_dtype = "float32", residual_dtype = "float32";
  r.GetEnum("job.compute.reduce_dtype", "REDUCE_DTYPE_", &reduce_dtype);
  r.GetEnum("job.compute.residual_dtype", "RESIDUAL_DTYPE_", &residual_dtype);
  if (reduce_dtype == "bfloat16") plan.reduce_dtype = DType::kBF16;
  if (residual_dtype == "bfloat16") plan.residual_dtype = DType::kBF16;
  if (residual_dtype == "auto") plan.residual_dtype.reset();
  std::optional<bool> gc;
  r.Get("job.memory.gc", &gc);
  if (gc.has_value()) plan.recompute_units = *gc ? PlanRequest::kAllUnits : 0;
  r.Get("job.memory.gc_cls", &request.gc_cls);
  r.Get("job.memory.gc_cnt", &plan.recompute_units);
  r.Get("data.vocab_size", &request.vocab_size);
  r.Get("data.num_tokens", &request.num_tokens);
  r.Get("data.separate_documents", &request.separate_documents);
}

// Of the layout.
absl::Status ReadLayout(Reader& r, CompileRequest& request) {
  PlanRequest& plan = request.plan;
  r.Get("job.dist.fsdp.zero_stage", &plan.zero_stage);
  std::optional<bool> reshard;
  r.Get("job.dist.fsdp.reshard_after_forward", &reshard);
  if (reshard.has_value()) plan.reshard_units = *reshard ? PlanRequest::kAllUnits : 0;
  r.Get("job.dist.fsdp.reshard_cnt", &plan.reshard_units);
  r.Get("job.dist.fsdp.reduce_each_micro_batch", &plan.reduce_each_micro_batch);
  r.Get("job.dist.ep.buffer_factor", &plan.expert_buffer_factor);
  r.Get("job.dist.pp.num_micro_batches", &plan.num_micro_batches);
  r.Get("job.dist.pp.split_points", &plan.split_points);
  std::string schedule;
  r.GetEnum("job.dist.pp.schedule", "PIPELINE_SCHEDULE_", &schedule);
  if (!schedule.empty()) {
    TACC_ASSIGN_OR_RETURN(plan.schedule, ParsePipelineSchedule(schedule));
  }
  r.Get("job.dist.pp.num_chunks", &plan.num_chunks);
  r.Get("job.dist.sp.size", &plan.sp);
  if (plan.sp > 1) plan.sizes[Axis::kCp] = plan.sp;
  for (Axis axis : kJobAxes) r.Get(absl::StrCat("job.dist.", Name(axis), ".size"), &plan.sizes[axis]);
  r.Get("job.dist.topology", &plan.topology);
  r.Get("job.dist.pins", &plan.pins);
  r.Get("job.dist.fsdp.wrap_layer_cls", &request.wrap_layer_cls);
  int64_t workers = 1;
  for (Axis axis : kJobAxes) workers *= plan.sizes[axis].value_or(1);
  r.Get("job.resources.workers", &workers);
  plan.world = workers;
  r.Get("world", &plan.world);
  return absl::OkStatus();
}

void ReadDevice(Reader& r, DeviceProfile& device) {
  r.Get("device.name", &device.name);
  r.Get("device.kind", &device.kind);
  r.Get("device.model", &device.model);
  r.Get("device.threads", &device.threads);
  r.Get("device.memory_bytes", &device.memory_bytes);
  r.Get("device.matmul_fraction", &device.matmul_fraction);
  for (const char* backend : {"tiles", "tensor", "flash", "cudnn"}) {
    double speed = 0;
    r.Get(absl::StrCat("device.attention_flops_per_second.", backend), &speed);
    if (speed > 0) device.attention_flops_per_second[backend] = speed;
  }
  r.Get("device.memory_bytes_per_second", &device.memory_bytes_per_second);
  r.Get("device.link_bytes_per_second", &device.link_bytes_per_second);
  r.Get("device.link_latency_seconds", &device.link_latency_seconds);
  r.Get("device.cpus", &device.cpus);
  r.Get("device.multiplies_bf16", &device.multiplies_bf16);
  r.Get("device.matmul_flops_per_second.tf32", &device.tf32_flops_per_second);
  r.Get("device.devices_per_machine", &device.devices_per_machine);
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto read = [&](const char* peaks, std::map<DType, double>* out) {
      double peak = 0;
      r.Get(absl::StrCat("device.", peaks, ".", Name(dtype)), &peak);
      if (peak > 0) (*out)[dtype] = peak;
    };
    read("matmul_flops_per_second", &device.matmul_flops_per_second);
    read("peak_flops_per_second", &device.peak_flops_per_second);
  }
}

}  // namespace

absl::StatusOr<CompileRequest> ParseCompileRequest(absl::string_view text) {
  const json root = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded() || !root.is_object()) return absl::InvalidArgumentError("compile request: not a JSON object");
  CompileRequest request;
  PlanRequest& plan = request.plan;
  DeviceProfile& device = plan.device;
  Reader r(root);
  ReadTraining(r, request);
  ReadCompute(r, request);
  TACC_RETURN_IF_ERROR(ReadLayout(r, request));
  ReadDevice(r, device);
  bool is_deterministic = false;
  r.Get("job.train.deterministic", &is_deterministic);
  TACC_RETURN_IF_ERROR(r.status());
  if (plan.world < 1)
    return absl::InvalidArgumentError(absl::StrCat("compile request: world = ", plan.world, "; wanted at least 1"));
  if (const json* cluster = Find(root, "cluster")) {
    TACC_ASSIGN_OR_RETURN(plan.cluster, ParseCluster(cluster->dump()));
    plan.world = plan.cluster.num_devices();
    device = ProfileOf(plan.cluster.machine);
  } else {
    TACC_ASSIGN_OR_RETURN(plan.cluster, MakeCluster(MachineOf(device), plan.world));
  }
  const TargetKind* kind = FindTargetKind(device.kind);
  device.sums_in_order = plan.cluster.machine.sums_in_order =
      is_deterministic && kind != nullptr && kind->sums_in_library;
  // Of devices that are not known, neither is what they lack (`tacc-plan check`).
  if (Find(root, "cluster") != nullptr || Find(root, "device") != nullptr) TACC_RETURN_IF_ERROR(TakePeaks(plan));
  if (request.model_path.empty() == request.graph_path.empty()) {
    return absl::InvalidArgumentError("compile request: give one of job.model.path and job.model.graph");
  }
  return request;
}

absl::Status CheckBatchAgainstData(const CompileRequest& request, int64_t global_batch) {
  const int64_t samples = request.plan.num_samples;
  if (samples == 0 || global_batch <= samples) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(request.data_path, ": too little data: ", request.num_tokens, " tokens make ", samples,
                   " samples of seq_len = ", request.plan.seq_len, ", but the planned global batch has ", global_batch,
                   "; prepare more text, lower data.seq_len, or set train.global_batch_size to at most ", samples));
}

nlohmann::json SettingsJson(const CompileRequest& request, const Candidate& c) {
  const Layout& l = c.layout;
  json settings = {
      {"resources", {{"workers", l.num_ranks()}}},
      {"train", {{"global_batch_size", c.plan.global_batch()}, {"per_device_train_batch_size", c.plan.micro_batch}}},
      {"memory", {{"gc", l.recompute}}}};
  if (!request.plan.fp16 && !request.plan.tf32) settings["compute"]["bf16"] = c.plan.compute_dtype == DType::kBF16;
  if (!request.plan.residual_dtype.has_value())
    settings["compute"]["residual_dtype"] = c.plan.residual_dtype == DType::kBF16 ? "bfloat16" : "float32";
  json& dist = settings["dist"];
  dist = json::object();
  for (Axis axis : kJobAxes) {
    if (l.sizes[axis] > 1) dist[std::string(Name(axis))]["size"] = l.sizes[axis];
  }
  if (l.sizes[Axis::kEp] > 1 && request.plan.expert_buffer_factor.has_value())
    dist["ep"]["buffer_factor"] = *request.plan.expert_buffer_factor;
  if (l.sizes[Axis::kCp] > 1 && request.plan.sp > 1) dist["sp"]["size"] = request.plan.sp;
  if (l.sizes[Axis::kPp] > 1) {
    dist["pp"]["num_micro_batches"] = l.accumulation;
    dist["pp"]["schedule"] = std::string(Name(l.schedule));
    if (l.schedule == PipelineSchedule::kInterleaved) dist["pp"]["num_chunks"] = l.chunks;
  }
  if (l.shards() > 1) {
    dist["fsdp"]["zero_stage"] = l.zero_stage;
    // In a pipeline, and where weights are whole, there is nothing to choose.
    if (l.zero_stage == 3 && l.sizes[Axis::kPp] == 1) dist["fsdp"]["reshard_after_forward"] = l.reshard;
    if (l.zero_stage == 3 && l.accumulation > 1) dist["fsdp"]["reduce_each_micro_batch"] = l.reduce_each_micro_batch;
  }
  return settings;
}

nlohmann::json CandidateJson(const CompileRequest& request, const Candidate& c) {
  json mesh = json::object(), axes = json::array();
  for (const Mesh::Axis& axis : c.plan.mesh.axes) {
    mesh[axis.name] = axis.size;
    axes.push_back(axis.name);
  }
  const double peak = request.plan.cluster.machine.CountedPeak(c.plan.compute_dtype);
  const double seconds = c.plan.step_seconds;
  const double tokens = static_cast<double>(c.plan.global_batch() * c.plan.seq_len);
  json out = {{"world", c.plan.num_ranks()},
              {"mesh", std::move(mesh)},
              {"axes", std::move(axes)},
              {"precision", PrecisionName(request, c.plan.compute_dtype)},
              {"residual_dtype", std::string(Name(c.plan.residual_dtype))},
              {"per_device_train_batch_size", c.plan.micro_batch},
              {"global_batch_size", c.plan.global_batch()},
              {"max_steps", MaxSteps(request.plan, c.plan.global_batch()).value_or(0)},
              {"accumulation", c.plan.accumulation},
              {"seq_len", c.plan.seq_len},
              {"zero_stage", c.plan.zero_stage},
              {"reduce_each_micro_batch", c.plan.reduce_each_micro_batch != 0},
              {"keeps_copies", c.plan.keeps_copies != 0},
              {"kept_units", c.plan.kept_units},
              {"recompute_units", c.plan.recompute_units},
              {"gc", c.layout.recompute},
              {"schedule", std::string(Name(c.plan.schedule))},
              {"num_chunks", c.plan.num_chunks},
              {"threads", c.plan.threads},
              {"num_parameters", c.num_parameters},
              {"flops_per_step", c.model_flops},
              {"matmul_flops_per_rank", c.cost.matmul_flops},
              {"memory", MemoryJson(request.plan.cluster.machine, c)},
              {"available_bytes", request.plan.device.memory_bytes},
              {"fits", c.fits},
              {"settings", SettingsJson(request, c)},
              {"predicted_step_seconds", seconds},
              {"predicted_compute_seconds", c.times.compute_seconds},
              {"predicted_communication_seconds", c.times.communication_seconds},
              {"predicted_exposed_communication_seconds", c.times.exposed_seconds},
              {"predicted_idle_seconds", c.times.idle_seconds},
              {"predicted_wait_seconds", c.wait_seconds},
              {"predicted_tokens_per_second", seconds > 0 ? tokens / seconds : 0.0},
              {"predicted_mfu", Mfu(request, c, seconds)},
              {"communication_bytes_per_rank", c.cost.sent_bytes},
              {"num_collectives", c.cost.num_collectives},
              {"packed_bytes_per_rank", c.cost.packed_bytes},
              {"num_packed_collectives", c.cost.num_packed},
              {"peak_flops_per_second", peak},
              {"peak_source", request.plan.cluster.machine.PeakSource(c.plan.compute_dtype)},
              {"estimated", false}};
  if (const auto& risk = c.overflow_risk; risk.has_value()) {
    out["expert_overflow"] = {{"share_at_random", risk->share_at_random},
                              {"buffer_factor", risk->buffer_factor},
                              {"asked_for", risk->is_asked_for}};
  }
  if (c.composed) out["total_bytes_range"] = BytesRange(c.plan.total_bytes, kComposedBytesRange);
  AddRanges(request, seconds, tokens, Mfu(request, c, seconds), out);
  return out;
}

nlohmann::json LoserJson(const CompileRequest& request, const Loser& loser, const Candidate& best) {
  const auto& [layout, step, memory] = loser.scored;
  const Machine& machine = request.plan.cluster.machine;
  json mesh = json::object(), axes = json::array();
  for (const Mesh::Axis& axis : layout.mesh().axes) {
    if (axis.size == 1 && axis.name != "dp" && axis.name != "fsdp") continue;
    mesh[axis.name] = axis.size;
    axes.push_back(axis.name);
  }
  const auto bytes = [](double value) { return static_cast<int64_t>(value); };
  const double tokens = static_cast<double>(layout.global_batch() * request.plan.seq_len);
  const int64_t fixed_bytes = IdleBytes(machine) + BufferBytes(machine, layout.mesh());
  json bytes_range = BytesRange(bytes(memory.total()), kEstimatedBytesRange);
  for (json& end : bytes_range) end = end.get<int64_t>() + fixed_bytes;
  json out = {{"estimated", true},
              {"world", layout.num_ranks()},
              {"mesh", std::move(mesh)},
              {"axes", std::move(axes)},
              {"precision", PrecisionName(request, best.plan.compute_dtype)},
              {"per_device_train_batch_size", layout.micro_batch},
              {"global_batch_size", layout.global_batch()},
              {"accumulation", layout.accumulation},
              {"schedule", std::string(Name(layout.schedule))},
              {"num_chunks", layout.chunks},
              {"gc", layout.recompute},
              {"zero_stage", layout.zero_stage},
              {"reduce_each_micro_batch", layout.reduce_each_micro_batch},
              {"memory",
               {{"weights_bytes", bytes(memory.weights + memory.copies)},
                {"gradients_bytes", bytes(memory.gradients)},
                {"optimizer_bytes", bytes(memory.optimizer)},
                {"temporaries_bytes", bytes(memory.activations + memory.temporaries)},
                {"total_bytes", bytes(memory.total()) + fixed_bytes}}},
              {"total_bytes_range", std::move(bytes_range)},
              {"available_bytes", request.plan.device.memory_bytes},
              {"fits", loser.fits},
              {"predicted_step_seconds", step.seconds},
              {"predicted_exposed_communication_seconds", step.communication()},
              {"predicted_tokens_per_second", step.seconds > 0 ? tokens / step.seconds : 0.0},
              {"predicted_mfu", Mfu(request, best, step.seconds)},
              {"why_not", loser.why}};
  AddRanges(request, step.seconds, tokens, Mfu(request, best, step.seconds), out);
  return out;
}

nlohmann::json CaptureJson(const CompileRequest& request, const std::vector<Program>& stages) {
  const TargetKind* kind = FindTargetKind(request.plan.device.kind);
  if (kind == nullptr || !kind->has_graphs) return nullptr;
  json list = json::array();
  for (const Program& program : stages) {
    for (const CapturePart& part : CapturePlan(program, TalkPlace::kDevice)) {
      list.push_back({{"stage", program.stage},
                      {"graph", part.graph},
                      {"nodes", part.num_nodes},
                      {"first_node", part.first_node}});
      if (!part.not_captured.empty()) list.back()["not_captured"] = part.not_captured;
    }
  }
  return list;
}

std::string SummaryJson(const CompileRequest& request, const Candidate& candidate, const std::vector<Program>& stages,
                        const std::vector<std::string>& notes, absl::string_view fingerprint,
                        const std::string& architecture, const std::map<std::string, std::string>& facts,
                        const std::map<std::string, std::string>& fact_keys) {
  json summary = CandidateJson(request, candidate);
  summary["notes"] = notes;
  summary["fingerprint"] = std::string(fingerprint);
  if (!architecture.empty()) summary["architecture"] = architecture;
  summary["config"] = facts;
  if (!fact_keys.empty()) summary["config_keys"] = fact_keys;
  if (json capture = CaptureJson(request, stages); !capture.is_null()) summary["capture"] = std::move(capture);
  return summary.dump(1);
}

}  // namespace tacc::graph
