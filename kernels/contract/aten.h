// Operators of LibTorch, called by name, and their derivatives by its autograd.
#ifndef TACC_KERNELS_CONTRACT_ATEN_H_
#define TACC_KERNELS_CONTRACT_ATEN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor.h"

namespace tacc::kernels {

// A call as the op `aten` writes it (graph/ops/torch/aten.cc). Beside that, "@0" is result 0, for operators that write
// their results themselves ("aten::lt.Tensor_out").
struct AtenCall {
  std::string schema;             // "aten::cumsum.default"
  std::vector<std::string> args;  // "%0", "#1", "[%0,none]", "true", "0.5", "mean"
  std::vector<int64_t> ints;      // what #N names
};

// What of a call's derivative is computed.
struct AtenDerivative {
  std::vector<int64_t> needed;  // operands whose gradients are the results
  std::vector<int64_t> given;   // results that have a cotangent
};

class AtenKernel {
 public:
  virtual ~AtenKernel() = default;

  // Computes the call of operands `in` into `out`. Operands of 16 bits are converted to f32 first, and results to the
  // types of `out`, but where the operator writes them itself. Throws what LibTorch throws, and std::runtime_error
  // where its results have other dims than `out`.
  virtual void Run(const std::vector<TensorView>& in, const std::vector<TensorView>& out) const = 0;

  // The gradients of operands `in`: computes the call again, and back from the cotangents.
  virtual void RunDerivative(const AtenDerivative& derivative, const std::vector<TensorView>& in,
                             const std::vector<TensorView>& cotangents, const std::vector<TensorView>& out) const = 0;
};

struct AtenKernels {
  // Errors: NotFound: neither LibTorch nor a library that was loaded has such an operator; InvalidArgument: it changes
  // its operands or draws random numbers, or the arguments are not those of its schema.
  absl::StatusOr<std::shared_ptr<const AtenKernel>> (&PrepareAten)(const AtenCall& call);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_ATEN_H_
