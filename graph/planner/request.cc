#include "graph/planner/request.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/targets/targets.h"
#include "json/parse_json.h"

namespace tacc::graph {
namespace {

using nlohmann::json;

// As of a cluster file: what is computed of them fits in 64 bits.
constexpr int64_t kMaxDevices = 1'000'000;

class Reader {
 public:
  explicit Reader(const json& root) : root_(root) {}

  template <typename T>
  void Get(absl::string_view path, T* out) {
    if (const json* value = Find(path)) Take(path, *value, out);
  }
  template <typename T>
  void Get(absl::string_view path, std::optional<T>* out) {
    if (const json* value = Find(path)) Take(path, *value, &out->emplace());
  }
  // An enum value PREFIX_WORD as "word".
  void GetEnum(absl::string_view path, absl::string_view prefix, std::string* out) {
    std::string text;
    Get(path, &text);
    if (text.empty()) return;
    *out = absl::AsciiStrToLower(text.rfind(std::string(prefix), 0) == 0 ? text.substr(prefix.size()) : text);
  }
  // Each entry of a map of sections, by its name.
  void ForEach(absl::string_view path, const std::function<void(const std::string& name, Reader& fields)>& visit) {
    const json* map = Find(path);
    if (map == nullptr) return;
    if (!map->is_object()) return WrongType(path, *map);
    for (const auto& [name, fields] : map->items()) {
      Reader reader(fields);
      visit(name, reader);
      if (status_.ok()) status_ = reader.status();
    }
  }
  // The value at a path such as "job.train.max_steps"; null where it is not there, or null.
  const json* Find(absl::string_view path) {
    const json* at = &root_;
    size_t begin = 0;
    while (begin <= path.size() && !at->is_null()) {
      const size_t end = std::min(path.find('.', begin), path.size());
      if (!at->is_object()) {
        WrongType(path.substr(0, begin - 1), *at);
        return nullptr;
      }
      const auto found = at->find(std::string(path.substr(begin, end - begin)));
      if (found == at->end()) return nullptr;
      at = &*found;
      begin = end + 1;
    }
    return at->is_null() ? nullptr : at;
  }
  // The first of what has a wrong type.
  const absl::Status& status() const { return status_; }

 private:
  void WrongType(absl::string_view path, const json& value) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(absl::StrCat("compile request: ", path, " has a wrong type: ", value.dump()));
  }

  template <typename T>
  void Take(absl::string_view path, const json& value, T* out) {
    bool fits = false;
    if constexpr (std::is_same_v<T, bool>) {
      fits = value.is_boolean();
    } else if constexpr (std::is_same_v<T, std::string>) {
      fits = value.is_string();
    } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
      fits = value.is_array() && std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_string(); });
    } else if constexpr (std::is_same_v<T, std::vector<double>>) {
      fits = value.is_array() && std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_number(); });
    } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
      fits = value.is_array() &&
             std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_number_integer(); });
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
    } else {
      WrongType(path, value);
    }
  }

  const json& root_;
  absl::Status status_;
};

// Gives the machine the peaks of the types that the job asks for: without it that in 16 bits is bf16's, that in f32 the
// one without TF32. Errors: InvalidArgument when the devices have no such type.
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

// Reads what the job says of its data, and what the data is.
void ReadData(Reader& r, CompileRequest& request) {
  r.Get("job.data.path", &request.data_path);
  request.plan.training.has_client = r.Find("job.data.client") != nullptr;
  r.Get("job.data.seq_len", &request.plan.seq_len);
  r.Get("job.data.client.buckets", &request.plan.buckets);
  std::erase(request.plan.buckets, request.plan.seq_len);
  r.Get("data.num_samples", &request.plan.num_samples);
  r.Get("data.num_tokens", &request.num_tokens);
  r.Get("data.vocab_size", &request.vocab_size);
  r.Get("data.separate_documents", &request.separate_documents);
}

// Reads what the job says of the optimizer and of the learning rate.
void ReadOptimizer(Reader& r, CompileRequest& request) {
  TrainingOptions& train = request.plan.training;
  r.GetEnum("job.train.optim", "OPTIM_", &train.optim);
  r.Get("job.train.momentum", &train.momentum);
  r.Get("job.train.dampening", &train.dampening);
  r.Get("job.train.nesterov", &train.nesterov);
  r.Get("job.train.ns_steps", &train.ns_steps);
  r.GetEnum("job.train.adjust_lr_fn", "ADJUST_LR_FN_", &train.adjust_lr_fn);
  r.Get("job.train.ema_decay", &train.ema_decay);
  LrScheduleOptions& schedule = train.lr_schedule;
  r.Get("job.train.lr_scheduler_kwargs.num_cycles", &schedule.num_cycles);
  r.Get("job.train.lr_scheduler_kwargs.power", &schedule.power);
  r.Get("job.train.lr_scheduler_kwargs.timescale", &schedule.timescale);
  r.Get("job.train.lr_scheduler_kwargs.num_decay_steps", &schedule.num_decay_steps);
  r.Get("job.train.lr_scheduler_kwargs.decay_type", &schedule.decay_type);
  r.Get("job.train.lr_factors", &schedule.factors);
  r.Get("job.train.lr_factors_path", &request.lr_factors_path);
  if (!schedule.factors.empty() || !request.lr_factors_path.empty()) train.lr_scheduler_type = "table";
  r.ForEach("job.train.param_groups", [&](const std::string& pattern, Reader& fields) {
    ParamGroup& group = request.finetune.param_groups[pattern];
    fields.Get("learning_rate", &group.learning_rate);
    fields.Get("weight_decay", &group.weight_decay);
    fields.GetEnum("optim", "OPTIM_", &group.optim);
  });
}

// Reads what the job says of model and training.
void ReadTraining(Reader& r, CompileRequest& request) {
  PlanRequest& plan = request.plan;
  TrainingOptions& train = plan.training;
  r.Get("job.name", &request.name);
  r.Get("job.model.path", &request.model_path);
  r.Get("job.model.graph", &request.graph_path);
  r.GetEnum("job.model.weights", "WEIGHTS_", &request.weights);
  r.Get("job.train.max_steps", &train.max_steps);
  r.Get("job.train.num_train_epochs", &plan.num_train_epochs);
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
  ReadOptimizer(r, request);
  r.Get("job.train.max_grad_norm", &train.max_grad_norm);
  r.Get("job.train.seed", &request.seed);
  r.Get("job.train.freeze", &request.finetune.freeze);
  if (r.Find("job.train.lora") != nullptr) {
    LoraRequest& lora = request.finetune.lora.emplace();
    r.Get("job.train.lora.r", &lora.r);
    r.Get("job.train.lora.lora_alpha", &lora.alpha);
    r.Get("job.train.lora.lora_dropout", &lora.dropout);
    r.Get("job.train.lora.use_rslora", &lora.use_rslora);
    r.Get("job.train.lora.target_modules", &lora.target_modules);
    r.Get("job.train.lora.modules_to_save", &lora.modules_to_save);
    r.Get("job.train.lora.init_from", &lora.init_from);
  }
  std::optional<int64_t> trace_step;
  r.Get("job.train.trace_step", &trace_step);
  request.traces = trace_step.has_value();
}

// Reads what the job says of types and memory.
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
  r.Get("job.compute.sync_batchnorm", &plan.sync_batchnorm);
  std::optional<bool> gc;
  r.Get("job.memory.gc", &gc);
  if (gc.has_value()) plan.recompute_units = *gc ? PlanRequest::kAllUnits : 0;
  r.Get("job.memory.gc_cls", &request.gc_cls);
  r.Get("job.memory.gc_cnt", &plan.recompute_units);
}

// Reads what the job says of the layout. Errors: InvalidArgument for a schedule that is not known.
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
  for (Axis axis : kJobAxes) {
    if (__builtin_mul_overflow(workers, plan.sizes[axis].value_or(1), &workers))
      return absl::InvalidArgumentError("compile request: the sizes under job.dist multiply to more than 64 bits");
  }
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
  const json root = ParseJson(text);
  if (root.is_discarded() || !root.is_object()) return absl::InvalidArgumentError("compile request: not a JSON object");
  CompileRequest request;
  PlanRequest& plan = request.plan;
  DeviceProfile& device = plan.device;
  Reader r(root);
  ReadData(r, request);
  ReadTraining(r, request);
  ReadCompute(r, request);
  TACC_RETURN_IF_ERROR(ReadLayout(r, request));
  ReadDevice(r, device);
  bool is_deterministic = false;
  r.Get("job.train.deterministic", &is_deterministic);
  TACC_RETURN_IF_ERROR(r.status());
  if (plan.world < 1 || plan.world > kMaxDevices) {
    return absl::InvalidArgumentError(
        absl::StrCat("compile request: world = ", plan.world, "; wanted 1 to ", kMaxDevices));
  }
  if (device.devices_per_machine < 0 || device.devices_per_machine > kMaxDevices) {
    return absl::InvalidArgumentError(absl::StrCat(
        "compile request: device.devices_per_machine = ", device.devices_per_machine, "; wanted 0 to ", kMaxDevices));
  }
  const json* cluster = r.Find("cluster");
  if (cluster != nullptr) {
    TACC_ASSIGN_OR_RETURN(plan.cluster, ParseCluster(cluster->dump()));
    plan.world = plan.cluster.num_devices();
    request.is_for_sheet = true;
    device = ProfileOf(plan.cluster.machine);
  } else {
    TACC_ASSIGN_OR_RETURN(plan.cluster, MakeCluster(MachineOf(device), plan.world));
  }
  const TargetKind* kind = FindTargetKind(device.kind);
  device.sums_in_order = plan.cluster.machine.sums_in_order =
      is_deterministic && kind != nullptr && kind->sums_in_library;
  // Of devices that are not known, neither is what they lack (`tacc-plan check`).
  if (cluster != nullptr || r.Find("device") != nullptr) TACC_RETURN_IF_ERROR(TakePeaks(plan));
  if (request.model_path.empty() == request.graph_path.empty()) {
    return absl::InvalidArgumentError("compile request: give one of job.model.path and job.model.graph");
  }
  return request;
}

absl::Status ReadLrFactors(CompileRequest& request) {
  if (request.lr_factors_path.empty()) return absl::OkStatus();
  const std::string what = absl::StrCat("train.lr_factors_path: ", request.lr_factors_path);
  std::error_code error;
  if (std::filesystem::exists(request.lr_factors_path, error) &&
      !std::filesystem::is_regular_file(request.lr_factors_path, error)) {  // a pipe would be waited for
    return absl::InvalidArgumentError(absl::StrCat(what, ": not a file; give a text file of numbers, one a line"));
  }
  std::ifstream file(request.lr_factors_path);
  if (!file)
    return absl::NotFoundError(absl::StrCat(what, " cannot be read; it is a text file of numbers, one a line"));
  std::vector<double>& factors = request.plan.training.lr_schedule.factors;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    double factor = 0;
    if (text.empty()) continue;
    if (!absl::SimpleAtod(text, &factor) || !std::isfinite(factor) || factor < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ":", number, ": not a factor; wanted a finite number, at least 0"));
    }
    factors.push_back(factor);
  }
  if (factors.empty()) return absl::InvalidArgumentError(absl::StrCat(what, " has no numbers"));
  return absl::OkStatus();
}

absl::Status CheckBatchAgainstData(const CompileRequest& request, int64_t global_batch) {
  const int64_t samples = request.plan.num_samples;
  if (samples == 0 || global_batch <= samples) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(request.data_path, ": too little data: ", request.num_tokens, " tokens make ", samples,
                   " samples of seq_len = ", request.plan.seq_len, ", but the planned global batch has ", global_batch,
                   "; prepare more text, lower data.seq_len, or set train.global_batch_size to at most ", samples));
}

}  // namespace tacc::graph
