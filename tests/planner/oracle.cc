#include "tests/planner/oracle.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "graph/ir/status_macros.h"
#include "tests/planner/config_model.h"

namespace tacc::graph {
namespace {

using nlohmann::json;

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  // The same with every library: distributions of the standard's are not.
  size_t Below(size_t n) { return engine_() % n; }
  template <typename T>
  T Of(const std::vector<T>& values) {
    return values[Below(values.size())];
  }

 private:
  std::mt19937_64 engine_;
};

template <typename T>
std::vector<T> AtMost(const std::vector<T>& values, T most) {
  std::vector<T> kept;
  std::copy_if(values.begin(), values.end(), std::back_inserter(kept), [&](const T& v) { return v <= most; });
  return kept;
}

// Four such processes a machine.
DeviceProfile Processor(Dice& dice) {
  DeviceProfile device;
  device.name = device.kind = "cpu";
  device.threads = 2;
  device.cpus = 2;
  device.memory_bytes = dice.Of<int64_t>({2, 4, 16}) << 30;
  device.matmul_flops_per_second = {{DType::kF32, 120e9}};
  device.memory_bytes_per_second = 12e9;
  device.link_bytes_per_second = dice.Of<double>({1e9, 4e9});
  device.link_latency_seconds = 30e-6;
  device.devices_per_machine = 4;
  return device;
}

Machine SomeGpu(Dice& dice) {
  Machine machine =
      *FindMachine(dice.Of<std::string>({"h100", "a100-80g", "a100-40g", "b200", "h200", "a800", "v100"}));
  machine.devices_per_node = dice.Of<int64_t>({2, 4, 8});
  machine.inter_bytes_per_second /= dice.Of<double>({1, 1, 4, 16});
  machine.memory_bytes *= dice.Of<double>({1, 1, 0.5, 0.25});
  return machine;
}

}  // namespace

RandomJob MakeRandomJob(uint64_t seed, int64_t max_layers, int64_t max_devices) {
  Dice dice(seed);
  RandomJob job;
  const bool is_mixture = seed % 3 == 1, is_long = seed % 3 == 2, is_cpu = dice.Below(8) == 0;
  const int64_t layers = dice.Of(AtMost<int64_t>({2, 3, 4, 5, 6, 8, 10, 12}, max_layers));
  const int64_t hidden = is_cpu ? dice.Of<int64_t>({256, 512}) : dice.Of<int64_t>({1024, 2048, 4096, 6144, 8192});
  const int64_t head_dim = is_cpu ? 32 : 128, heads = hidden / head_dim;
  const int64_t kv_heads = dice.Of<int64_t>({heads, std::max<int64_t>(1, heads / 4), std::max<int64_t>(1, heads / 8)});
  const int64_t vocabulary = is_cpu ? 8000 : dice.Of<int64_t>({32000, 128256});
  const int64_t seq_len = is_cpu    ? (is_long ? 4096 : 512)
                          : is_long ? dice.Of<int64_t>({16384, 32768, 65536})
                                    : dice.Of<int64_t>({1024, 2048, 4096, 8192});
  const int64_t mlp = hidden / 2 * dice.Of<int64_t>({5, 7, 8});
  job.config = {{"model_type", is_mixture ? "mixtral" : "llama"},
                {"vocab_size", vocabulary},
                {"hidden_size", hidden},
                {"intermediate_size", mlp},
                {"num_hidden_layers", layers},
                {"num_attention_heads", heads},
                {"num_key_value_heads", kv_heads},
                {"head_dim", head_dim},
                {"max_position_embeddings", seq_len},
                {"tie_word_embeddings", false}};
  std::string experts;
  if (is_mixture) {
    const int64_t number = dice.Of<int64_t>({4, 8, 16}), chosen = dice.Of<int64_t>({1, 2, 4});
    job.config["num_local_experts"] = number;
    job.config["num_experts_per_tok"] = chosen;
    job.config["sliding_window"] = nullptr;
    experts = absl::StrCat(", ", chosen, " of ", number, " experts");
  }
  const std::vector<int64_t> numbers =
      is_cpu ? std::vector<int64_t>{2, 4, 8, 16} : std::vector<int64_t>{2, 4, 6, 8, 12, 16};
  const int64_t devices = dice.Of(AtMost(numbers, max_devices));
  const int64_t batch =
      devices * dice.Of<int64_t>(is_long ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1, 2, 4});

  PlanRequest& request = job.request;
  Machine machine;
  if (is_cpu) {
    request.device = Processor(dice);
    machine = MachineOf(request.device);
  } else {
    machine = SomeGpu(dice);
    request.device = ProfileOf(machine);
    while (devices > machine.devices_per_node && devices % machine.devices_per_node != 0) machine.devices_per_node /= 2;
  }
  request.bf16 = !is_cpu;
  request.cluster = *MakeCluster(machine, devices);
  request.world = devices;
  request.training.max_steps = 1;
  request.seq_len = seq_len;
  request.global_batch = batch;
  if (is_mixture) request.expert_buffer_factor = dice.Of<double>({2, 4, 16});
  job.name = absl::StrFormat(
      "%d: %d layers of %d, mlp %d, %d/%d heads%s, vocabulary %d, %d x %d tokens on %d %s, %d a node, %.3g GB/s "
      "between, "
      "%.0f GiB",
      seed, layers, hidden, mlp, heads, kv_heads, experts, vocabulary, batch, seq_len, devices, machine.name,
      machine.devices_per_node, machine.inter_bytes_per_second / 1e9,
      static_cast<double>(request.device.memory_bytes) / (int64_t{1} << 30));
  return job;
}

absl::StatusOr<Verdict> AskOracle(const RandomJob& job, const OpTable& ops) {
  const ForwardBuilder model = ModelOfConfig(job.config, ops);
  PlanRequest roomy = job.request;
  roomy.device.memory_bytes = static_cast<int64_t>(kOverestimate * static_cast<double>(roomy.device.memory_bytes));
  TACC_ASSIGN_OR_RETURN(const std::vector<Scored> legal, LegalLayouts(roomy, model, ops));
  std::vector<Layout> layouts;
  for (const Scored& scored : legal) layouts.push_back(scored.layout);
  TACC_ASSIGN_OR_RETURN(const auto measured, MeasureLayouts(job.request, layouts, Programs::kWhole, model, ops));
  Verdict verdict;
  const Candidate* best = nullptr;
  for (size_t i = 0; i < measured.size(); ++i) {
    const absl::StatusOr<Candidate>& candidate = measured[i];
    if (!candidate.ok()) continue;
    ++verdict.num_layouts;
    if (!candidate->fits) continue;
    ++verdict.num_fitting;
    if (best != nullptr && Worth(*candidate) >= Worth(*best)) continue;
    best = &*candidate;
    verdict.best_estimate = legal[i].step.seconds / best->plan.step_seconds;
    verdict.best_memory = legal[i].memory.total() / static_cast<double>(job.request.device.memory_bytes);
  }
  TACC_ASSIGN_OR_RETURN(const Planned planned, PlanCandidates(job.request, model, ops));
  const Candidate& pick = planned.candidates[0];
  if (best == nullptr && !pick.fits) return absl::NotFoundError("nothing fits");
  verdict.pick = pick.layout;
  verdict.num_tried = planned.candidates.size();
  // Without copies of the weights, as the others.
  verdict.pick_seconds = pick.plan.step_seconds + pick.copies_save_seconds;
  if (best == nullptr)
    return absl::InternalError(absl::StrCat("the pick is no legal layout: ", pick.layout.ToString()));
  verdict.best = best->layout;
  verdict.best_seconds = best->plan.step_seconds;
  verdict.ratio =
      pick.fits ? (Worth(pick) + pick.copies_save_seconds) / Worth(*best) : std::numeric_limits<double>::infinity();
  return verdict;
}

}  // namespace tacc::graph
