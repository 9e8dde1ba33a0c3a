// The random bits of dropout (kernels/contract/dropout.h).
#ifndef TACC_KERNELS_CUDA_PHILOX_H_
#define TACC_KERNELS_CUDA_PHILOX_H_

#include <cstdint>

#include "kernels/contract/dropout.h"
#include "kernels/cuda/launch/launch.h"

namespace tacc::kernels::cuda {

// Philox 4x32-10. Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC11, section 3.3.
struct Philox {
  uint32_t words[4];

  TACC_DEVICE Philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c0;
      const uint64_t p1 = static_cast<uint64_t>(0xCD9E8D57u) * c2;
      c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<uint32_t>(p1);
      c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<uint32_t>(p0);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
  }

  // Without indexing by what is known at run time only, which would put the words into memory.
  TACC_DEVICE uint32_t Word(int64_t i) const {
    return i == 0 ? words[0] : i == 1 ? words[1] : i == 2 ? words[2] : words[3];
  }
};

// What all elements of a call share.
struct DropoutKeys {
  uint32_t key0, key1, threshold;

  // Of the elements [4 * block, 4 * block + 4) of a sample in a step.
  TACC_DEVICE Philox RandomOf(uint64_t block, uint64_t sample, uint64_t step) const {
    const uint32_t high = static_cast<uint32_t>(step >> 32) ^ static_cast<uint32_t>(sample >> 32) * 0x85EBCA6Bu;
    return Philox(static_cast<uint32_t>(block), static_cast<uint32_t>(sample), static_cast<uint32_t>(step),
                  high ^ static_cast<uint32_t>(block >> 32) * 0xC2B2AE35u, key0, key1);
  }
};

inline DropoutKeys KeysOf(const DropoutParameters& parameters) {
  const uint64_t seed = static_cast<uint64_t>(parameters.seed);
  return {static_cast<uint32_t>(seed) ^ static_cast<uint32_t>(seed >> 32) * 0x9E3779B9u,
          static_cast<uint32_t>(parameters.key), static_cast<uint32_t>(parameters.rate * 4294967296.0)};
}

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_PHILOX_H_
