// FLOPs, bytes and seconds of nodes and of whole steps on a device that was measured.
#ifndef TACC_GRAPH_ANALYSIS_COST_H_
#define TACC_GRAPH_ANALYSIS_COST_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "graph/analysis/group.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// What a device can do; measured by `tacc-rank --probe`.
struct DeviceProfile {
  std::string name;
  std::string kind;  // a name of graph/targets; "": not known
  std::string model;
  int64_t threads = 1;
  int64_t memory_bytes = 0;
  std::map<DType, double> matmul_flops_per_second;
  double matmul_fraction = 1;  // of those that long computations sustain
  // Of CPUs: all ranks' multiply bf16 themselves; else such products may go through f32. Absent: not known.
  std::optional<bool> multiplies_bf16;
  double tf32_flops_per_second = 0;  // of products of f32 in TF32; 0: the device has none
  // Of causal attention in bf16, forward and backward, by backend: tiles and tensor are tacc's own, which take every
  // mask; others only the plain ones. Empty: not measured.
  std::map<std::string, double> attention_flops_per_second;
  double memory_bytes_per_second = 0;
  // The vendor's dense peaks, where the device is a known one: what MFU counts. Others count what was measured.
  std::map<DType, double> peak_flops_per_second;
  int64_t devices_per_machine = 0;   // of the ranks' devices; 0: all are in one machine
  double link_bytes_per_second = 0;  // to another rank
  double link_latency_seconds = 0;   // of one collective
  double cpus = 0;                   // a rank's part of its machine's processors; 0: enough for its threads
  bool sums_in_order = false;        // of a GPU: train.deterministic, ranks sum themselves instead of their library
};

// Matrix-product FLOPs of one training step of the model (attention causal, repeats by re-gather or remat not counted):
// the numerator of MFU. For a logical program.
double ModelFlops(const Program& program, const OpTable& ops);

struct StepCost {
  double matmul_flops = 0;           // of a rank, repeats included
  double compute_seconds = 0;        // roofline: each node max(FLOPs / peak, bytes / bandwidth)
  double communication_seconds = 0;  // copies around collectives included
  int64_t sent_bytes = 0;            // by a rank
  int64_t num_collectives = 0;
  int64_t packed_bytes = 0;  // by a rank, around collectives
  int64_t num_packed = 0;    // of the collectives: those with such copies
  // Compute and communication share a CPU's cores, so they add up.
  double seconds() const { return compute_seconds + communication_seconds; }
};
// A partitioned (or later) program's step on this device; what is packed is that of `rank`. Each state that it sends is
// one of the program's.
StepCost StepCostOf(const Program& program, const OpTable& ops, const DeviceProfile& device, int64_t rank = 0);

// Nodes that take no time: names of states and inputs, waits, and values that share their operand's place.
bool IsFree(const OpDef& def, const OpCall& call, const Node& node);

// The type of a product's factors (is_matmul): its speed. The first operand may be a wider sum or gradient.
DType ProductType(const OpCall& call);

// The keys that an attention's queries may see.
enum class AttentionMask {
  kPlain,  // all keys, or those before them, of a whole sequence in natural order
  kAny,    // else: documents, alibi, sinks, biases, windows, soft caps, dropout, a ring's steps
};
// Absent for other ops than attention and its gradient.
std::optional<AttentionMask> MaskOfAttention(const Op& op, const OpCall& call);

// What an attention's kernel does beside the `flops` that are counted of it: an exponential for each score that its
// mask lets through, and in a gradient the product that makes the scores again.
struct AttentionExtras {
  double exponentials = 0;
  double repeated_flops = 0;
};
AttentionExtras ExtrasOfAttention(const Op& op, const OpCall& call, double flops);

// Who runs a collective.
struct CollectiveRanks {
  bool on_cpus = false;
  bool sums_in_order = false;  // on GPUs; there the library sums else, where the result has the summands' type
  int64_t devices_per_node = 0;
  int64_t rank = 0;  // which of them, of all stages: of a dim that is cut with padding the last ones have less
};

// Whether an all_reduce or stage_sum is so small that all ranks send all that they have (collective_limits.h).
bool IsWholeAllReduce(const Graph& graph, const Node& node, const GroupShape& group, const CollectiveRanks& ranks);

// Bytes that one rank sends for a collective, over the ranks of `over`: all_gather (n-1) x its part, reduce_scatter
// (n-1) x the part it gets, all_reduce both, all_to_all (n-1)/n of its operand; a small all_reduce its operand to each
// member of its node and to one of each other node. 0 for other ops.
int64_t SentBytes(const Graph& graph, const Node& node, const Mesh& mesh, const CollectiveRanks& ranks = {});

// Bytes that the rank copies around a collective. A GPU's library takes parts that are equal and lie in a row: copies
// bring them into that order before it and out of it after. 0 where values lie so already, as those of a gather or a
// sum along the first dim do, or in up to kMaxRowsInPlace such rows. Sums in order, and those that widen, are the
// ranks' own: they pack what does not lie in one row, and a large one is gathered in pieces, which are packed where
// they are not equal. So do CPUs with all that does not lie in one row, and their messages may be of any size.
int64_t PackedBytes(const Graph& graph, const Node& node, const Mesh& mesh, const CollectiveRanks& ranks = {});

}  // namespace tacc::graph

#endif  // TACC_GRAPH_ANALYSIS_COST_H_
