#include "kernels/cuda/collective.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reference/buffer.h"
#include "kernels/reference/reference.h"

namespace tacc::kernels::cuda {
namespace {

using reference::Buffer;
using reference::Random;
using reference::Rounded;
using reference::Tensor;

// Four summands, the third of them apart; every mix of types, lengths with and without packs, aligned or not.
TEST(SumInOrder, AddsInTheOrderOfNumbersAndRoundsOnce) {
  constexpr int kSummands = 4, kOwn = 2;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    for (const DType out : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
      for (const int64_t n : {1, 7, 8, 83}) {
        for (const int64_t shift : {0, 1}) {
          const int64_t stride = 96;
          const Tensor values = Rounded(Random({kSummands * stride + 1}, n, 2), dtype);
          const Tensor mine = Rounded(Random({n + 1}, 9, 2), dtype);
          const Buffer others(dtype, values, Buffer::Placement::kAligned),
              own(dtype, mine, Buffer::Placement::kAligned);
          const Buffer y(out, Dims{n + 1}, Buffer::Placement::kAligned);
          const TensorView all = others, apart = own, result = y;
          SumInOrder({all.as<char>() + shift * SizeOf(dtype), stride * SizeOf(dtype),
                      apart.as<char>() + shift * SizeOf(dtype), kOwn, kSummands, dtype},
                     n, result.as<char>() + shift * SizeOf(out), out);
          Tensor want{Dims{n + 1}, std::vector<double>(n + 1, 0)};
          for (int64_t i = 0; i < n; ++i) {
            float narrow = 0;
            double wide = 0;
            for (int k = 0; k < kSummands; ++k) {
              const double x = k == kOwn ? mine[i + shift] : values[k * stride + i + shift];
              narrow = k == 0 ? static_cast<float>(x) : narrow + static_cast<float>(x);
              wide += x;
            }
            want[i + shift] = dtype == DType::kF64 ? wide : narrow;
          }
          const Tensor rounded = Rounded(want, out);
          const Tensor got = y.ToTensor();
          for (int64_t i = shift; i < n + shift; ++i)
            ASSERT_EQ(got[i], rounded[i]) << Name(dtype) << " into " << Name(out) << ", " << i << " of " << n;
        }
      }
    }
  }
}

TEST(SumInOrder, IntegersAreExactAndTheResultMayLieOnASummand) {
  std::vector<int64_t> others = {int64_t{1} << 60, 0, 0, 5}, own = {1, -7};
  SumInOrder({others.data(), 16, own.data(), 1, 2, DType::kI64}, 2, own.data(), DType::kI64);
  EXPECT_EQ(own, (std::vector<int64_t>{(int64_t{1} << 60) + 1, -7}));
  std::vector<float> x(20, 0.5f), mine(20, 1.0f);
  SumInOrder({x.data(), 0, mine.data(), 0, 3, DType::kF32}, 20, mine.data(), DType::kF32);
  EXPECT_EQ(mine, std::vector<float>(20, 2.0f));
}

TEST(CopyRuns, MovesPartsOfStridedPiecesOfAnyAlignment) {
  for (const int64_t unit : {1, 2, 4, 8, 16}) {
    alignas(16) char from[1024], to[1024], want[1024];
    for (int i = 0; i < 1024; ++i) from[i] = static_cast<char>(i * 7);
    std::memset(to, 0, sizeof(to));
    std::memset(want, 0, sizeof(want));
    const Runs a{from + unit, 3 * unit, 5 * unit}, b{to, 2 * unit, 4 * unit};
    const int64_t count = 18 * unit, a_begin = 2 * unit, b_begin = unit;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t x = a_begin + i, y = b_begin + i;
      want[y / (2 * unit) * 4 * unit + y % (2 * unit)] = from[unit + x / (3 * unit) * 5 * unit + x % (3 * unit)];
    }
    CopyRuns(a, a_begin, b, b_begin, count);
    EXPECT_EQ(std::memcmp(to, want, sizeof(to)), 0) << "units of " << unit;
  }
}

TEST(Progress, NamesTheCallAndCounts) {
  Progress progress;
  PublishBegin(17, &progress);
  EXPECT_EQ(progress.num_begun, 1u);
  EXPECT_EQ(progress.current, 17u);
  EXPECT_EQ(progress.num_ended, 0u);
  PublishEnd(&progress);
  EXPECT_EQ(progress.num_ended, 1u);
  uint32_t place = 0;
  PublishPlace(5, &place);
  EXPECT_EQ(place, 5u);
}

}  // namespace
}  // namespace tacc::kernels::cuda
