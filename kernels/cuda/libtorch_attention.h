// LibTorch's attention on a GPU (flash attention, cuDNN's), for what it takes: much faster than
// kernels/cuda/attention.h where both can. Not in the library for tests on the host.
#ifndef TACC_KERNELS_CUDA_LIBTORCH_ATTENTION_H_
#define TACC_KERNELS_CUDA_LIBTORCH_ATTENTION_H_

#include <memory>

#include "kernels/cuda/attention.h"

namespace tacc::kernels::cuda {

// One of its backends, for what WhyNotLibtorch takes. Errors are exceptions of LibTorch's. Scratch:
// AttentionWorkspaceBytes, AttentionGradWorkspaceBytes. The gradient is deterministic only by kFlash, and if LibTorch
// is told so (at::globalContext().setDeterministicAlgorithms).
class LibtorchAttention : public FastAttention {
 public:
  // kFlash or kCudnn. Runs a small problem of this dtype and head dim, to learn what the backend gives and wants.
  LibtorchAttention(AttentionBackend backend, DType dtype, int64_t head_dim);
  ~LibtorchAttention() override;
  LibtorchAttention(LibtorchAttention&&);

  void Run(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionExtras& extras,
           const AttentionParameters& parameters, const TensorView& out, const TensorView& lse) const override;
  void RunGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
               const TensorView& out, const TensorView& lse, const TensorView& first_keys,
               const AttentionParameters& parameters, const TensorView& dq, const TensorView& dk,
               const TensorView& dv) const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_LIBTORCH_ATTENTION_H_
