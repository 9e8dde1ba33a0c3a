#include "graph/planner/cost/cluster.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "graph/ir/status_macros.h"
#include "graph/targets/targets.h"
#include "json/parse_json.h"
#include "machine/device_peaks.h"

namespace tacc::graph {
namespace {

// What people call the common one.
constexpr char kAlias[] = "a100";
constexpr char kAliased[] = "a100-80g";
constexpr double kGiB = 1073741824.0;
// Of GPUs and of nothing that a probe measures. Latencies and issue are those of all presets; the depth is what
// bench/published takes for a device that it knows nothing of.
constexpr double kGpuIntraLatencySeconds = 5e-6;
constexpr double kGpuInterLatencySeconds = 10e-6;
constexpr double kGpuIssueSeconds = 3e-6;
constexpr double kGpuMatmulDepth = 64;
constexpr double kFlopsOfMultiprocessor = 7.5e12;  // a second: 989e12 of 132 on H100
// What bench/published fits on H100 (DGX H100's table: 0.71 and 0.74); no other table has an attention in one kernel.
// On A100 it gives heads of 128 half of the peak, where Dao, "FlashAttention-2", 2023, reports 50 to 73 %.
constexpr double kGpuAttentionFraction = 0.73;
constexpr double kNetworkBytesPerSecond = 12.5e9;
// On CPUs attention is tacc's own kernel, which computes in f32 whatever the dtype, and reaches so much of what
// products do (bench/predicted.py's model: from half to two thirds).
constexpr double kCpuAttentionFraction = 0.55;
// Of a probed GPU: matrix FLOPs that it does in the time of one exponential, about: 989e12 against 3.9e12 a second on
// H100. Source: Shah et al., "FlashAttention-3", 2024, section 2.
constexpr double kFlopsOfExponential = 256;
// Of each SM and clock on all GPUs since V100. Source: CUDA C++ Programming Guide, throughput of arithmetic
// instructions.
constexpr double kExponentialsOfSm = 16;

// A GPU by the vendors' peaks (data sheets of the devices and of the DGX or HGX systems built with them; a device's
// share of the network is its node's adapters over its devices) and by what products reach of them: what
// bench/published fits on A100 and H100, taken over for their relatives.
struct DataSheet {
  const char* name;
  const char* device;
  double half_flops, f32_flops;  // a second
  bool has_tf32 = true;          // at half of half_flops
  double memory_bytes, memory_bytes_per_second;
  double intra_bytes_per_second, inter_bytes_per_second;
  double matmul_fraction, matmul_depth;
  double sms, boost_clock;  // in Hz
  bool plan_only = false;
};

constexpr DataSheet kDataSheets[] = {
    {.name = "a100-40g",
     .device = "NVIDIA A100 SXM4 40 GB",
     .half_flops = kA100HalfFlops,
     .f32_flops = 19.5e12,
     .memory_bytes = 40 * kGiB,
     .memory_bytes_per_second = 1555e9,
     .intra_bytes_per_second = 300e9,
     .inter_bytes_per_second = 25e9,
     .matmul_fraction = 0.77,
     .matmul_depth = 63,
     .sms = 108,
     .boost_clock = 1.41e9},
    {.name = "a100-80g",
     .device = "NVIDIA A100 SXM4 80 GB",
     .half_flops = kA100HalfFlops,
     .f32_flops = 19.5e12,
     .memory_bytes = 80 * kGiB,
     .memory_bytes_per_second = 2039e9,
     .intra_bytes_per_second = 300e9,
     .inter_bytes_per_second = 25e9,
     .matmul_fraction = 0.77,
     .matmul_depth = 63,
     .sms = 108,
     .boost_clock = 1.41e9},
    {.name = "a800",
     .device = "NVIDIA A800 SXM4 80 GB",
     .half_flops = kA100HalfFlops,
     .f32_flops = 19.5e12,
     .memory_bytes = 80 * kGiB,
     .memory_bytes_per_second = 2039e9,
     .intra_bytes_per_second = 200e9,
     .inter_bytes_per_second = 25e9,
     .matmul_fraction = 0.77,
     .matmul_depth = 63,
     .sms = 108,
     .boost_clock = 1.41e9},
    {.name = "h100",
     .device = "NVIDIA H100 SXM5 80 GB",
     .half_flops = kH100HalfFlops,
     .f32_flops = 67e12,
     .memory_bytes = 80 * kGiB,
     .memory_bytes_per_second = 3350e9,
     .intra_bytes_per_second = 450e9,
     .inter_bytes_per_second = 50e9,
     .matmul_fraction = 0.745,
     .matmul_depth = 65,
     .sms = 132,
     .boost_clock = 1.83e9},
    {.name = "h800",
     .device = "NVIDIA H800 SXM5 80 GB",
     .half_flops = kH100HalfFlops,
     .f32_flops = 67e12,
     .memory_bytes = 80 * kGiB,
     .memory_bytes_per_second = 3350e9,
     .intra_bytes_per_second = 200e9,
     .inter_bytes_per_second = 50e9,
     .matmul_fraction = 0.745,
     .matmul_depth = 65,
     .sms = 132,
     .boost_clock = 1.83e9},
    {.name = "h200",
     .device = "NVIDIA H200 SXM5 141 GB",
     .half_flops = kH200HalfFlops,
     .f32_flops = 67e12,
     .memory_bytes = 141e9,
     .memory_bytes_per_second = 4800e9,
     .intra_bytes_per_second = 450e9,
     .inter_bytes_per_second = 50e9,
     .matmul_fraction = 0.745,
     .matmul_depth = 65,
     .sms = 132,
     .boost_clock = 1.83e9},
    {.name = "b200",
     .device = "NVIDIA B200 SXM6 180 GB",
     .half_flops = kB200HalfFlops,
     .f32_flops = 75e12,
     .memory_bytes = 180e9,
     .memory_bytes_per_second = 7700e9,
     .intra_bytes_per_second = 900e9,
     .inter_bytes_per_second = 50e9,
     .matmul_fraction = 0.745,
     .matmul_depth = 65,
     .sms = 148,
     .boost_clock = 1.85e9},
    {.name = "v100",
     .device = "NVIDIA V100 SXM2 32 GB",
     .half_flops = 125e12,
     .f32_flops = 15.7e12,
     .has_tf32 = false,
     .memory_bytes = 32 * kGiB,
     .memory_bytes_per_second = 900e9,
     .intra_bytes_per_second = 150e9,
     .inter_bytes_per_second = 6.25e9,
     .matmul_fraction = 0.77,
     .matmul_depth = 63,
     .sms = 80,
     .boost_clock = 1.53e9,
     .plan_only = true},
};

Machine PresetOf(const DataSheet& sheet) {
  Machine m;
  m.name = sheet.name;
  m.device = sheet.device;
  m.plan_only = sheet.plan_only;
  m.half_flops_per_second = sheet.half_flops;
  m.f32_flops_per_second = sheet.f32_flops;
  m.tf32_flops_per_second = sheet.has_tf32 ? sheet.half_flops / 2 : 0;
  m.multiprocessors = sheet.sms;
  m.exponentials_per_second = kExponentialsOfSm * sheet.sms * sheet.boost_clock;
  m.memory_bytes = sheet.memory_bytes;
  m.memory_bytes_per_second = sheet.memory_bytes_per_second;
  m.intra_bytes_per_second = sheet.intra_bytes_per_second;
  m.inter_bytes_per_second = sheet.inter_bytes_per_second;
  m.intra_latency_seconds = kGpuIntraLatencySeconds;
  m.inter_latency_seconds = kGpuInterLatencySeconds;
  m.matmul_fraction = sheet.matmul_fraction;
  m.matmul_depth = sheet.matmul_depth;
  m.attention_fraction = kGpuAttentionFraction;
  m.bandwidth_fraction = 0.85;
  m.issue_seconds = kGpuIssueSeconds;
  return m;
}

absl::Status Wrong(absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("cluster: ", field, " ", what));
}

}  // namespace

double Machine::PeakFlops(DType dtype) const {
  switch (dtype) {
    case DType::kBF16:
    case DType::kF16:
      return half_flops_per_second;
    case DType::kF32:
      return f32_flops_per_second;
    case DType::kF64:
      return f32_flops_per_second / 2;
    default:
      return 0;
  }
}

double Machine::PeakShare() const { return cpus > 0 ? std::min(1.0, cpus / threads) : 1.0; }

double Machine::CountedPeak(DType dtype) const {
  const bool is_half = dtype == DType::kBF16 || dtype == DType::kF16;
  const bool is_known = is_half && vendor_half_flops_per_second > 0;
  return (is_known ? vendor_half_flops_per_second : PeakFlops(dtype)) * PeakShare();
}

const char* Machine::PeakSource(DType dtype) const {
  const bool is_half = dtype == DType::kBF16 || dtype == DType::kF16;
  return measured && !(is_half && vendor_half_flops_per_second > 0) ? "measured" : "table";
}

const std::vector<MachineConstant>& MachineConstants() {
  static const std::vector<MachineConstant> constants{
      {"half_flops_per_second", "FLOP/s", &Machine::half_flops_per_second, 1e9, 1e17},
      {"f32_flops_per_second", "FLOP/s", &Machine::f32_flops_per_second, 1e9, 1e16},
      {"exponentials_per_second", "1/s", &Machine::exponentials_per_second, 1e6, 1e15},
      {"memory_bytes", "bytes", &Machine::memory_bytes, 1e6, 1e13},
      {"memory_bytes_per_second", "bytes/s", &Machine::memory_bytes_per_second, 1e8, 1e14},
      {"intra_bytes_per_second", "bytes/s", &Machine::intra_bytes_per_second, 1e7, 1e13},
      {"inter_bytes_per_second", "bytes/s", &Machine::inter_bytes_per_second, 1e6, 1e12},
      {"intra_latency_seconds", "s", &Machine::intra_latency_seconds, 0, 1e-2},
      {"inter_latency_seconds", "s", &Machine::inter_latency_seconds, 0, 1e-2},
      {"matmul_fraction", "of peak", &Machine::matmul_fraction, 0.05, 1},
      {"matmul_depth", "elements", &Machine::matmul_depth, 0, 1024},
      {"attention_fraction", "of products", &Machine::attention_fraction, 0.05, 1},
      {"bandwidth_fraction", "of peak", &Machine::bandwidth_fraction, 0.05, 1},
      {"issue_seconds", "s", &Machine::issue_seconds, 0, 1e-3}};
  return constants;
}

std::string Describe(const Machine& machine) {
  std::string text = absl::StrCat(machine.name, ": ", machine.device, ", ", machine.devices_per_node, " a node\n");
  for (const MachineConstant& c : MachineConstants()) {
    absl::StrAppendFormat(&text, "  %-26s %10.4g %s\n", c.name, machine.*c.value, c.unit);
  }
  return text;
}

const std::vector<Machine>& MachinePresets() {
  static const std::vector<Machine> presets = [] {
    std::vector<Machine> machines;
    for (const DataSheet& sheet : kDataSheets) machines.push_back(PresetOf(sheet));
    return machines;
  }();
  return presets;
}

absl::StatusOr<Machine> FindMachine(absl::string_view name) {
  const absl::string_view wanted = name == kAlias ? kAliased : name;
  for (const Machine& m : MachinePresets()) {
    if (m.name == wanted) return m;
  }
  return Wrong("machine", absl::StrCat("\"", name, "\" is not known; known: ", absl::StrJoin(MachineNames(), ", ")));
}

std::vector<std::string> MachineNames() {
  std::vector<std::string> names;
  for (const Machine& machine : MachinePresets()) names.push_back(machine.name);
  names.push_back(kAlias);
  return names;
}

Machine MachineOf(const DeviceProfile& device) {
  Machine m;
  m.name = device.name.empty() ? device.kind : device.name;
  m.device = device.model;
  m.devices_per_node = device.devices_per_machine;
  m.measured = true;
  m.sums_in_order = device.sums_in_order;
  auto peak = [](const std::map<DType, double>& peaks, DType dtype) {
    auto it = peaks.find(dtype);
    return it == peaks.end() ? 0.0 : it->second;
  };
  m.half_flops_per_second = peak(device.matmul_flops_per_second, DType::kBF16);
  m.f32_flops_per_second = peak(device.matmul_flops_per_second, DType::kF32);
  m.tf32_flops_per_second = device.tf32_flops_per_second;
  m.matmul_fraction = device.matmul_fraction;
  m.memory_bytes = static_cast<double>(device.memory_bytes);
  m.memory_bytes_per_second = device.memory_bytes_per_second;
  m.intra_bytes_per_second = m.inter_bytes_per_second = device.link_bytes_per_second;
  m.intra_latency_seconds = m.inter_latency_seconds = device.link_latency_seconds;
  const TargetKind* kind = FindTargetKind(device.kind);
  if (kind == nullptr || !kind->asynchronous) {
    m.shares_cores = kind != nullptr && kind->shares_cores;
    const double half = m.half_flops_per_second * m.matmul_fraction, f32 = m.f32_flops_per_second * m.matmul_fraction;
    m.attention = {half, half, f32};  // nothing is known of it but products
    if (m.shares_cores) m.attention.half = m.attention.half_any = m.attention.f32 = kCpuAttentionFraction * f32;
    m.cpus = device.cpus;
    m.threads = static_cast<double>(device.threads);
    return m;
  }
  for (const auto& [backend, speed] : device.attention_flops_per_second) {
    m.attention.half = std::max(m.attention.half, speed);
    const bool is_tiles = backend == "tiles";  // on plain cores in f32 whatever the dtype
    if (is_tiles || backend == "tensor") m.attention.half_any = std::max(m.attention.half_any, speed);
    if (is_tiles) m.attention.f32 = speed;
  }
  m.vendor_half_flops_per_second = peak(device.peak_flops_per_second, DType::kBF16);
  m.multiprocessors = m.CountedPeak(DType::kBF16) / kFlopsOfMultiprocessor;
  m.matmul_depth = kGpuMatmulDepth;
  m.attention_fraction = kGpuAttentionFraction;
  m.exponentials_per_second = m.half_flops_per_second / kFlopsOfExponential;
  m.issue_seconds = kGpuIssueSeconds;
  m.intra_latency_seconds = std::max(device.link_latency_seconds, kGpuIntraLatencySeconds);
  m.inter_latency_seconds = kGpuInterLatencySeconds;
  m.inter_bytes_per_second = kNetworkBytesPerSecond;
  return m;
}

DeviceProfile ProfileOf(const Machine& machine) {
  DeviceProfile device;
  device.name = machine.name;
  device.kind = machine.shares_cores ? "cpu" : "cuda";
  device.model = machine.device;
  device.memory_bytes = static_cast<int64_t>(machine.memory_bytes);
  device.matmul_flops_per_second[DType::kF32] = machine.f32_flops_per_second * machine.matmul_fraction;
  for (const DType half : {DType::kBF16, DType::kF16})
    device.matmul_flops_per_second[half] = machine.half_flops_per_second * machine.matmul_fraction;
  device.tf32_flops_per_second = machine.tf32_flops_per_second * machine.matmul_fraction;
  device.memory_bytes_per_second = machine.memory_bytes_per_second * machine.bandwidth_fraction;
  device.link_bytes_per_second = machine.intra_bytes_per_second * machine.bandwidth_fraction;
  device.link_latency_seconds = machine.intra_latency_seconds;
  return device;
}

absl::StatusOr<Cluster> MakeCluster(const Machine& machine, int64_t gpus) {
  if (gpus < 1) return Wrong("gpus", absl::StrCat("= ", gpus, "; wanted at least 1"));
  Cluster cluster{machine, 1};
  const int64_t per_node = machine.devices_per_node;
  if (per_node == 0 || gpus < per_node) {
    cluster.machine.devices_per_node = gpus;
  } else if (gpus % per_node == 0) {
    cluster.num_nodes = gpus / per_node;
  } else {
    const int64_t below = gpus / per_node * per_node;
    return Wrong("gpus", absl::StrCat("= ", gpus, " is not a number of whole ", machine.name, " nodes of ", per_node,
                                      "; nearest legal values: ", below, " and ", below + per_node));
  }
  return cluster;
}

absl::StatusOr<Cluster> ParseCluster(absl::string_view text) {
  using nlohmann::json;
  const json root = ParseJson(text);
  if (!root.is_object()) return absl::InvalidArgumentError("cluster: not a mapping of fields");
  if (!root.contains("machine") || !root["machine"].is_string()) {
    return Wrong("machine", absl::StrCat("is missing; known: ", absl::StrJoin(MachineNames(), ", ")));
  }
  TACC_ASSIGN_OR_RETURN(Machine machine, FindMachine(root["machine"].get<std::string>()));
  int64_t nodes = 0, gpus = 0;
  for (const auto& item : root.items()) {
    const std::string& key = item.key();
    const json& value = item.value();
    if (key == "machine") continue;
    if (key == "nodes" || key == "gpus" || key == "devices_per_node") {
      if (!value.is_number_integer() || value.get<int64_t>() < 1 || value.get<int64_t>() > 1'000'000) {
        return Wrong(key, absl::StrCat("= ", value.dump(), "; wanted a whole number from 1 to 1000000"));
      }
      (key == "nodes" ? nodes : key == "gpus" ? gpus : machine.devices_per_node) = value.get<int64_t>();
      continue;
    }
    const auto& constants = MachineConstants();
    const auto found =
        std::find_if(constants.begin(), constants.end(), [&](const MachineConstant& c) { return key == c.name; });
    if (found == constants.end()) {
      return Wrong(key, absl::StrCat("is not known; known: machine, nodes, gpus, devices_per_node, ",
                                     absl::StrJoin(constants, ", ", [](std::string* out, const MachineConstant& c) {
                                       absl::StrAppend(out, c.name);
                                     })));
    }
    const double number = value.is_number() ? value.get<double>() : std::nan("");
    if (!(number >= found->low && number <= found->high)) {
      return Wrong(key,
                   absl::StrFormat("= %s; wanted %g to %g %s", value.dump(), found->low, found->high, found->unit));
    }
    machine.*found->value = number;
  }
  if (gpus > 0 && nodes > 0) return Wrong("gpus", "and nodes are both given; give one");
  if (gpus == 0) gpus = std::max<int64_t>(nodes, 1) * machine.devices_per_node;
  return MakeCluster(machine, gpus);
}

}  // namespace tacc::graph
