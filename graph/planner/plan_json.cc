#include "graph/planner/plan_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "graph/ir/capture.h"
#include "graph/planner/prediction_range.h"
#include "graph/targets/targets.h"

namespace tacc::graph {
namespace {

using nlohmann::json;

// MFU of a step of that many seconds, counted on the peak of the candidate's type.
double Mfu(const CompileRequest& request, const Candidate& c, double seconds) {
  const double peak = request.plan.cluster.machine.CountedPeak(c.plan.compute_dtype);
  return seconds > 0 && peak > 0 ? c.model_flops / (seconds * peak * static_cast<double>(c.plan.num_ranks())) : 0.0;
}

// Adds "predicted_step_seconds_range" and what follows from it: [least, most].
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
          {"frozen_bytes", c.memory.frozen_bytes},
          {"gradients_bytes", c.memory.gradients_bytes},
          {"optimizer_bytes", c.memory.optimizer_bytes},
          {"stash_bytes", c.memory.stash_bytes},
          {"temporaries_bytes", c.memory.temporaries_bytes},
          {"buffers_bytes", BufferBytes(machine, c.plan.mesh)},
          {"idle_bytes", IdleBytes(machine)},
          {"checkpoint_bytes", c.memory.weights_bytes - c.memory.frozen_bytes + c.memory.optimizer_bytes},
          {"total_bytes", c.plan.total_bytes},
          {"largest", std::move(largest)}};
}

// Of a rank to its client: two are kept (worker/rank/session/client_link.cc) and one is made.
constexpr int64_t kAnswersAtATime = 3;

// A key of a device's matmul_flops_per_second.
std::string PrecisionName(const CompileRequest& request, DType compute) {
  return request.plan.tf32 && compute == DType::kF32 ? "tf32" : std::string(Name(compute));
}

}  // namespace

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
              {"num_trained_parameters", c.num_trained_parameters},
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

int64_t OutputsBytes(const Candidate& candidate, const std::vector<Program>& stages) {
  int64_t most = 0;
  for (const Program& program : stages) {
    int64_t bytes = 0;
    for (const Call& call : program.eval) {
      const Graph& graph = *program.FindGraph(call.graph);
      for (const Node& node : graph.nodes) {
        if (node.op == Op::kOutput && GetAttr<bool>(node.attrs, "returned"))
          bytes += graph.type(node.operands[0]).bytes();
      }
    }
    most = std::max(most, bytes);
  }
  return most * (1 + kAnswersAtATime * candidate.plan.accumulation);
}

std::string SummaryJson(const CompileRequest& request, const Candidate& candidate, const std::vector<Program>& stages,
                        const SummaryParts& parts) {
  json summary = CandidateJson(request, candidate);
  summary["memory"]["outputs_bytes"] = OutputsBytes(candidate, stages);
  summary["notes"] = parts.notes;
  summary["fingerprint"] = parts.fingerprint;
  if (!parts.architecture.empty()) summary["architecture"] = parts.architecture;
  summary["weights"] = parts.is_pretrained ? "pretrained" : "random";
  summary["config"] = parts.facts;
  if (!parts.fact_keys.empty()) summary["config_keys"] = parts.fact_keys;
  if (!parts.adapter_config.empty()) summary["adapter_config"] = parts.adapter_config;
  for (const Bucket& bucket : parts.buckets) {
    summary["buckets"].push_back(
        {{"seq_len", bucket.seq_len}, {"flops_per_step", bucket.model_flops}, {"compile_seconds", bucket.seconds}});
  }
  if (json capture = CaptureJson(request, stages); !capture.is_null()) summary["capture"] = std::move(capture);
  return summary.dump(1);
}

}  // namespace tacc::graph
