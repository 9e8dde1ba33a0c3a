// What kernels and collectives take on a machine (cluster.h).
#include <algorithm>
#include <cmath>

#include "graph/planner/cost/cluster.h"

namespace tacc::graph {
namespace {

// Of products by expert in 16 bits, rows are filled up to multiples of it: kExpertRowStep of kernels/cpu/expert.cc.
constexpr double kCpuRowStep = 32;
// The largest tile of the libraries' products in half precision, since A100 (CUTLASS, cuBLAS).
constexpr double kTileRows = 128, kTileColumns = 256;

// How much longer a GPU takes for a product than for its FLOPs alone.
double SlownessOnTiles(const Machine& machine, double flops, const ProductShape& shape) {
  double slowness = shape.depth > 0 ? 1 + machine.matmul_depth / shape.depth : 1;
  if (shape.rows <= 0 || shape.columns <= 0 || shape.depth <= 0) return slowness;
  const double padding = shape.slots == SlotsAre::kRows ? 1 + kTileRows / 2 / shape.rows : 1;
  const double products = flops / (2 * shape.rows * shape.columns * shape.depth);
  const double tiles = products * padding * shape.rows * shape.columns / (kTileRows * kTileColumns);
  return slowness * padding * (1 + machine.multiprocessors / 2 / tiles);
}

// What a CPU takes for products by expert beside one plain product of as many FLOPs: bytes that it copies, and FLOPs of
// rows that are filled up.
struct GroupedExtras {
  double copied_bytes = 0, flops = 0;
};
GroupedExtras GroupedExtrasOf(DType dtype, double flops, const ProductShape& shape) {
  const bool by_rows = shape.slots == SlotsAre::kRows;
  const double of_each = by_rows ? shape.rows : shape.depth, other = by_rows ? shape.depth : shape.rows;
  if (shape.slots == SlotsAre::kNone || of_each <= 0 || other <= 0 || shape.columns <= 0) return {};
  const auto width = static_cast<double>(ByteSize(dtype));
  const double experts = flops / (2 * shape.rows * shape.columns * shape.depth);
  const double rows = experts * of_each * (other + shape.columns), matrices = experts * other * shape.columns;
  return {width * rows + (by_rows ? width : ByteSize(DType::kF32)) * matrices,
          width == 2 ? flops * kCpuRowStep / 2 / of_each : 0};
}

}  // namespace

double KernelSeconds(const Machine& machine, DType dtype, double matmul_flops, double bytes,
                     const ProductShape& shape) {
  const double transfer = bytes / std::max(machine.memory_bytes_per_second * machine.bandwidth_fraction, 1.0);
  if (matmul_flops <= 0) return transfer;
  double peak = machine.PeakFlops(dtype);
  if (peak <= 0) peak = machine.f32_flops_per_second;
  const double product = matmul_flops / std::max(peak * machine.matmul_fraction, 1.0);
  if (machine.shares_cores) {
    if (shape.slots == SlotsAre::kNone) return std::max(transfer, product);
    const GroupedExtras extras = GroupedExtrasOf(dtype, matmul_flops, shape);
    return product * (1 + extras.flops / matmul_flops) + transfer + CopySeconds(machine, extras.copied_bytes);
  }
  if (machine.multiprocessors <= 0) return std::max(transfer, product);
  return product * SlownessOnTiles(machine, matmul_flops, shape) + transfer;
}

double CopySeconds(const Machine& machine, double bytes) { return KernelSeconds(machine, DType::kF32, 0, 2 * bytes); }

double AttentionSeconds(const Machine& machine, DType dtype, AttentionMask mask, double matmul_flops,
                        double exponentials, double bytes, double repeated_flops) {
  const AttentionSpeeds& known = machine.attention;
  const bool is_half = dtype == DType::kBF16 || dtype == DType::kF16;
  const double speed = !is_half ? known.f32 : mask == AttentionMask::kPlain ? known.half : known.half_any;
  if (speed <= 0) {
    const double products = KernelSeconds(machine, dtype, matmul_flops + repeated_flops, 0);
    const double seconds = products + exponentials / std::max(machine.exponentials_per_second, 1.0);
    return std::max(seconds / machine.attention_fraction, KernelSeconds(machine, dtype, 0, bytes));
  }
  return std::max(matmul_flops / speed, KernelSeconds(machine, dtype, 0, bytes));
}

double IssuedSeconds(const Machine& machine, double device_seconds, double num_kernels) {
  return std::pow(std::pow(device_seconds, 4) + std::pow(num_kernels * machine.issue_seconds, 4), 0.25);
}

LinkBytes BytesOverLinks(const Machine& machine, CollectiveKind kind, double bytes, const GroupShape& group) {
  if (group.size <= 1) return {};
  const double n = static_cast<double>(group.size), m = static_cast<double>(group.in_node);
  const double nodes = static_cast<double>(group.num_nodes());
  const bool crosses = group.num_nodes() > 1;
  switch (kind) {
    case CollectiveKind::kSend:
      return group.in_node > 1 ? LinkBytes{bytes, 0} : LinkBytes{0, bytes};
    case CollectiveKind::kRotate:
      return crosses ? LinkBytes{bytes * (m - 1) / m, bytes / m} : LinkBytes{bytes, 0};
    case CollectiveKind::kAllToAll:
      return {bytes * (m - 1) / n, bytes * (n - m) / n};
    case CollectiveKind::kWholeAllReduce:
      return {bytes * (m - 1), bytes * (nodes - 1)};
    default:
      break;
  }
  const double times = kind == CollectiveKind::kAllReduce ? 2 : 1;
  const LinkBytes levels{bytes * (m - 1) / m, bytes * (nodes - 1) / n};
  if (machine.shares_cores) return {times * levels.intra, times * levels.inter};
  if (machine.sums_in_order && kind != CollectiveKind::kAllGather) {
    if (kind == CollectiveKind::kReduceScatter) return levels;
    const LinkBytes gathered = BytesOverLinks(machine, CollectiveKind::kAllGather, bytes, group);
    return {levels.intra + gathered.intra, levels.inter + gathered.inter};
  }
  const double around = times * bytes * (n - 1) / n;
  return crosses ? LinkBytes{around * (m - 1) / m, around / m} : LinkBytes{around, 0};
}

double CollectiveSeconds(const Machine& machine, CollectiveKind kind, double bytes, const GroupShape& group) {
  if (group.size <= 1) return 0;
  const double n = static_cast<double>(group.size), m = static_cast<double>(group.in_node);
  const double nodes = static_cast<double>(group.num_nodes());
  const bool crosses = group.num_nodes() > 1;
  const LinkBytes sent = BytesOverLinks(machine, kind, bytes, group);
  const double intra = sent.intra / std::max(machine.intra_bytes_per_second * machine.bandwidth_fraction, 1.0);
  const double inter = sent.inter / std::max(machine.inter_bytes_per_second * machine.bandwidth_fraction, 1.0);
  const double intra_step = machine.intra_latency_seconds;
  const double inter_step = crosses ? machine.inter_latency_seconds : 0.0;
  switch (kind) {
    case CollectiveKind::kSend:
      return group.in_node > 1 ? intra + intra_step : inter + machine.inter_latency_seconds;
    case CollectiveKind::kRotate:
      // All wait for the one that sends to another node.
      return crosses ? m * inter + inter_step : intra + intra_step;
    case CollectiveKind::kAllToAll:
      return std::max(intra + (m - 1) * intra_step, inter + (nodes - 1) * inter_step);
    case CollectiveKind::kWholeAllReduce:
      return intra + inter + (m - 1) * intra_step + (nodes - 1) * inter_step;
    default:
      break;
  }
  const bool is_in_order = machine.sums_in_order && kind != CollectiveKind::kAllGather;
  if (is_in_order && kind == CollectiveKind::kAllReduce) {
    return CollectiveSeconds(machine, CollectiveKind::kReduceScatter, bytes, group) +
           CollectiveSeconds(machine, CollectiveKind::kAllGather, bytes, group);
  }
  // Levels come one after the other; a ring's links all work at once.
  const double transfer = machine.shares_cores || is_in_order ? intra + inter : std::max(intra, inter);
  const double ring_steps = (n - nodes) * intra_step + (nodes - 1) * inter_step;
  if (kind != CollectiveKind::kAllReduce) return transfer + ring_steps;
  const double tree_steps = (m - 1) * intra_step + std::ceil(std::log2(nodes)) * inter_step;
  return transfer + 2 * std::min(ring_steps, tree_steps);
}

}  // namespace tacc::graph
