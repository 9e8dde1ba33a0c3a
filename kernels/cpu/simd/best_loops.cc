#include <cstdlib>
#include <cstring>

#include "kernels/cpu/simd/loops.h"

namespace tacc::kernels::simd {
namespace {

const Loops& Choose() {
  const bool avx2 = __builtin_cpu_supports("x86-64-v3");
  const bool avx512 = __builtin_cpu_supports("x86-64-v4");
  const char* limit = std::getenv("TACC_CPU_ISA");
  if (limit != nullptr && std::strcmp(limit, "baseline") == 0) return kBaselineLoops;
  if (limit != nullptr && std::strcmp(limit, "avx2") == 0 && avx2) return kAvx2Loops;
  return avx512 ? kAvx512Loops : avx2 ? kAvx2Loops : kBaselineLoops;
}

}  // namespace

const Loops& BestLoops() {
  static const Loops& loops = Choose();
  return loops;
}

}  // namespace tacc::kernels::simd
