#ifndef TACC_GRAPH_TARGETS_TARGETS_H_
#define TACC_GRAPH_TARGETS_TARGETS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/ops/target.h"

namespace tacc::graph {

// The processors of a rank, as far as kernels' scratch memory depends on them.
struct RankProcessors {
  int threads = 1;
  // All CPUs that run it multiply bf16 numbers themselves; else they may go through f32, on some or all of them.
  bool multiplies_bf16 = true;
};

// A kind of device that programs are compiled for.
struct TargetKind {
  const char* name;  // as probes and compile requests say it: DeviceProfile::kind
  // Ranks of a machine share its processors: what moves bytes takes cores from what computes.
  bool shares_cores = false;
  // Kernels run beside the host that issues them, as on GPUs.
  bool asynchronous = false;
  // Parts of a program are captured as graphs and replayed (graph/ir/capture.h).
  bool has_graphs = false;
  // Products of one operand are joined where that is faster.
  bool joins_products = false;
  // Collectives sum in an order of their library's, so a deterministic training sums by itself.
  bool sums_in_library = false;
  std::shared_ptr<const Target> (*make)(const RankProcessors& processors) = nullptr;
};

// One a file: graph/targets/<name>.cc. A vendor's further kind is such a file, a line here and one in targets.cc.
TargetKind CpuTarget();
TargetKind CudaTarget();
// Naive kernels in double precision, which compute as a CPU's do but take no scratch memory.
TargetKind ReferenceTarget();

const std::vector<TargetKind>& TargetKinds();
// Null when there is none of this name.
const TargetKind* FindTargetKind(absl::string_view name);
// Errors: InvalidArgument with the names there are.
absl::StatusOr<TargetKind> ParseTargetKind(absl::string_view name);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_TARGETS_TARGETS_H_
