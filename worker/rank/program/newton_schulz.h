#ifndef TACC_WORKER_RANK_PROGRAM_NEWTON_SCHULZ_H_
#define TACC_WORKER_RANK_PROGRAM_NEWTON_SCHULZ_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/contract/kernels.h"

namespace tacc::worker {

// Brings each of a stack of matrices near the orthogonal matrix next to it, by a device's own products: divided by its
// norm, `steps` times X = a X + (b A + c A A) X with A = X X^T. Source: Jordan et al., "Muon: An optimizer for hidden
// layers in neural networks"; coefficients and order as torch.optim.Muon, in the matrices' own type.
class NewtonSchulz {
 public:
  // x and y: of one type, [..., rows, columns] one after the other in memory; y may be x. Errors: as PrepareEinsum.
  static absl::StatusOr<NewtonSchulz> Prepare(const kernels::Kernels& kernels, const kernels::TensorView& x,
                                              const kernels::TensorView& y, int64_t rows, int64_t columns,
                                              int64_t steps);
  void Run() const;

 private:
  explicit NewtonSchulz(const kernels::Kernels& kernels) : kernels_(&kernels) {}
  void RunOne(const kernels::TensorView& from, const kernels::TensorView& to, char* scratch) const;

  const kernels::Kernels* kernels_;
  kernels::TensorView x_, y_;
  int64_t rows_ = 0, columns_ = 0, steps_ = 0;
  std::shared_ptr<const kernels::EinsumKernel> gram_, square_, apply_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_NEWTON_SCHULZ_H_
