#include "graph/planner/report/does_not_fit.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/planner/report/words.h"

namespace tacc::graph {
namespace {

// Numbers of devices that are tried: each is a search.
constexpr int kMaxTries = 24;
// Of all ranks together the least: of a parameter that is trained the weight in float32 beside what the optimizer
// keeps, of one that is frozen 16 bits.
constexpr double kBytesOfTrained = 4, kBytesOfFrozen = 2;

std::string Bytes(int64_t bytes) { return BytesText(static_cast<double>(bytes)); }

// The layout of the best plan, or nothing when none fits.
std::optional<Layout> Fitting(const PlanRequest& request, const ForwardBuilder& model, const OpTable& ops) {
  const absl::StatusOr<bool> may = MayFit(request, model, ops);
  if (!may.ok() || !*may) return std::nullopt;
  const absl::StatusOr<Planned> planned = PlanCandidates(request, model, ops);
  if (!planned.ok() || !planned->candidates[0].fits) return std::nullopt;
  return planned->candidates[0].layout;
}

// The next number of devices to try: all, then whole nodes of eight, then powers of two.
int64_t Next(int64_t devices) {
  if (devices < 16) return devices + 1;
  if (devices < 64) return (devices / 8 + 1) * 8;
  int64_t power = 64;
  while (power <= devices) power *= 2;
  return power;
}

// "9 such CPU workers (fsdp=9)": the fewest devices of the request's kind; "" when none of those tried will do.
std::string MoreDevices(const PlanRequest& request, const Candidate& smallest, const ForwardBuilder& model,
                        const OpTable& ops) {
  const auto trained = static_cast<double>(smallest.num_trained_parameters);
  const double bytes = (kBytesOfTrained + smallest.optimizer_bytes_of_element) * trained +
                       kBytesOfFrozen * (static_cast<double>(smallest.num_parameters) - trained);
  const auto least = static_cast<int64_t>(std::ceil(bytes / static_cast<double>(request.device.memory_bytes)));
  int64_t devices = std::max(request.world + 1, least);
  for (int tries = 0; tries < kMaxTries; ++tries, devices = Next(devices)) {
    PlanRequest more = request;
    more.world = devices;
    Machine machine = request.cluster.machine;
    // One node may be a part of a whole one.
    if (const absl::StatusOr<Machine> whole = FindMachine(machine.name); request.cluster.num_nodes == 1)
      machine.devices_per_node = whole.ok() ? whole->devices_per_node : 0;
    const absl::StatusOr<Cluster> cluster = MakeCluster(machine, devices);
    if (!cluster.ok()) continue;
    more.cluster = *cluster;
    if (const std::optional<Layout> layout = Fitting(more, model, ops); layout.has_value()) {
      return absl::StrCat(WholeText(devices), " such ", DeviceWord(request.cluster), "s (", MeshText(*layout), ")");
    }
  }
  return "";
}

// "one NVIDIA H100 SXM5 80 GB", "2 x ...": as many of the smallest known device that will do; "" when none will.
std::string OtherDevice(const PlanRequest& request, const ForwardBuilder& model, const OpTable& ops) {
  std::vector<Machine> machines = MachinePresets();
  std::stable_sort(machines.begin(), machines.end(),
                   [](const Machine& a, const Machine& b) { return a.memory_bytes < b.memory_bytes; });
  double tried = static_cast<double>(request.device.memory_bytes);
  for (const Machine& machine : machines) {
    // Devices with the same memory differ in speed.
    if (machine.plan_only || machine.memory_bytes <= tried) continue;
    tried = machine.memory_bytes;
    PlanRequest other = request;
    const absl::StatusOr<Cluster> cluster = MakeCluster(machine, request.world);
    if (!cluster.ok()) continue;
    other.cluster = *cluster;
    other.device = ProfileOf(machine);
    if (Fitting(other, model, ops).has_value())
      return absl::StrCat(request.world == 1 ? "one" : absl::StrCat(request.world, " x"), " ", machine.device);
  }
  return "";
}

// What the job itself says and could say otherwise. What it leaves open was tried.
std::vector<std::string> OwnSettings(const PlanRequest& request, const Candidate& smallest) {
  const Layout& l = smallest.layout;
  std::vector<std::string> help;
  if (request.sizes[Axis::kFsdp].has_value() && l.sizes[Axis::kFsdp] < l.batch_ranks())
    help.push_back("a larger dist.fsdp.size");
  if (l.shards() > 1 && l.zero_stage < 3) help.push_back("dist.fsdp.zero_stage: 3");
  // With all that goes by samples and tokens gone it must fit.
  const int64_t passing = smallest.memory.temporaries_bytes + smallest.memory.stash_bytes;
  if (smallest.plan.total_bytes - passing > request.device.memory_bytes) return help;
  if (request.micro_batch.has_value() && l.micro_batch > 1)
    help.push_back("a smaller train.per_device_train_batch_size");
  if (request.recompute_units.has_value() && smallest.plan.recompute_units == 0) help.push_back("memory.gc: true");
  help.push_back("a shorter data.seq_len");
  return help;
}

}  // namespace

absl::Status DoesNotFit(const PlanRequest& request, const Candidate& smallest, const ForwardBuilder& model,
                        const OpTable& ops) {
  std::vector<std::string> enough;
  for (std::string text : {MoreDevices(request, smallest, model, ops), OtherDevice(request, model, ops)}) {
    if (!text.empty()) enough.push_back(std::move(text));
  }
  std::vector<std::string> largest;
  for (const MemoryUse::Buffer& buffer : smallest.memory.largest)
    largest.push_back(absl::StrCat(buffer.name, " ", Bytes(buffer.bytes)));
  std::string needs = Bytes(smallest.plan.total_bytes), has = Bytes(request.device.memory_bytes);
  if (needs == has) {
    needs = absl::StrCat(WholeText(smallest.plan.total_bytes), " B");
    has = absl::StrCat(WholeText(request.device.memory_bytes), " B");
  }
  std::string text = absl::StrCat(
      "the model does not fit: a worker needs ", needs, " and has ", has, "; ",
      enough.empty() ? "it needs workers with more memory" : absl::StrCat(absl::StrJoin(enough, ", or "), " would do"),
      "\n  of it: ", KindsText(MemoryKinds(smallest), smallest.plan.total_bytes),
      "\n  largest buffers: ", absl::StrJoin(largest, "; "));
  if (const std::vector<std::string> help = OwnSettings(request, smallest); !help.empty())
    absl::StrAppend(&text, "\n  in the job, this would help: ", absl::StrJoin(help, ", "));
  return absl::InvalidArgumentError(text);
}

}  // namespace tacc::graph
