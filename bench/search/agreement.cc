// How far the planner's estimate (estimate.h), by which it chooses the layouts that become programs, lies from what
// those programs' memory plans and simulated steps say: for dense models, mixtures and long sequences on GPUs, and for
// CPUs, a spread of the layouts that the search takes. Of each job also how much the planner's pick costs over the best
// of those layouts, both by programs of all layers.
//   agreement [--layouts N] [--of TEXT] [--jobs TEXT] [--worst N] [--programs composed|whole]
// N layouts a job (12; at most one of a kind: which axes split, schedule, gc, what ZeRO shards, size of the
// micro-batch), layouts and jobs whose name has the text, N of the layouts that agree worst (40), and whether the
// programs are put together from parts of the model, as the planner's candidates are, or of all its layers.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "graph/import/import.h"
#include "graph/planner/planner.h"

namespace tacc::bench {
namespace {

using graph::Axis;
using graph::Candidate;
using graph::Layout;
using graph::Scored;

struct Model {
  const char* name;
  int64_t hidden, heads, kv_heads, mlp, layers, vocabulary;
  int64_t experts = 0, chosen = 0;  // of a mixture
  int64_t head_dim = 0;             // 0: hidden / heads
};
const Model kLlama1 = {"1 B", 2048, 32, 8, 8192, 16, 128256}, kLlama7 = {"7 B", 4096, 32, 32, 11008, 32, 32000},
            kLlama8 = {"8 B", 4096, 32, 8, 14336, 32, 128256}, kLlama13 = {"13 B", 5120, 40, 40, 13824, 40, 32000},
            kLlama70 = {"70 B", 8192, 64, 8, 28672, 80, 128256}, kGpt175 = {"175 B", 12288, 96, 96, 32768, 96, 51200},
            kLlama405 = {"405 B", 16384, 128, 8, 53248, 126, 128256},
            kMixtral = {"8x7 B", 4096, 32, 8, 14336, 32, 32000, 8, 2},
            kMixtral22 = {"8x22 B", 6144, 48, 8, 16384, 56, 32768, 8, 2},
            kQwen30 = {"30 B-A3B", 2048, 32, 4, 768, 48, 151936, 128, 8, 128},
            kTiny = {"60 M", 512, 8, 8, 1408, 16, 32000}, kTinyMixture = {"4x60 M", 512, 8, 8, 1408, 12, 32000, 4, 2};

struct Job {
  Model model;
  const char* machine;  // a preset, or "cpu"
  int64_t devices, batch, seq_len;
  int64_t ep = 0;  // 0: the planner's

  std::string Name() const {
    return absl::StrCat(model.name, " x ", seq_len, " on ", devices, " ", machine, ", batch ", batch,
                        ep > 0 ? absl::StrCat(", ep ", ep) : "");
  }
};
const std::vector<Job> kJobs = {{kLlama1, "a100-80g", 8, 64, 4096},
                                {kLlama1, "h100", 64, 512, 4096},
                                {kLlama1, "v100", 16, 128, 2048},
                                {kLlama7, "a100-40g", 8, 64, 4096},
                                {kLlama7, "a100-80g", 16, 128, 4096},
                                {kLlama7, "h200", 8, 32, 8192},
                                {kLlama8, "h100", 8, 32, 8192},
                                {kLlama8, "h100", 64, 128, 8192},
                                {kLlama8, "h100", 512, 1024, 8192},
                                {kLlama8, "h100", 16, 16, 65536},
                                {kLlama8, "h100", 64, 16, 131072},
                                {kLlama8, "a800", 32, 64, 16384},
                                {kLlama13, "a100-40g", 16, 128, 4096},
                                {kLlama13, "h800", 32, 256, 4096},
                                {kLlama13, "b200", 8, 64, 4096},
                                {kLlama70, "h100", 32, 128, 4096},
                                {kLlama70, "h100", 64, 128, 8192},
                                {kLlama70, "a100-80g", 128, 512, 4096},
                                {kLlama70, "h100", 1024, 2048, 4096},
                                {kLlama70, "h100", 128, 32, 65536},
                                {kLlama70, "b200", 64, 256, 8192},
                                {kGpt175, "a100-80g", 256, 512, 2048},
                                {kGpt175, "a100-80g", 1024, 1536, 2048},
                                {kLlama405, "h100", 512, 512, 8192},
                                {kLlama405, "h100", 4096, 2048, 8192},
                                {kMixtral, "h100", 16, 128, 4096},
                                {kMixtral, "h100", 64, 512, 4096, 8},
                                {kMixtral, "a100-80g", 64, 256, 4096, 4},
                                {kMixtral, "h100", 128, 64, 32768},
                                {kMixtral22, "h100", 128, 512, 8192, 8},
                                {kQwen30, "h100", 16, 128, 4096},
                                {kQwen30, "h100", 64, 512, 4096, 8},
                                {kTiny, "cpu", 4, 32, 512},
                                {kTiny, "cpu", 16, 64, 512},
                                {kTiny, "cpu", 8, 16, 4096},
                                {kTinyMixture, "cpu", 8, 32, 512}};

std::string Config(const Model& m, int64_t seq_len) {
  std::string config = absl::StrFormat(
      R"({"hidden_size":%d,"num_attention_heads":%d,"num_key_value_heads":%d,"num_hidden_layers":%d,"vocab_size":%d,)"
      R"("head_dim":%d,"rms_norm_eps":1e-5,"hidden_act":"silu","max_position_embeddings":%d,"rope_theta":10000.0,)"
      R"("tie_word_embeddings":false,)",
      m.hidden, m.heads, m.kv_heads, m.layers, m.vocabulary, m.head_dim > 0 ? m.head_dim : m.hidden / m.heads, seq_len);
  if (m.experts == 0) {
    absl::StrAppendFormat(
        &config, R"("architectures":["LlamaForCausalLM"],"model_type":"llama","intermediate_size":%d})", m.mlp);
  } else if (m.head_dim == 0) {
    absl::StrAppendFormat(&config,
                          R"("architectures":["MixtralForCausalLM"],"model_type":"mixtral","intermediate_size":%d,)"
                          R"("num_local_experts":%d,"num_experts_per_tok":%d,"sliding_window":null})",
                          m.mlp, m.experts, m.chosen);
  } else {
    absl::StrAppendFormat(&config,
                          R"("architectures":["Qwen3MoeForCausalLM"],"model_type":"qwen3_moe",)"
                          R"("intermediate_size":%d,"moe_intermediate_size":%d,"num_experts":%d,)"
                          R"("num_experts_per_tok":%d,"norm_topk_prob":true,"decoder_sparse_step":1,)"
                          R"("mlp_only_layers":[]})",
                          8 * m.mlp, m.mlp, m.experts, m.chosen);
  }
  return config;
}

graph::ForwardBuilder BuilderOf(const Job& job, const graph::OpTable& ops) {
  return [&job, &ops](int64_t batch, int64_t seq_len) -> absl::StatusOr<graph::ForwardModel> {
    const std::filesystem::path dir = std::filesystem::temp_directory_path() / absl::StrCat("agreement.", getpid());
    std::filesystem::create_directories(dir);
    std::ofstream(dir / "config.json") << Config(job.model, seq_len);
    graph::ImportOptions options;
    options.batch = batch;
    options.seq_len = seq_len;
    options.weights = graph::ImportOptions::Weights::kRandom;
    auto imported = graph::ImportModel(dir.string(), options, ops);
    std::filesystem::remove_all(dir);
    if (!imported.ok()) return imported.status();
    graph::ForwardModel model;
    model.units = imported->units;
    model.residual_module = imported->residual_module;
    model.forward = std::move(imported->forward);
    return model;
  };
}

// Machines of four such processes each.
graph::DeviceProfile Processor() {
  graph::DeviceProfile device;
  device.name = device.kind = "cpu";
  device.threads = 2;
  device.cpus = 2;
  device.memory_bytes = int64_t{8} << 30;
  device.matmul_flops_per_second = {{graph::DType::kF32, 120e9}};
  device.memory_bytes_per_second = 12e9;
  device.link_bytes_per_second = 2e9;
  device.link_latency_seconds = 30e-6;
  device.devices_per_machine = 4;
  return device;
}

absl::StatusOr<graph::PlanRequest> RequestOf(const Job& job) {
  graph::PlanRequest request;
  graph::Machine machine;
  if (std::string(job.machine) == "cpu") {
    request.device = Processor();
    machine = graph::MachineOf(request.device);
    request.bf16 = false;
  } else {
    auto found = graph::FindMachine(job.machine);
    if (!found.ok()) return found.status();
    machine = *found;
    request.device = graph::ProfileOf(machine);
    request.bf16 = true;
  }
  auto cluster = graph::MakeCluster(machine, job.devices);
  if (!cluster.ok()) return cluster.status();
  request.cluster = *cluster;
  request.world = job.devices;
  request.training.max_steps = 1;
  request.seq_len = job.seq_len;
  request.global_batch = job.batch;
  if (job.ep > 0) request.sizes[Axis::kEp] = job.ep;
  return request;
}

// What is estimated and what its program says, of a layout; and of the three kinds of seconds that both know.
struct Pair {
  std::string job;
  Layout layout;
  double estimate = 0, simulated = 0;
  double estimated_bytes = 0, program_bytes = 0;
  std::string parts;
  double ratio() const { return estimate / simulated; }
  double memory_ratio() const { return estimated_bytes / program_bytes; }
};

std::string PartsOf(const Scored& scored, const Candidate& candidate) {
  const graph::StepEstimate& e = scored.step;
  const graph::StageTimes& t = candidate.times;
  std::string text = absl::StrFormat(
      "compute and update %.3f / %.3f, exposed communication %.3f / %.3f, waiting %.3f / %.3f (", e.compute + e.update,
      t.compute_seconds, e.communication(), t.exposed_seconds, e.bubble + e.imbalance, t.idle_seconds);
  absl::StrAppend(&text, DescribeStep(e), "); ");
  const graph::MemoryEstimate& m = scored.memory;
  const graph::MemoryUse& use = candidate.memory;
  const auto gib = [](auto bytes) { return static_cast<double>(bytes) / (1 << 30); };
  absl::StrAppendFormat(&text,
                        "GiB: weights %.2f / %.2f, gradients %.2f / %.2f, optimizer %.2f / %.2f, activations and "
                        "temporaries %.2f / %.2f",
                        gib(m.weights + m.copies), gib(use.weights_bytes + use.copies_bytes), gib(m.gradients),
                        gib(use.gradients_bytes), gib(m.optimizer), gib(use.optimizer_bytes),
                        gib(m.activations + m.temporaries),
                        gib(use.temporaries_bytes + use.stash_bytes + use.workspace_bytes));
  return text;
}

// What tells layouts of another kind apart.
std::string KindOf(const Layout& l) {
  std::string kind;
  for (Axis axis : graph::kJobAxes) absl::StrAppend(&kind, l.sizes[axis] > 1);
  return absl::StrCat(kind, " ", static_cast<int>(l.schedule), l.recompute, l.reshard, l.zero_stage,
                      l.reduce_each_micro_batch, l.micro_batch > 2);
}

// The fastest by estimate of each kind, fastest first.
std::vector<Scored> Spread(const std::vector<Scored>& all, const std::string& text, size_t count) {
  std::vector<Scored> spread;
  std::set<std::string> kinds;
  for (const Scored& scored : all) {
    if (spread.size() < count && absl::StrContains(scored.layout.ToString(), text) &&
        kinds.insert(KindOf(scored.layout)).second)
      spread.push_back(scored);
  }
  return spread;
}

// The best of the candidates by programs of all layers, if it costs less than `picked`; else NotFound. What was put
// together from parts may be too fast.
absl::StatusOr<Candidate> BestOfWhole(const graph::PlanRequest& request, std::vector<Candidate> candidates,
                                      double picked, const graph::ForwardBuilder& builder, const graph::OpTable& ops) {
  while (!candidates.empty()) {
    const auto best = std::min_element(candidates.begin(), candidates.end(),
                                       [](const auto& a, const auto& b) { return graph::Worth(a) < graph::Worth(b); });
    if (graph::Worth(*best) >= picked) break;
    if (!best->composed) return *best;
    auto whole = graph::MeasureLayouts(request, {best->layout}, graph::Programs::kWhole, builder, ops);
    if (!whole.ok()) return whole.status();
    if ((*whole)[0].ok() && (*whole)[0]->fits) {
      *best = *(*whole)[0];
    } else {
      candidates.erase(best);
    }
  }
  return absl::NotFoundError("none is better");
}

absl::Status Compare(const Job& job, size_t num_layouts, const std::string& text, graph::Programs of,
                     const graph::OpTable& ops, std::vector<Pair>* pairs) {
  const graph::ForwardBuilder builder = BuilderOf(job, ops);
  auto request = RequestOf(job);
  if (!request.ok()) return request.status();
  auto all = graph::LegalLayouts(*request, builder, ops);
  if (!all.ok()) return all.status();
  if (all->empty()) {
    std::cout << job.Name() << ": nothing fits\n";
    return absl::OkStatus();
  }
  auto planned = graph::PlanCandidates(*request, builder, ops);
  if (!planned.ok()) return planned.status();
  const Candidate& pick = planned->candidates[0];
  const double picked = graph::Worth(pick) + pick.copies_save_seconds;
  const std::vector<Scored> spread = Spread(*all, text, num_layouts);
  if (spread.empty()) {
    std::cout << job.Name() << ": no layout is " << text << "\n";
    return absl::OkStatus();
  }
  std::vector<Layout> layouts;
  for (const Scored& scored : spread) layouts.push_back(scored.layout);
  auto measured = graph::MeasureLayouts(*request, layouts, of, builder, ops);
  if (!measured.ok()) return measured.status();
  std::vector<double> steps, memory;
  std::vector<Candidate> fitting;
  for (size_t i = 0; i < spread.size(); ++i) {
    const absl::StatusOr<Candidate>& candidate = (*measured)[i];
    if (!candidate.ok()) continue;
    Pair pair;
    pair.job = job.Name();
    pair.layout = spread[i].layout;
    pair.estimate = spread[i].step.seconds;
    pair.simulated = candidate->plan.step_seconds;
    pair.estimated_bytes = spread[i].memory.total();
    pair.program_bytes = static_cast<double>(candidate->memory.arena_bytes + candidate->memory.workspace_bytes);
    pair.parts = PartsOf(spread[i], *candidate);
    steps.push_back(pair.ratio());
    memory.push_back(pair.memory_ratio());
    if (candidate->fits) fitting.push_back(*candidate);
    pairs->push_back(std::move(pair));
  }
  const absl::StatusOr<Candidate> best = BestOfWhole(*request, std::move(fitting), picked, builder, ops);
  if (!best.ok() && !absl::IsNotFound(best.status())) return best.status();
  std::sort(steps.begin(), steps.end());
  std::sort(memory.begin(), memory.end());
  std::cout << absl::StrFormat("%-44s %3d layouts: step %.3f to %.3f, memory %.3f to %.3f; pick %.3fx the best: %s%s",
                               job.Name(), steps.size(), steps.front(), steps.back(), memory.front(), memory.back(),
                               best.ok() ? picked / graph::Worth(*best) : 1.0, pick.layout.ToString(),
                               best.ok() ? "; best " + best->layout.ToString() : "")
            << std::endl;
  return absl::OkStatus();
}

void PrintSpread(const char* what, std::vector<double> ratios, double within) {
  std::sort(ratios.begin(), ratios.end());
  double error = 0;
  for (double ratio : ratios) error += std::abs(ratio - 1);
  const auto inside = std::count_if(ratios.begin(), ratios.end(), [&](double r) { return std::abs(r - 1) <= within; });
  std::cout << absl::StrFormat("%s: %d layouts, %.3f to %.3f, mean error %.1f %%, %.0f %% within %.0f %%\n", what,
                               ratios.size(), ratios.front(), ratios.back(), 100 * error / ratios.size(),
                               100.0 * inside / ratios.size(), 100 * within);
}

int Main(int argc, char** argv) {
  size_t num_layouts = 12, num_worst = 40;
  std::string jobs, text;
  graph::Programs of = graph::Programs::kComposed;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--layouts") num_layouts = std::strtoul(argv[i + 1], nullptr, 10);
    if (flag == "--worst") num_worst = std::strtoul(argv[i + 1], nullptr, 10);
    if (flag == "--of") text = argv[i + 1];
    if (flag == "--jobs") jobs = argv[i + 1];
    if (flag == "--programs" && argv[i + 1] == std::string("whole")) of = graph::Programs::kWhole;
  }
  const graph::OpTable ops;
  std::vector<Pair> pairs;
  for (const Job& job : kJobs) {
    if (!absl::StrContains(job.Name(), jobs)) continue;
    if (const absl::Status status = Compare(job, num_layouts, text, of, ops, &pairs); !status.ok()) {
      std::cerr << "error: " << job.Name() << ": " << status.message() << "\n";
      return 1;
    }
  }
  if (pairs.empty()) return 0;
  std::vector<double> steps, memory;
  for (const Pair& pair : pairs) {
    steps.push_back(pair.ratio());
    memory.push_back(pair.memory_ratio());
  }
  const auto by = [&](auto ratio) {
    std::stable_sort(pairs.begin(), pairs.end(), [&](const Pair& a, const Pair& b) {
      return std::abs(std::log(ratio(a))) > std::abs(std::log(ratio(b)));
    });
  };
  const auto print_worst = [&] {
    for (size_t i = 0; i < std::min(pairs.size(), num_worst); ++i) {
      const Pair& p = pairs[i];
      std::cout << absl::StrFormat("  step %.3f, memory %.3f: %s: %s: %.3f s / %.3f s: %s\n", p.ratio(),
                                   p.memory_ratio(), p.job, p.layout.ToString(), p.estimate, p.simulated, p.parts);
    }
  };
  PrintSpread("estimate over simulation of the step", steps, 0.05);
  by([](const Pair& p) { return p.ratio(); });
  print_worst();
  PrintSpread("estimate over program of memory", memory, 0.03);
  by([](const Pair& p) { return p.memory_ratio(); });
  print_worst();
  return 0;
}

}  // namespace
}  // namespace tacc::bench

int main(int argc, char** argv) { return tacc::bench::Main(argc, argv); }
