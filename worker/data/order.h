// The order in which a training run visits its samples: a pure function of (seed, position), whatever the number of
// ranks.
//
// Position p = step * global_batch_size + k, where step counts the updates done before (0 for the first) and k is the
// row of the global batch. Epoch e covers the positions [e*N, (e+1)*N) of N samples and visits each sample exactly
// once, in an order of its own. A batch may straddle two epochs. So nothing but the step is needed to resume, on any
// layout.
#ifndef TACC_WORKER_DATA_ORDER_H_
#define TACC_WORKER_DATA_ORDER_H_

#include <array>
#include <cstdint>

namespace tacc::worker {

// A keyed bijection of [0, size): a balanced Feistel network over the smallest even number of bits that holds `size`,
// walked along its cycle until it lands inside. Less than four applications on average. Source: Black and Rogaway,
// "Ciphers with Arbitrary Finite Domains", 2002, sections 4 and 5.
class KeyedBijection {
 public:
  // size >= 1.
  KeyedBijection(uint64_t size, uint64_t key);

  // x in [0, size).
  uint64_t operator()(uint64_t x) const;

 private:
  static constexpr int kRounds = 8;

  uint64_t size_;
  int half_bits_;
  uint64_t half_mask_;
  std::array<uint64_t, kRounds> round_keys_;
};

class SampleOrder {
 public:
  // num_samples >= 1.
  SampleOrder(int64_t num_samples, uint64_t seed) : num_samples_(num_samples), seed_(seed) {}

  // The sample, in [0, num_samples), at `position` >= 0.
  int64_t Sample(int64_t position) const;

  int64_t num_samples() const { return num_samples_; }

 private:
  int64_t num_samples_;
  uint64_t seed_;
};

// Bijective mixing of 64 bits. Source: Stafford, "Better Bit Mixing", variant 13, as in SplitMix64.
inline uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace tacc::worker

#endif  // TACC_WORKER_DATA_ORDER_H_
