// The CPU's kernels: own threads, loops of kernels/cpu/simd, and LibTorch's products.
#ifndef TACC_KERNELS_CPU_KERNELS_H_
#define TACC_KERNELS_CPU_KERNELS_H_

namespace tacc::kernels {

// kernels/contract has a header for each.
struct AdamWKernels;
struct AttentionKernels;
struct CrossEntropyKernels;
struct DispatchKernels;
struct DropoutKernels;
struct EinsumKernels;
struct EmbeddingKernels;
struct ExpertKernels;
struct LrScheduleKernels;
struct NormKernels;
struct PointwiseKernels;
struct ReduceKernels;
struct RotaryKernels;
struct RouterKernels;
struct ShapeKernels;
struct SumSquaresKernels;
struct UnaryKernels;
struct Kernels;

namespace cpu {

extern const AdamWKernels kAdamW;
extern const AttentionKernels kAttention;
extern const CrossEntropyKernels kCrossEntropy;
extern const DispatchKernels kDispatch;
extern const DropoutKernels kDropout;
extern const EinsumKernels kEinsum;
extern const EmbeddingKernels kEmbedding;
extern const ExpertKernels kExpert;
extern const LrScheduleKernels kLrSchedule;
extern const NormKernels kNorm;
extern const PointwiseKernels kPointwise;
extern const ReduceKernels kReduce;
extern const RotaryKernels kRotary;
extern const RouterKernels kRouter;
extern const ShapeKernels kShape;
extern const SumSquaresKernels kSumSquares;
extern const UnaryKernels kUnary;

// All of them.
extern const Kernels kKernels;

}  // namespace cpu

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CPU_KERNELS_H_
