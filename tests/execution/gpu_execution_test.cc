// Whole trainings with the kernels of a GPU as they run on the host (kernels/cuda/launch/launch.h), bound by the GPU's
// table, on a device that is apart from the host and behind it: planned memory, steps in flight, recordings that are
// replayed. Against the same programs with the CPU's kernels.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "graph/import/families.h"
#include "graph/ir/status_macros.h"
#include "graph/planner/planner.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/execution/training_run.h"
#include "worker/rank/cuda/cuda_kernels.h"

namespace tacc::worker {
namespace {

constexpr RandomTraining kTraining = {.global_batch = 4, .seq_len = 8, .vocabulary = 40, .num_steps = 4};
constexpr int64_t kLayers = 2;

struct Case {
  std::string name, family;
  int64_t fsdp = 1, tp = 1, ep = 1, micro_batches = 1;
  int64_t gc_layers = 0;  // that compute their activations again
};

absl::StatusOr<graph::DecoderSpec> SpecOf(const std::string& family) {
  nlohmann::json config = {{"model_type", family},
                           {"vocab_size", kTraining.vocabulary},
                           {"hidden_size", 32},
                           {"intermediate_size", 48},
                           {"num_hidden_layers", kLayers},
                           {"num_attention_heads", 4},
                           {"num_key_value_heads", 2},
                           {"max_position_embeddings", kTraining.seq_len}};
  if (family == "mixtral") {
    config["num_local_experts"] = 4;
    config["num_experts_per_tok"] = 2;
    config["output_router_logits"] = true;
  }
  TACC_ASSIGN_OR_RETURN(graph::ReadFamily read, graph::ReadModelConfig(config, kTraining.seq_len));
  return std::move(read.spec);
}

// The programs of the job as it is planned for GPUs.
enum class Weights { kMayBeCopied, kAreCast };
absl::StatusOr<std::vector<graph::Program>> Compile(const Case& job, graph::DType dtype, const graph::OpTable& ops,
                                                    Weights weights = Weights::kMayBeCopied) {
  TACC_ASSIGN_OR_RETURN(const graph::DecoderSpec spec, SpecOf(job.family));
  const graph::ForwardBuilder model = [&](int64_t batch, int64_t seq_len) -> absl::StatusOr<graph::ForwardModel> {
    graph::DecoderBuildOptions build;
    build.batch = batch;
    build.seq_len = seq_len;
    graph::ForwardModel forward;
    TACC_ASSIGN_OR_RETURN(forward.forward, graph::BuildDecoder(spec, build, ops));
    for (int64_t layer = 0; layer < kLayers; ++layer) forward.units.push_back(spec.LayerPath(layer));
    forward.residual_module = spec.names.embedding;
    return forward;
  };
  graph::PlanRequest request;
  request.training.learning_rate = 1e-3;
  request.training.lr_scheduler_type = "constant";
  request.training.max_steps = kTraining.num_steps;
  request.training.weight_decay = 0.1;
  request.training.max_grad_norm = 0.5;
  request.world = job.fsdp * job.tp * job.ep;
  request.sizes[graph::Axis::kPp] = request.sizes[graph::Axis::kDp] = request.sizes[graph::Axis::kCp] = 1;
  request.sizes[graph::Axis::kFsdp] = job.fsdp;
  request.zero_stage = 3;  // whose casts of gathered weights come in a row
  request.sizes[graph::Axis::kTp] = job.tp;
  request.sizes[graph::Axis::kEp] = job.ep;
  request.recompute_units = job.gc_layers;
  request.expert_buffer_factor = 2;  // no slot is left out
  request.global_batch = kTraining.global_batch;
  request.num_micro_batches = job.micro_batches;
  request.bf16 = dtype == graph::DType::kBF16;
  request.seq_len = kTraining.seq_len;
  request.may_keep_copies = weights == Weights::kMayBeCopied;
  request.device.kind = "cuda";
  request.device.matmul_flops_per_second = {{graph::DType::kF32, 1e13}, {graph::DType::kBF16, 1e14}};
  request.device.memory_bytes_per_second = 1e12;
  request.device.link_bytes_per_second = 1e11;
  request.device.link_latency_seconds = 1e-5;
  TACC_ASSIGN_OR_RETURN(request.cluster, graph::MakeCluster(graph::MachineOf(request.device), request.world));
  TACC_ASSIGN_OR_RETURN(graph::Planned planned, graph::PlanCandidates(request, model, ops));
  return std::move(planned.programs);
}

absl::StatusOr<TrainingRun> RunOnCpu(const std::vector<graph::Program>& stages, const graph::OpTable& ops,
                                     uint64_t seed) {
  return RunTraining(kTraining, stages, ops, InProcessRanks::Memory::kPlanned, seed);
}

absl::StatusOr<TrainingRun> RunAsOnGpu(const std::vector<graph::Program>& stages, const graph::OpTable& ops,
                                       uint64_t seed) {
  using Memory = InProcessRanks::Memory;
  const CudaKernelTable kernels;
  // Several ranks as on GPUs of their own, their collectives queued and recorded too.
  const Memory memory = stages[0].mesh.num_ranks() > 1 ? Memory::kSimulatedGpu : Memory::kSimulatedDevice;
  TACC_ASSIGN_OR_RETURN(TrainingRun run, RunTraining(kTraining, stages, ops, memory, seed, &kernels));
  for (int64_t replays : run.num_replays) EXPECT_GT(replays, 0);
  return run;
}

int64_t NumNodes(const graph::Graph& graph, const graph::Op& op) {
  return std::count_if(graph.nodes.begin(), graph.nodes.end(), [&](const graph::Node& node) { return node.op == op; });
}

class GpuExecutionTest : public testing::TestWithParam<Case> {};

TEST_P(GpuExecutionTest, EqualsTheCpuInF32) {
  const graph::OpTable ops;
  const auto stages = Compile(GetParam(), graph::DType::kF32, ops);
  ASSERT_TRUE(stages.ok()) << stages.status();
  const auto cpu = RunOnCpu(*stages, ops, 7), gpu = RunAsOnGpu(*stages, ops, 7);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  EXPECT_NE(cpu->losses.back(), cpu->losses.front());
  // q, k and v are one product, gate and up are, and so are the gradients of what they read; those of experts are of
  // slots.
  for (const graph::Graph& graph : (*stages)[0].graphs) {
    const int64_t pairs = GetParam().family == "llama" ? 2 : 1;
    const int64_t of_layer = graph.name == "forward_backward" ? 2 * pairs : graph.name == "eval" ? pairs : 0;
    EXPECT_EQ(NumNodes(graph, "einsum_joined"), of_layer * kLayers) << graph.name;
    EXPECT_EQ(NumNodes(graph, "attention"), 0) << graph.name;
  }
  // The order of sums differs, as between layouts on CPUs.
  ExpectNear(*gpu, *cpu, {.losses = 1e-6, .norms = 1e-5, .weights = 2e-5});
}

// What is computed again is what was computed, in bf16 too.
TEST_P(GpuExecutionTest, GivesTheSameBitsWithGradientCheckpointing) {
  const graph::OpTable ops;
  Case job = GetParam();
  const auto kept = Compile(job, graph::DType::kBF16, ops);
  job.gc_layers = kLayers;
  const auto again = Compile(job, graph::DType::kBF16, ops);
  ASSERT_TRUE(kept.ok()) << kept.status();
  ASSERT_TRUE(again.ok()) << again.status();
  const auto wanted = RunAsOnGpu(*kept, ops, 7), run = RunAsOnGpu(*again, ops, 7);
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->losses, wanted->losses);
  EXPECT_EQ(run->norms, wanted->norms);
  EXPECT_EQ(run->weights, wanted->weights);
  const auto num_products = [](const graph::Program& program) {
    int64_t num = 0;
    for (const graph::Graph& graph : program.graphs) {
      for (const graph::Node& node : graph.nodes)
        num += node.op == "einsum"          ? 1
               : node.op == "einsum_joined" ? static_cast<int64_t>(node.operands.size()) - 1
                                            : 0;
    }
    return num;
  };
  // Each layer's q, k, v and output at least.
  EXPECT_GE(num_products((*again)[0]), num_products((*kept)[0]) + 4 * kLayers);
}

// The GPU's kernels, each node by itself.
class OneByOne : public KernelTable {
 public:
  absl::StatusOr<Kernel> Prepare(const KernelRequest& request) const override { return kernels_.Prepare(request); }

 private:
  const CudaKernelTable kernels_;
};

// The GPU's kernels; counts calls and the nodes that they do, by op.
class Counting : public KernelTable {
 public:
  struct Counts {
    int64_t nodes = 0, calls = 0;
  };

  absl::StatusOr<Kernel> Prepare(const KernelRequest& request) const override { return kernels_.Prepare(request); }
  absl::StatusOr<Joint> PrepareFirst(absl::Span<const KernelRequest> requests,
                                     const KeepOnDevice& keep) const override {
    TACC_ASSIGN_OR_RETURN(Joint joint, kernels_.PrepareFirst(requests, keep));
    const absl::MutexLock lock(&mutex_);
    Counts& counts = counts_[std::string(requests.front().node->op.name())];
    counts.nodes += static_cast<int64_t>(joint.num_nodes);
    ++counts.calls;
    return joint;
  }

  Counts of(const std::string& op) const {
    const absl::MutexLock lock(&mutex_);
    return counts_[op];
  }

 private:
  const CudaKernelTable kernels_;
  mutable absl::Mutex mutex_;
  mutable std::map<std::string, Counts> counts_;
};

TEST_P(GpuExecutionTest, DoesManyTensorsInOneCall) {
  const graph::OpTable ops;
  const auto stages = Compile(GetParam(), graph::DType::kBF16, ops, Weights::kAreCast);
  ASSERT_TRUE(stages.ok()) << stages.status();
  constexpr InProcessRanks::Memory kMemory = InProcessRanks::Memory::kSimulatedDevice;
  RandomTraining training = kTraining;
  training.num_steps = 2;  // one that is queued, one that is replayed
  const OneByOne one_by_one;
  const Counting joint;
  const auto wanted = RunTraining(training, *stages, ops, kMemory, 7, &one_by_one);
  const auto run = RunTraining(training, *stages, ops, kMemory, 7, &joint);
  ASSERT_TRUE(wanted.ok()) << wanted.status();
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->losses, wanted->losses);
  EXPECT_EQ(run->weights, wanted->weights);
  const graph::Program& program = (*stages)[0];
  const int64_t num_ranks = program.mesh.num_ranks();
  std::map<std::string, int64_t> num_nodes;  // of a rank
  for (const graph::Graph& graph : program.graphs) {
    for (const graph::Node& node : graph.nodes) ++num_nodes[std::string(node.op.name())];
  }
  for (const char* op : {"adamw", "cast", "constant", "sum_squares"}) {
    const Counting::Counts counts = joint.of(op);
    std::printf("%s: %lld nodes, %lld calls a rank\n", op, static_cast<long long>(counts.nodes / num_ranks),
                static_cast<long long>(counts.calls / num_ranks));
    EXPECT_EQ(counts.nodes, num_ranks * num_nodes[op]) << op;
  }
  EXPECT_EQ(joint.of("adamw").calls, num_ranks);
  // One for each way in which parameters are split.
  EXPECT_LE(joint.of("sum_squares").calls, num_ranks * 3);
  if (const graph::Graph* begin = program.FindGraph("begin"); begin != nullptr) {
    EXPECT_EQ(joint.of("constant").calls, joint.of("constant").nodes - num_ranks * (NumNodes(*begin, "constant") - 1));
  }
  // Casts of what is gathered come in a row.
  if (GetParam().fsdp > 1) {
    EXPECT_LT(joint.of("cast").calls, joint.of("cast").nodes / 2);
  }
}

// What is rounded to bf16 differs by kernel; it may not cost more than it costs the CPU's: measured here.
TEST_P(GpuExecutionTest, IsAsNearToF32AsTheCpuInBf16) {
  const graph::OpTable ops;
  const auto exact = Compile(GetParam(), graph::DType::kF32, ops);
  const auto narrow = Compile(GetParam(), graph::DType::kBF16, ops);
  ASSERT_TRUE(exact.ok()) << exact.status();
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  constexpr uint64_t kSeeds = 4;
  std::vector<TrainingRun> f32, cpu, gpu;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    auto f32_run = RunOnCpu(*exact, ops, seed), cpu_run = RunOnCpu(*narrow, ops, seed);
    auto gpu_run = RunAsOnGpu(*narrow, ops, seed);
    ASSERT_TRUE(f32_run.ok()) << f32_run.status();
    ASSERT_TRUE(cpu_run.ok()) << cpu_run.status();
    ASSERT_TRUE(gpu_run.ok()) << gpu_run.status();
    f32.push_back(*std::move(f32_run));
    cpu.push_back(*std::move(cpu_run));
    gpu.push_back(*std::move(gpu_run));
  }
  const RunTolerance of_cpu = Deviation(cpu, f32), of_gpu = Deviation(gpu, f32);
  std::printf("losses %.2e (CPU %.2e), norms %.2e (%.2e), weights %.2e (%.2e)\n", of_gpu.losses, of_cpu.losses,
              of_gpu.norms, of_cpu.norms, of_gpu.weights, of_cpu.weights);
  EXPECT_GT(of_cpu.losses, 1e-6) << "the CPU rounds nothing";
  EXPECT_GT(of_gpu.losses, 1e-6) << "nothing was rounded";
  EXPECT_LE(of_gpu.losses, 1.5 * of_cpu.losses);
  EXPECT_LE(of_gpu.norms, 1.5 * of_cpu.norms);
  EXPECT_LE(of_gpu.weights, 1.5 * of_cpu.weights);
}

INSTANTIATE_TEST_SUITE_P(Jobs, GpuExecutionTest,
                         testing::Values(Case{.name = "llama_fsdp2", .family = "llama", .fsdp = 2, .micro_batches = 2},
                                         Case{.name = "llama_tp2", .family = "llama", .tp = 2},
                                         Case{.name = "mixtral_ep2", .family = "mixtral", .ep = 2}),
                         [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace tacc::worker
