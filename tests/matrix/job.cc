#include "tests/matrix/job.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "graph/import/families.h"
#include "graph/import/finetune/freeze.h"
#include "graph/import/finetune/lora.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/planner/compile_plan.h"
#include "graph/planner/planner.h"
#include "nlohmann/json.hpp"

namespace tacc::matrix {
namespace {

using nlohmann::json;

constexpr int64_t kHidden = 64, kHeads = 8, kKvHeads = 4, kInner = 128, kExperts = 8, kExpertInner = 64,
                  kExpertsPerToken = 2;
constexpr uint64_t kSeed = 7;
constexpr int64_t kRank = 4;  // of adapters

json Config(const Job& job) {
  if (job.family == "bloom") {
    return {{"model_type", "bloom"},     {"vocab_size", job.vocab}, {"hidden_size", kHidden},
            {"n_layer", job.num_layers}, {"n_head", kHeads},        {"hidden_dropout", job.dropout}};
  }
  if (job.family == "chatglm") {  // q, k and v of several groups in one matrix, gate and up in another
    return {{"model_type", "chatglm"},
            {"padded_vocab_size", job.vocab},
            {"hidden_size", kHidden},
            {"ffn_hidden_size", kInner},
            {"num_layers", job.num_layers},
            {"num_attention_heads", kHeads},
            {"kv_channels", kHidden / kHeads},
            {"seq_length", kSeqLen},
            {"multi_query_attention", true},
            {"multi_query_group_num", kKvHeads},
            {"add_qkv_bias", true}};
  }
  json config = {{"model_type", job.family},
                 {"vocab_size", job.vocab},
                 {"hidden_size", kHidden},
                 {"intermediate_size", kInner},
                 {"num_hidden_layers", job.num_layers},
                 {"num_attention_heads", kHeads},
                 {"num_key_value_heads", job.family == "llama" ? kHeads : kKvHeads},
                 {"max_position_embeddings", kSeqLen}};
  if (job.family == "qwen3") config["head_dim"] = kHidden / kHeads;
  if (job.family == "mixtral") {
    config["intermediate_size"] = kExpertInner;
    config["num_local_experts"] = kExperts;
    config["num_experts_per_tok"] = kExpertsPerToken;
    config["output_router_logits"] = true;
    config["router_aux_loss_coef"] = 0.02;
  }
  return config;
}

// Adds the output kChosenExperts.
absl::StatusOr<graph::Graph> WithChosenExperts(const graph::Graph& forward, const graph::OpTable& ops) {
  graph::Graph graph = forward;
  graph.nodes.clear();
  graph::Builder b(graph, ops);
  graph::ValueId tokens = graph::kNoValue, sum = graph::kNoValue;
  const auto sum_over = [&b](graph::ValueId x, std::vector<int64_t> dims) {
    return b.Add("reduce_sum", {x}, {{"dims", std::move(dims)}});
  };
  double layer = 0;
  for (const graph::Node& node : forward.nodes) {
    graph.nodes.push_back(node);
    if (node.op == graph::Op::kInput && node.symbol == "tokens") tokens = node.results[0];
    if (node.op != "top_k") continue;
    b.SetModule(node.module);
    const graph::ValueId of_token = sum_over(b.Cast(node.results[1], graph::DType::kF32), {2});
    graph::ValueId of_layer = sum_over(b.Add("mul", {of_token, b.Cast(tokens, graph::DType::kF32)}), {0, 1});
    of_layer = b.Scale(of_layer, ++layer);
    sum = sum == graph::kNoValue ? of_layer : b.Add("add", {sum, of_layer});
  }
  b.SetModule("");
  b.End(graph::Op::kOutput, kChosenExperts, sum);
  TACC_RETURN_IF_ERROR(b.status());
  return graph;
}

}  // namespace

Job JobFor(const std::string& family, const Layout& layout) {
  Job job;
  job.family = family;
  if (layout.pp > 1) job.num_micro_batches = 4;
  job.num_layers = std::max<int64_t>(job.num_layers, layout.pp * layout.num_chunks());
  return job;
}

absl::StatusOr<graph::DecoderSpec> SpecOf(const Job& job) {
  TACC_ASSIGN_OR_RETURN(graph::ReadFamily read, graph::ReadModelConfig(Config(job), kSeqLen));
  return std::move(read.spec);
}

absl::StatusOr<graph::Compiled> CompileJob(const Job& job, const Layout& layout, const graph::OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const graph::DecoderSpec spec, SpecOf(job));
  const graph::ForwardBuilder model = [&](int64_t batch, int64_t seq_len) -> absl::StatusOr<graph::ForwardModel> {
    graph::DecoderBuildOptions build;
    build.batch = batch;
    build.seq_len = seq_len;
    graph::ForwardModel forward;
    TACC_ASSIGN_OR_RETURN(forward.forward, graph::BuildDecoder(spec, build, ops));
    if (spec.experts.has_value()) {
      TACC_ASSIGN_OR_RETURN(forward.forward, WithChosenExperts(forward.forward, ops));
    }
    if (job.lora) {
      graph::LoraOptions lora;
      lora.r = kRank;
      lora.alpha = 2 * kRank;
      lora.dropout = 0.1;
      lora.target_modules = {graph::kAllLinear};
      const graph::LoraModel lora_model = {spec.names.head, spec.names.head, "", kSeed};
      TACC_RETURN_IF_ERROR(graph::AddLora(lora, lora_model, ops, forward.forward).status());
    }
    if (!job.freeze.empty()) TACC_RETURN_IF_ERROR(graph::Freeze(job.freeze, forward.forward));
    for (int64_t layer = 0; layer < spec.num_layers; ++layer) forward.units.push_back(spec.LayerPath(layer));
    forward.residual_module = spec.names.embedding;
    return forward;
  };
  graph::PlanRequest request;
  request.training.learning_rate = job.learning_rate;
  request.training.lr_scheduler_type = "constant";
  request.training.max_steps = kSteps;
  request.training.weight_decay = 0.1;
  request.training.optim = job.optim;
  if (job.momentum > 0) request.training.momentum = job.momentum;
  request.world = layout.ranks();
  request.sizes[graph::Axis::kPp] = layout.pp;
  request.sizes[graph::Axis::kDp] = layout.dp;
  request.sizes[graph::Axis::kFsdp] = layout.fsdp;
  request.sizes[graph::Axis::kEp] = layout.ep;
  request.sizes[graph::Axis::kCp] = layout.cp * layout.sp;
  request.sp = layout.sp;
  request.sizes[graph::Axis::kTp] = layout.tp;
  request.zero_stage = layout.zero_stage;
  request.reduce_each_micro_batch = layout.reduce_each_micro_batch;
  request.schedule = layout.schedule;
  if (layout.num_chunks() > 1) request.num_chunks = layout.num_chunks();
  request.pins = layout.pins;
  request.recompute_units = layout.gc_layers;
  request.reshard_units = graph::PlanRequest::kAllUnits;
  request.expert_buffer_factor = kExperts / kExpertsPerToken;  // no slot is left out
  request.global_batch = job.global_batch;
  request.num_micro_batches = job.num_micro_batches;
  request.bf16 = job.half;
  if (job.half) request.reduce_dtype = graph::DType::kBF16;
  request.seq_len = kSeqLen;
  request.device.matmul_flops_per_second[graph::DType::kF32] = 1e11;
  request.device.memory_bytes_per_second = 1e10;
  request.device.link_bytes_per_second = 1e9;
  request.device.link_latency_seconds = 1e-5;
  TACC_ASSIGN_OR_RETURN(request.cluster, graph::MakeCluster(graph::MachineOf(request.device), layout.ranks()));
  TACC_ASSIGN_OR_RETURN(const graph::Planned planned, graph::PlanCandidates(request, model, ops));
  const graph::Plan& plan = planned.candidates[0].plan;
  TACC_ASSIGN_OR_RETURN(const graph::ForwardModel forward, model(plan.micro_batch * plan.num_data_ranks(), kSeqLen));
  return graph::CompilePlan(request, plan, forward, ops);
}

worker::BatchSource Batches(const Job& job) {
  const int64_t global_batch = job.global_batch, rows = global_batch / job.num_micro_batches;
  return [rows, global_batch](int64_t step, int64_t micro_batch) {
    constexpr int64_t kCycle = 4, kTokens = 16;
    worker::MicroBatch batch{micro_batch * rows, rows, kSeqLen, {}, {}};
    for (int64_t r = batch.first_sample; r < batch.first_sample + rows; ++r) {
      const int64_t sample = step % kCycle * global_batch + r;
      for (int64_t s = 0; s < kSeqLen; ++s) {
        const auto token = [&](int64_t at) { return static_cast<int32_t>((sample * 7 + at * 3) % kTokens); };
        batch.tokens.push_back(token(s));
        batch.targets.push_back((sample * kSeqLen + s) % 9 == 0 ? -1 : token(s + 1));
      }
    }
    return batch;
  };
}

absl::StatusOr<TrainingRun> Train(const Job& job, const std::vector<graph::Program>& stages, const graph::OpTable& ops,
                                  int64_t first, int64_t last, const std::string& from, const std::string& directory,
                                  const Place& place) {
  using Memory = worker::InProcessRanks::Memory;
  const bool is_gpu = place.memory == Memory::kSimulatedGpu || place.memory == Memory::kSimulatedGpuInOrder;
  TACC_ASSIGN_OR_RETURN(
      const std::unique_ptr<worker::InProcessRanks> ranks,
      worker::InProcessRanks::Create(&stages, &ops, place.memory, /*kernels=*/nullptr, place.ranks_a_machine));
  TACC_RETURN_IF_ERROR(from.empty() ? ranks->Initialize(kSeed) : ranks->Load(from));
  TrainingRun run;
  const std::vector<worker::InProcessRanks::Sent> sent_before = ranks->SentBytes();
  const std::vector<int64_t> packed_before = is_gpu ? ranks->PackedBytes() : std::vector<int64_t>();
  TACC_RETURN_IF_ERROR(ranks->Train(first, last - first, Batches(job), &run.log));
  run.sent = ranks->SentBytes();
  for (size_t rank = 0; rank < run.sent.size(); ++rank) {
    run.sent[rank].bytes = (run.sent[rank].bytes - sent_before[rank].bytes) / (last - first);
    for (size_t peer = 0; peer < run.sent.size(); ++peer)
      run.sent[rank].to[peer] = (run.sent[rank].to[peer] - sent_before[rank].to[peer]) / (last - first);
  }
  if (is_gpu) {
    run.packed_bytes = ranks->PackedBytes();
    for (size_t rank = 0; rank < run.packed_bytes.size(); ++rank)
      run.packed_bytes[rank] = (run.packed_bytes[rank] - packed_before[rank]) / (last - first);
  } else {
    run.touched_bytes = ranks->HighestTouched();
  }
  if (!directory.empty()) {
    TACC_ASSIGN_OR_RETURN(run.checkpoint, ranks->Save(directory, last));
  }
  return run;
}

absl::StatusOr<std::string> LoadAndSave(const std::vector<graph::Program>& stages, const graph::OpTable& ops,
                                        const std::string& from, int64_t step, const std::string& directory) {
  TACC_ASSIGN_OR_RETURN(const std::unique_ptr<worker::InProcessRanks> ranks,
                        worker::InProcessRanks::Create(&stages, &ops, worker::InProcessRanks::Memory::kPlanned));
  TACC_RETURN_IF_ERROR(ranks->Load(from));
  return ranks->Save(directory, step);
}

}  // namespace tacc::matrix
