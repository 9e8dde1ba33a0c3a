#include "coordinator/core/placement.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "machine/device_name.h"

namespace tacc::coordinator {
namespace {

constexpr size_t kMaxNames = 3;  // Of workers or of jobs in a message.

using FlopsMap = google::protobuf::Map<std::string, double>;

int64_t Need(const JobState& job) {
  auto it = job.summary.plan.memory_bytes().find("total");
  return it == job.summary.plan.memory_bytes().end() ? 0 : it->second;
}

// Keeps of `least` what `other` has as well, with the smaller value.
void TakeSmaller(const FlopsMap& other, FlopsMap* least) {
  for (auto it = least->begin(); it != least->end();) {
    const auto found = other.find(it->first);
    if (found == other.end()) {
      it = least->erase(it);
    } else {
      it->second = std::min(it->second, found->second);
      ++it;
    }
  }
}

std::string Workers(int count) { return absl::StrCat(count, count == 1 ? " worker" : " workers"); }

// Machines with more of `workers` first, and all workers of a machine one after the other: ranks that talk most are
// neighbours. Of as many: by the first name.
std::vector<const Worker*> ByMachine(const std::vector<const Worker*>& workers) {
  std::map<std::string, std::vector<const Worker*>> machines;
  std::vector<std::string> order;
  for (const Worker* worker : workers) {
    std::vector<const Worker*>& machine = machines[worker->advertise];
    if (machine.empty()) order.push_back(worker->advertise);
    machine.push_back(worker);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](const std::string& a, const std::string& b) { return machines[a].size() > machines[b].size(); });
  std::vector<const Worker*> sorted;
  for (const std::string& name : order) sorted.insert(sorted.end(), machines[name].begin(), machines[name].end());
  return sorted;
}

// "a, b, c and 7 more".
template <typename Names>
std::string FirstNames(const Names& names) {
  const size_t count = std::min(names.size(), kMaxNames), more = names.size() - count;
  return absl::StrCat(absl::StrJoin(names.begin(), std::next(names.begin(), static_cast<ptrdiff_t>(count)), ", "),
                      more > 0 ? absl::StrCat(" and ", more, " more") : "");
}

}  // namespace

v1::DeviceProfile Weakest(const std::vector<const Worker*>& workers) {
  std::map<std::string, int> on_machine;
  for (const Worker* worker : workers) ++on_machine[worker->advertise];
  v1::DeviceProfile weakest = workers.front()->device;
  weakest.set_cpus(weakest.cpus() / on_machine[workers.front()->advertise]);
  if (on_machine.size() > 1) {
    // A mesh lies evenly over machines: of uneven parts, what all are made of.
    int per_machine = 0;
    for (const auto& [machine, count] : on_machine) per_machine = std::gcd(per_machine, count);
    weakest.set_devices_per_machine(per_machine);
  }
  for (const Worker* worker : workers) {
    const v1::DeviceProfile& device = worker->device;
    weakest.set_cpus(std::min(weakest.cpus(), device.cpus() / on_machine[worker->advertise]));
    weakest.set_multiplies_bf16(weakest.multiplies_bf16() && device.multiplies_bf16());
    weakest.set_threads(std::min(weakest.threads(), device.threads()));
    weakest.set_memory_bytes(std::min(weakest.memory_bytes(), device.memory_bytes()));
    weakest.set_matmul_fraction(std::min(weakest.matmul_fraction(), device.matmul_fraction()));
    weakest.set_memory_bytes_per_second(std::min(weakest.memory_bytes_per_second(), device.memory_bytes_per_second()));
    weakest.set_link_bytes_per_second(std::min(weakest.link_bytes_per_second(), device.link_bytes_per_second()));
    weakest.set_link_latency_seconds(std::max(weakest.link_latency_seconds(), device.link_latency_seconds()));
    TakeSmaller(device.matmul_flops_per_second(), weakest.mutable_matmul_flops_per_second());
    TakeSmaller(device.peak_flops_per_second(), weakest.mutable_peak_flops_per_second());
    TakeSmaller(device.attention_flops_per_second(), weakest.mutable_attention_flops_per_second());
  }
  return weakest;
}

std::optional<v1::DeviceProfile> DeviceToCompileFor(const Membership& members, int world) {
  const size_t wanted = std::max(world, 1);
  for (const std::string& kind : DeviceKinds()) {
    std::vector<const Worker*> free, busy;
    for (const auto& [name, worker] : members.workers()) {
      if (!worker.Usable() || worker.device.kind() != kind) continue;
      (worker.Free() ? free : busy).push_back(&worker);
    }
    free = ByMachine(free);
    busy = ByMachine(busy);
    free.insert(free.end(), busy.begin(), busy.end());
    if (free.size() < wanted) continue;
    free.resize(wanted);
    return Weakest(free);
  }
  return std::nullopt;
}

std::string Troubles(const Membership& members) {
  std::string text;
  std::map<std::string, std::vector<std::string>> outdated;  // Names, by what is wrong: mostly the same of all.
  for (const auto& [name, worker] : members.workers()) {
    if (!worker.Attached()) continue;
    if (!worker.trouble.empty()) absl::StrAppend(&text, "; ", name, ": ", worker.trouble);
    if (!worker.outdated.empty()) outdated[worker.outdated].push_back(name);
  }
  for (const auto& [why, names] : outdated) {
    absl::StrAppend(&text, "; ", FirstNames(names), ": ", why);
  }
  return text;
}

std::string NeedsWorkers(const Membership& members, int world) {
  const int needed = std::max(world, 1);
  int free = 0, attached = 0;
  std::set<std::string> holders;
  for (const auto& [name, worker] : members.workers()) {
    free += worker.Free() ? 1 : 0;
    attached += worker.Attached() ? 1 : 0;
    if (!worker.Usable()) continue;
    if (!worker.reserved.empty()) holders.insert(worker.reserved);
    for (const RankKey& rank : worker.held) holders.insert(std::get<0>(rank));
  }
  std::string text = absl::StrCat("needs ", Workers(needed), free >= needed ? " of one kind, " : ", ", free, " free");
  if (attached == 0) {
    absl::StrAppend(&text, "; none is attached: one that starts measures its device first, which may take a minute");
  } else if (attached < needed) {
    absl::StrAppend(&text, " (", attached, " attached)");
  }
  if (free < needed && !holders.empty()) absl::StrAppend(&text, "; taken by ", FirstNames(holders));
  return absl::StrCat(text, Troubles(members));
}

bool Fits(const JobState& job, const v1::DeviceProfile& device) {
  const v1::DeviceProfile& compiled = job.compile.device();
  if (device.kind() != compiled.kind() || device.threads() < compiled.threads()) return false;
  if (device.memory_bytes() < std::min(compiled.memory_bytes(), Need(job))) return false;
  const std::string& precision = job.summary.plan.precision();
  // Its plan has no room for what products take that go through f32.
  if (precision == "bf16" && compiled.multiplies_bf16() && !device.multiplies_bf16()) return false;
  return compiled.matmul_flops_per_second().count(precision) == 0 ||
         device.matmul_flops_per_second().count(precision) != 0;
}

Choice Place(const Membership& members, const JobState& job) {
  Choice choice;
  const int world = job.World();
  // Programs of another release are compiled again: what an op or an option means may have changed.
  const bool is_current = job.compile.version() == members.version();
  std::vector<const Worker*> fitting;
  int num_free = 0;
  for (const auto& [name, worker] : members.workers()) {
    if (!worker.Free()) continue;
    ++num_free;
    if (is_current && Fits(job, worker.device)) fitting.push_back(&worker);
  }
  fitting = ByMachine(fitting);
  if (static_cast<int>(fitting.size()) >= world) {
    for (int rank = 0; rank < world; ++rank) choice.workers.push_back(fitting[rank]->name);
    return choice;
  }
  if (num_free >= world) {
    for (const std::string& kind : DeviceKinds()) {
      std::vector<const Worker*> same;
      for (const auto& [name, worker] : members.workers()) {
        if (worker.Free() && worker.device.kind() == kind) same.push_back(&worker);
      }
      if (static_cast<int>(same.size()) >= world) {
        same = ByMachine(same);
        same.resize(world);
        choice.recompile_for = Weakest(same);
        return choice;
      }
    }
  }
  choice.reason = NeedsWorkers(members, world);
  return choice;
}

double PeakFlopsPerSecond(const Membership& members, const std::vector<std::string>& workers,
                          const std::string& precision) {
  std::map<std::string, double> threads;  // by machine
  for (const std::string& name : workers) {
    auto worker = members.workers().find(name);
    if (worker == members.workers().end()) return 0;
    if (SharesProcessors(worker->second.device.kind()))
      threads[worker->second.advertise] += worker->second.device.threads();
  }
  double sum = 0;
  for (const std::string& name : workers) {
    const Worker& worker = members.workers().at(name);
    const v1::DeviceProfile& device = worker.device;
    const FlopsMap& known = device.peak_flops_per_second();
    const FlopsMap& peaks = known.count(precision) != 0 ? known : device.matmul_flops_per_second();
    const auto peak = peaks.find(precision);
    if (peak == peaks.end()) return 0;
    const double cpus = SharesProcessors(device.kind()) ? device.cpus() : 0;
    sum += peak->second * (cpus > 0 ? std::min(1.0, cpus / threads[worker.advertise]) : 1.0);
  }
  return sum;
}

}  // namespace tacc::coordinator
