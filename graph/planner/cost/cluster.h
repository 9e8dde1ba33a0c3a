// Machines and clusters: what devices and links do, by data sheet or by a probe, and seconds of single kernels and
// collectives.
#ifndef TACC_GRAPH_PLANNER_COST_CLUSTER_H_
#define TACC_GRAPH_PLANNER_COST_CLUSTER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/analysis/cost.h"
#include "graph/analysis/group.h"
#include "graph/ir/sharding.h"
#include "graph/ir/type.h"

namespace tacc::graph {

// FLOP/s that attention reaches, forward and backward together; 0: not known.
struct AttentionSpeeds {
  double half = 0;      // of bf16 and f16, of sequences in natural order, causal or not
  double half_any = 0;  // of these with any mask: documents, alibi, rings
  double f32 = 0;
};

// A kind of machine: a node of equal devices, and the network between nodes. The doubles below are its constants, all
// that the cost model knows of it; MachineConstants() names them with units and plausible bounds.
struct Machine {
  std::string name;                    // "h100"
  std::string device;                  // "NVIDIA H100 SXM5 80 GB"
  int64_t devices_per_node = 8;        // 0: all devices are in one node
  bool plan_only = false;              // tacc plans for it, but has no kernels for it
  bool shares_cores = false;           // a CPU: what moves bytes takes cores from what computes
  bool sums_in_order = false;          // of GPUs: by the ranks themselves, in two levels
  double cpus = 0;                     // of those, a device's part of its node's processors; 0: enough for its threads
  double threads = 1;                  // of a device that shares cores
  double half_flops_per_second = 0;    // peak of dense products of bf16 (V100: f16)
  double f32_flops_per_second = 0;     // peak of dense products of f32, without TF32
  double tf32_flops_per_second = 0;    // with it; 0: the device has none
  double exponentials_per_second = 0;  // peak of the units for special functions
  double memory_bytes = 0;             // of a device
  double memory_bytes_per_second = 0;  // peak
  double intra_bytes_per_second = 0;   // peak of a device to the rest of its node, one way
  double inter_bytes_per_second = 0;   // peak of a device's share of its node's network, one way
  double intra_latency_seconds = 0;    // of one step of a collective inside a node
  double inter_latency_seconds = 0;    // of one step of a collective between nodes
  double multiprocessors = 0;          // of a GPU, that share out a product's tiles; 0: none, as on CPUs
  double matmul_fraction = 1;          // of the peak that long products sustain: power and clocks included
  double matmul_depth = 0;             // of a product, at which to fill and drain its tiles takes as long as its FLOPs
  double attention_fraction = 1;       // of what large products reach, that attention does where its speed is not known
  double bandwidth_fraction = 1;       // of the peaks of memory and links that large transfers reach
  double issue_seconds = 0;            // between the starts of two kernels: host, or what a captured graph needs
  bool measured = false;               // by a probe: the peaks above are what products reach
  double vendor_half_flops_per_second = 0;  // of a measured device that is a known one: the vendor's peak
  AttentionSpeeds attention;                // measured, or of tacc's own kernels

  // The peak in that type; 0 for types without products.
  double PeakFlops(DType dtype) const;
  // What of it a device has when all compute: less than 1 where threads take turns on too few processors.
  double PeakShare() const;
  // What MFU counts of a device in that type: the vendor's peak, or, of a measured device that is not a known one or in
  // another type, the measured one; of processors that take turns their share.
  double CountedPeak(DType dtype) const;
  // Which of both: "table" or "measured".
  const char* PeakSource(DType dtype) const;
};

// One of the constants: for printing, parsing and fitting.
struct MachineConstant {
  const char* name;  // as in Machine and in cluster.yaml
  const char* unit;
  double Machine::*value;
  double low, high;  // physically plausible
};
// In the order of Machine.
const std::vector<MachineConstant>& MachineConstants();

// "a100-80g: NVIDIA A100 SXM4 80 GB, 8 a node" and a line a constant: name, value, unit.
std::string Describe(const Machine& machine);

// Known machines: a100-40g a100-80g a800 h100 h800 h200 b200 v100.
const std::vector<Machine>& MachinePresets();
// By name; "a100" is a100-80g. Errors: InvalidArgument with the known names.
absl::StatusOr<Machine> FindMachine(absl::string_view name);
// All names that FindMachine takes.
std::vector<std::string> MachineNames();
// What a probe measured: its figures are reached ones, so the fractions are 1 but for what products sustain of their
// best. Attention is as fast as the fastest of its backends that take the mask, which ranks choose as well. CPUs'
// attention reaches a known part of what products do, and the network between their machines is taken for as fast as
// loopback. What a GPU's probe does not measure is generic: the slowness of small products and the issue of a captured
// graph's kernels as in the presets, the network between machines 100 Gb/s a device.
Machine MachineOf(const DeviceProfile& device);
// A device of the machine, as a probe would find it: what it reaches of its peaks.
DeviceProfile ProfileOf(const Machine& machine);

struct Cluster {
  Machine machine;
  int64_t num_nodes = 1;

  int64_t num_devices() const { return num_nodes * machine.devices_per_node; }
};

// cluster.yaml as JSON: {"machine": "h100", "nodes": 16} or {"machine": "h100", "gpus": 128}; beside them any constant
// of MachineConstants() and "devices_per_node" to differ from the preset. Errors: InvalidArgument "cluster: FIELD ...",
// with the known names or the plausible bounds.
absl::StatusOr<Cluster> ParseCluster(absl::string_view json);
// `gpus` devices of a preset; fewer than a node holds are one smaller node. Errors: InvalidArgument when it is neither
// less than a node nor a number of whole nodes, with the nearest legal values.
absl::StatusOr<Cluster> MakeCluster(const Machine& machine, int64_t gpus);

// Products by expert, each with its own slots: what they are of a product.
enum class SlotsAre { kNone, kRows, kDepth };  // kDepth: of a weight's gradient
// The extents of a matrix product, or of each of several in one kernel, as many as share out its FLOPs; 0: large.
struct ProductShape {
  double rows = 0, columns = 0, depth = 0;  // of slots the mean
  SlotsAre slots = SlotsAre::kNone;
};
// Seconds of a kernel on a device. Without products: its bytes at the reached bandwidth. A product's FLOPs run at the
// reached share of the peak of `dtype`, more slowly where extents are small. On a GPU
//   seconds = FLOPs / rate (1 + matmul_depth / depth) (1 + 1 / (2 waves)) + bytes / bandwidth
// for each tile of the result is filled and drained once, whatever its depth; multiprocessors take tiles in waves (the
// tiles over the multiprocessors), of which the last is half empty on average; and what a product loads first and
// writes last hides behind nothing, nor what caches read again. Of experts' rows the last tile is half empty. CPUs have
// no waves and hide their bytes; but for each expert they gather and scatter rows, fill them up where they are of 16
// bits (kernels/cpu/expert.cc), and lay out its matrix: short products with copies between them, where nothing hides.
double KernelSeconds(const Machine& machine, DType dtype, double matmul_flops, double bytes,
                     const ProductShape& shape = {});
// Seconds to copy so many bytes in a device's memory, each read and written.
double CopySeconds(const Machine& machine, double bytes);
// Seconds of attention, whose scores stay on the device's cores: the larger of its FLOPs at the speed that is known of
// it and its bytes at the reached bandwidth. Where none is known, the attention_fraction of products' speed, with the
// FLOPs that a gradient repeats, and beside them its exponentials.
double AttentionSeconds(const Machine& machine, DType dtype, AttentionMask mask, double matmul_flops,
                        double exponentials, double bytes, double repeated_flops = 0);
// Seconds of `num_kernels` that take `device_seconds` in all and whose issue takes issue_seconds each. Both overlap,
// but not perfectly: the 4-norm of the two.
double IssuedSeconds(const Machine& machine, double device_seconds, double num_kernels);

enum class CollectiveKind {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  // Each rank sends all that it has, inside its node and its node's sum to the others: how sums are taken that are
  // small enough for it (IsWholeAllReduce). For n ranks, m in each of several nodes, that is about (n - m) / 2 times
  // what a ring sends between nodes, of a few KB: what counts is latency, and it has two rounds of messages less.
  kWholeAllReduce,
  kAllToAll,
  kRotate,  // each rank sends what it has to the next
  kSend,
};

// What a device of a group sends in a collective, on average over the group.
struct LinkBytes {
  double intra = 0;  // to devices of its node
  double inter = 0;  // to other nodes
};
// `bytes`: the whole tensor for all_gather (its result), reduce_scatter (its operand) and all_reduce; what a rank holds
// for all_to_all, rotate and send. On GPUs gathers and sums go around rings, cut into as many channels as the group has
// devices in a node, each over its own share of the network; on CPUs each rank sends to each other one, across nodes in
// two levels (worker/rank/collectives/two_levels.h), and so do GPUs whose sums are in order. A send crosses nodes
// unless in_node > 1.
LinkBytes BytesOverLinks(const Machine& machine, CollectiveKind kind, double bytes, const GroupShape& group);

// Seconds of a collective that has the links of its ranks to itself; all groups of the mesh run theirs at once. `bytes`
// as above. All_reduce between nodes takes a tree where that is faster.
// Source: NCCL's algorithms; Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
// MPICH", 2005.
double CollectiveSeconds(const Machine& machine, CollectiveKind kind, double bytes, const GroupShape& group);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_COST_CLUSTER_H_
