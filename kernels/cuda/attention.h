// Who computes attention on a GPU: kernels of our own, or LibTorch's.
#ifndef TACC_KERNELS_CUDA_ATTENTION_H_
#define TACC_KERNELS_CUDA_ATTENTION_H_

#include <string>

#include "kernels/contract/attention.h"

namespace tacc::kernels::cuda {

// What travels in a kernel's parameters.
inline constexpr int kMaxAttentionRuns = 96;
inline constexpr int kMaxAttentionHeads = 128;

// Empty if kAttention (kernels/cuda/kernels.h) takes it; else which limit is passed: head dims up to 256 (128 in f64),
// the two above. To be asked before it is called.
std::string AttentionLimit(const TensorView& q, const TensorView& v, const AttentionParameters& parameters);

// Attention by somebody else, for problems that it was made for: as Attention and AttentionGrad.
class FastAttention {
 public:
  virtual ~FastAttention() = default;
  virtual void Run(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionExtras& extras,
                   const AttentionParameters& parameters, const TensorView& out, const TensorView& lse) const = 0;
  virtual void RunGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                       const TensorView& out, const TensorView& lse, const TensorView& first_keys,
                       const AttentionParameters& parameters, const TensorView& dq, const TensorView& dk,
                       const TensorView& dv) const = 0;
};

// Our own on plain cores (kernels/cuda/kernels.h) and on tensor cores (attention_tensor.h), and LibTorch's
// (libtorch_attention.h).
enum class AttentionBackend { kTiles, kTensor, kFlash, kCudnn };
inline constexpr const char* Name(AttentionBackend backend) {
  constexpr const char* kNames[] = {"tiles", "tensor", "flash", "cudnn"};
  return kNames[static_cast<int>(backend)];
}

// Empty if LibTorch may be asked; else why not: it takes bf16 and f16, head dims that are multiples of 8 up to 256, the
// natural order, a causal mask (as many keys as queries) or none, pitches that are multiples of 8, no bias of keys,
// and nothing of `extras`.
std::string WhyNotLibtorch(const TensorView& q, const TensorView& k, const AttentionExtras& extras,
                           const AttentionParameters& parameters);

// Whether results must be the same to the bit each time: LibTorch's backward then takes more scratch.
enum class Determinism { kAny, kRequired };

// The most scratch that attention and its gradient take, by any of the backends: of the dims [B,S,H,D] of q and
// [B,T,K,D] of k, with a pitch or without.
int64_t AttentionWorkspaceBytes(const Dims& q, const Dims& k, DType dtype);
int64_t AttentionGradWorkspaceBytes(const Dims& q, const Dims& k, DType dtype, Determinism determinism);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_ATTENTION_H_
