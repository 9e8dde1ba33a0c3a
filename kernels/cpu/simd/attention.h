// Flash attention on blocks that stay in cache; see loops.h. Source: Dao et al., "FlashAttention", NeurIPS 2022,
// algorithms 1 and 4.
#ifndef TACC_KERNELS_CPU_SIMD_ATTENTION_H_
#define TACC_KERNELS_CPU_SIMD_ATTENTION_H_

#include "kernels/cpu/simd/loops.h"

namespace tacc::kernels::simd::TACC_ISA {

void AttentionForward(const AttentionHeads& heads, int64_t b, int64_t kv, int64_t first, int64_t limit, void* scratch);
void AttentionBackward(const AttentionHeads& heads, int64_t b, int64_t kv, void* scratch);
void AttentionBiasBackward(const AttentionHeads& heads, int64_t b, int64_t head, int64_t part, int64_t parts,
                           int64_t query_tile, void* scratch);

}  // namespace tacc::kernels::simd::TACC_ISA

#endif  // TACC_KERNELS_CPU_SIMD_ATTENTION_H_
