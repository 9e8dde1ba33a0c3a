#ifndef TACC_WORKER_RANK_REFERENCE_REFERENCE_KERNELS_H_
#define TACC_WORKER_RANK_REFERENCE_REFERENCE_KERNELS_H_

#include <functional>
#include <string>

#include "graph/interpreter/evaluate.h"
#include "worker/rank/device/kernel_table.h"

namespace tacc::worker {

// The mathematics of every op as a device: operands become doubles, plain loops compute, results are rounded to their
// dtype. Hundreds of times slower than a CPU's kernels; what other devices' results are held to, and the least that a
// further kind of device consists of. Takes no workspace (graph/targets/reference.cc).
class ReferenceKernels : public KernelTable {
 public:
  // Errors: Unimplemented for an op that has no evaluator.
  absl::StatusOr<Kernel> Prepare(const KernelRequest& request) const override;

 private:
  interpreter::EvaluatorTable evaluators_;
};

// `cpu_probe`, what a probe of the CPU printed, as one of the reference device: its products measured anew.
std::string ProbeReference(const std::string& cpu_probe, const std::function<double()>& seconds);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_REFERENCE_REFERENCE_KERNELS_H_
