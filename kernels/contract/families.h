#ifndef TACC_KERNELS_CONTRACT_FAMILIES_H_
#define TACC_KERNELS_CONTRACT_FAMILIES_H_

namespace tacc::kernels {

// Each family has a header beside this one; all of them together are in kernels.h.
struct AdafactorKernels;
struct AttentionKernels;
struct ChannelKernels;
struct ConvolutionKernels;
struct CrossEntropyKernels;
struct DispatchKernels;
struct DropoutKernels;
struct EinsumKernels;
struct EmbeddingKernels;
struct ExpertKernels;
struct LrScheduleKernels;
struct NormKernels;
struct OptimizerKernels;
struct PointwiseKernels;
struct PoolKernels;
struct ReduceKernels;
struct ResampleKernels;
struct RotaryKernels;
struct RouterKernels;
struct ShapeKernels;
struct SumSquaresKernels;
struct UnaryKernels;
struct Kernels;

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_FAMILIES_H_
