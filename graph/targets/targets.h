// The kinds of devices that programs are compiled for.
#ifndef TACC_GRAPH_TARGETS_TARGETS_H_
#define TACC_GRAPH_TARGETS_TARGETS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/ops/target.h"

namespace tacc::graph {

// What kernels' scratch memory depends on of a rank's processors.
struct RankProcessors {
  int threads = 1;
  // True: all CPUs that run the program multiply bf16 natively. False: some or all may go through f32.
  bool multiplies_bf16 = true;
};

// Of kernels' scratch, the sums of parts of the samples in which the gradient of attention's bias is made, as
// kernels/contract/attention.h has their number.
int64_t BiasGradSumBytes(const TensorType& q, const TensorType& bias);

// A kind of device that programs are compiled for: the properties that plans and passes ask about.
struct TargetKind {
  const char* name;  // static; as probes and compile requests say it: DeviceProfile::kind
  // Ranks of a machine share its processors: what moves bytes takes cores from what computes.
  bool shares_cores = false;
  // Kernels run beside the host that issues them, as on GPUs.
  bool asynchronous = false;
  // Parts of a program are captured as graphs and replayed (graph/ir/capture.h).
  bool has_graphs = false;
  // Products of one operand are joined where that is faster.
  bool joins_products = false;
  // Collectives sum in an order that their library chooses; train.deterministic therefore sums by its own kernels.
  bool sums_in_library = false;
  // Makes the target of a rank with such processors.
  std::shared_ptr<const Target> (*make)(const RankProcessors& processors) = nullptr;
};

// Each lies in graph/targets/<name>.cc. Another vendor's kind is such a file, a line here and a line in targets.cc.
TargetKind CpuTarget();
TargetKind CudaTarget();
// Naive kernels in double precision, which compute as a CPU's do but take no scratch memory.
TargetKind ReferenceTarget();

// All kinds. Lives as long as the process, as the kinds do that FindTargetKind points to.
const std::vector<TargetKind>& TargetKinds();
// Null when no kind has the name.
const TargetKind* FindTargetKind(absl::string_view name);
// The same, by value. Errors: InvalidArgument with the known names.
absl::StatusOr<TargetKind> ParseTargetKind(absl::string_view name);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_TARGETS_TARGETS_H_
