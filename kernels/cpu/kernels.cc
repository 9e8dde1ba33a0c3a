#include "kernels/cpu/kernels.h"

#include "kernels/contract/kernels.h"
#include "kernels/cpu/aten_call.h"
#include "kernels/cpu/scratch.h"

namespace tacc::kernels::cpu {

namespace {

ScratchMemory TakeScratch(int64_t bytes) {
  const auto scratch = std::make_shared<Scratch>(bytes);
  return {scratch, scratch->data()};
}

}  // namespace

const Kernels kKernels = {
    .device = "CPU",
    .TakeScratch = TakeScratch,
    .adafactor = kAdafactor,
    .aten = kAten,
    .attention = kAttention,
    .channel = kChannel,
    .convolution = kConvolution,
    .cross_entropy = kCrossEntropy,
    .dispatch = kDispatch,
    .dropout = kDropout,
    .einsum = kEinsum,
    .embedding = kEmbedding,
    .expert = kExpert,
    .lr_schedule = kLrSchedule,
    .norm = kNorm,
    .optimizer = kOptimizer,
    .pointwise = kPointwise,
    .pool = kPool,
    .reduce = kReduce,
    .resample = kResample,
    .rotary = kRotary,
    .router = kRouter,
    .shape = kShape,
    .sum_squares = kSumSquares,
    .unary = kUnary,
};

}  // namespace tacc::kernels::cpu
