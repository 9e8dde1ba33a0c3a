// The CPU's kernels: own threads, loops of kernels/cpu/simd, and LibTorch's products.
#ifndef TACC_KERNELS_CPU_KERNELS_H_
#define TACC_KERNELS_CPU_KERNELS_H_

#include "kernels/contract/families.h"

namespace tacc::kernels::cpu {

extern const AdafactorKernels kAdafactor;
extern const AttentionKernels kAttention;
extern const ChannelKernels kChannel;
extern const ConvolutionKernels kConvolution;
extern const CrossEntropyKernels kCrossEntropy;
extern const DispatchKernels kDispatch;
extern const DropoutKernels kDropout;
extern const EinsumKernels kEinsum;
extern const EmbeddingKernels kEmbedding;
extern const ExpertKernels kExpert;
extern const LrScheduleKernels kLrSchedule;
extern const NormKernels kNorm;
extern const OptimizerKernels kOptimizer;
extern const PointwiseKernels kPointwise;
extern const PoolKernels kPool;
extern const ReduceKernels kReduce;
extern const ResampleKernels kResample;
extern const RotaryKernels kRotary;
extern const RouterKernels kRouter;
extern const ShapeKernels kShape;
extern const SumSquaresKernels kSumSquares;
extern const UnaryKernels kUnary;

// All of them.
extern const Kernels kKernels;

}  // namespace tacc::kernels::cpu

#endif  // TACC_KERNELS_CPU_KERNELS_H_
