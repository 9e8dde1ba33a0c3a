#include "worker/data/order.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace tacc::worker {
namespace {

TEST(KeyedBijection, IsABijectionAtEverySize) {
  std::vector<uint64_t> sizes;
  for (uint64_t size = 1; size <= 70; ++size) sizes.push_back(size);
  for (uint64_t size : {255, 256, 257, 1000, 4095, 4096, 4097, 65537, 99991}) sizes.push_back(size);
  for (const uint64_t size : sizes) {
    for (const uint64_t key : {0u, 1u, 12345u}) {
      const KeyedBijection bijection(size, key);
      std::vector<bool> seen(size, false);
      for (uint64_t x = 0; x < size; ++x) {
        const uint64_t y = bijection(x);
        ASSERT_LT(y, size);
        ASSERT_FALSE(seen[y]) << "size " << size << " key " << key << ": " << y << " twice";
        seen[y] = true;
      }
    }
  }
}

TEST(KeyedBijection, StaysInsideAHugeDomain) {
  const uint64_t size = (uint64_t{1} << 61) + 12345;
  const KeyedBijection bijection(size, 7);
  std::set<uint64_t> seen;
  for (uint64_t x = 0; x < 1000; ++x) {
    EXPECT_LT(bijection(size - 1 - x), size);
    seen.insert(bijection(x));
  }
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(SampleOrder, VisitsEachSampleOncePerEpoch) {
  constexpr int64_t kSamples = 101;
  const SampleOrder order(kSamples, 42);
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::set<int64_t> seen;
    for (int64_t p = 0; p < kSamples; ++p) seen.insert(order.Sample(epoch * kSamples + p));
    EXPECT_EQ(seen.size(), static_cast<size_t>(kSamples));
  }
}

TEST(SampleOrder, DiffersByEpochAndSeedAndIsNotSequential) {
  constexpr int64_t kSamples = 1000;
  const SampleOrder order(kSamples, 42), again(kSamples, 42), other(kSamples, 43);
  int same_as_epoch_1 = 0, same_as_other = 0, fixed = 0, successors = 0;
  for (int64_t p = 0; p < kSamples; ++p) {
    EXPECT_EQ(order.Sample(p), again.Sample(p));
    same_as_epoch_1 += order.Sample(p) == order.Sample(p + kSamples);
    same_as_other += order.Sample(p) == other.Sample(p);
    fixed += order.Sample(p) == p;
    successors += order.Sample(p + 1) == order.Sample(p) + 1;
  }
  // A random permutation has one of each on average; ten and more has a probability below 1e-6.
  EXPECT_LT(same_as_epoch_1, 10);
  EXPECT_LT(same_as_other, 10);
  EXPECT_LT(fixed, 10);
  EXPECT_LT(successors, 10);
}

// The first element of a small permutation must be close to uniform over keys: chi-square with 6 degrees of freedom.
TEST(KeyedBijection, SmallDomainsAreWellMixed) {
  constexpr int kSize = 7, kKeys = 7000;
  std::vector<int> count(kSize, 0);
  for (int key = 0; key < kKeys; ++key) ++count[KeyedBijection(kSize, MixBits(key))(0)];
  double chi_square = 0;
  for (const int c : count) chi_square += (c - 1000.0) * (c - 1000.0) / 1000.0;
  EXPECT_LT(chi_square, 30) << "probability below 1e-4 for a uniform choice";
}

// Written down once so that the order of a seed never changes between versions: a resumed job must see the same
// batches.
TEST(SampleOrder, IsStableBetweenVersions) {
  const SampleOrder order(10, 42);
  std::vector<int64_t> first;
  for (int64_t p = 0; p < 10; ++p) first.push_back(order.Sample(p));
  EXPECT_EQ(first, (std::vector<int64_t>{9, 2, 4, 7, 8, 5, 6, 1, 0, 3}));
}

}  // namespace
}  // namespace tacc::worker
