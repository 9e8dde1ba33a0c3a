#include "worker/data/order.h"

#include <bit>

namespace tacc::worker {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;  // SplitMix64's increment.

}  // namespace

KeyedBijection::KeyedBijection(uint64_t size, uint64_t key) : size_(size) {
  const int bits = std::bit_width(size - 1);
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
  half_mask_ = (uint64_t{1} << half_bits_) - 1;
  for (int round = 0; round < kRounds; ++round) round_keys_[round] = MixBits(key + kGolden * (round + 1));
}

uint64_t KeyedBijection::operator()(uint64_t x) const {
  do {
    uint64_t left = x >> half_bits_;
    uint64_t right = x & half_mask_;
    for (const uint64_t round_key : round_keys_) {
      const uint64_t next = left ^ (MixBits(right ^ round_key) & half_mask_);
      left = right;
      right = next;
    }
    x = (left << half_bits_) | right;
  } while (x >= size_);
  return x;
}

int64_t SampleOrder::Sample(int64_t position) const {
  const uint64_t epoch = static_cast<uint64_t>(position / num_samples_);
  const KeyedBijection shuffle(num_samples_, MixBits(MixBits(seed_ + kGolden) + kGolden * (epoch + 1)));
  return static_cast<int64_t>(shuffle(position % num_samples_));
}

}  // namespace tacc::worker
