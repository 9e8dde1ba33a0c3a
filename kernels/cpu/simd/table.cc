#include "kernels/cpu/simd/attention.h"
#include "kernels/cpu/simd/channels.h"
#include "kernels/cpu/simd/optimizer.h"
#include "kernels/cpu/simd/pointwise.h"
#include "kernels/cpu/simd/rows.h"

// TACC_ISA names the namespace of this instruction set, TACC_ISA_LOOPS its table.
#define TACC_STRING2(x) #x
#define TACC_STRING(x) TACC_STRING2(x)

namespace tacc::kernels::simd {

const Loops TACC_ISA_LOOPS = {
    .name = TACC_STRING(TACC_ISA),
    .unary = TACC_ISA::Unary,
    .unary_grad = TACC_ISA::UnaryGrad,
    .binary = TACC_ISA::Binary,
    .swiglu = TACC_ISA::Swiglu,
    .swiglu_grad = TACC_ISA::SwigluGrad,
    .sum = TACC_ISA::Sum,
    .sum_squares = TACC_ISA::SumSquares,
    .max = TACC_ISA::Max,
    .is_finite = TACC_ISA::IsFinite,
    .accumulate_f64 = TACC_ISA::AccumulateF64,
    .accumulate_f32 = TACC_ISA::AccumulateF32,
    .accumulate_max = TACC_ISA::AccumulateMax,
    .add_sums = TACC_ISA::AddSums,
    .affine = TACC_ISA::Affine,
    .rms_norm = TACC_ISA::RmsNorm,
    .rms_norm_grad = TACC_ISA::RmsNormGrad,
    .layer_norm = TACC_ISA::LayerNorm,
    .layer_norm_grad = TACC_ISA::LayerNormGrad,
    .l2_normalize = TACC_ISA::L2Normalize,
    .l2_normalize_grad = TACC_ISA::L2NormalizeGrad,
    .rotary = TACC_ISA::Rotary,
    .cross_entropy = TACC_ISA::CrossEntropy,
    .cross_entropy_grad = TACC_ISA::CrossEntropyGrad,
    .update = TACC_ISA::Update,
    .dropout = TACC_ISA::Dropout,
    .attention = TACC_ISA::AttentionForward,
    .attention_grad = TACC_ISA::AttentionBackward,
    .attention_bias_grad = TACC_ISA::AttentionBiasBackward,
};

}  // namespace tacc::kernels::simd
