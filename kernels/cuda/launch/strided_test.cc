// Indices beyond 32 bits, which no test has the memory for.
#include "kernels/cuda/launch/strided.h"

#include <gtest/gtest.h>

#include "kernels/cuda/launch/map.h"

namespace tacc::kernels::cuda {
namespace {

TEST(Strided, FindsElementsOfSmallAndLargeBoxes) {
  const Dims small{3, 5, 7}, large{3, int64_t{1} << 20, 5, int64_t{1} << 17};
  for (const Dims& dims : {small, large}) {
    // Every dim the other way round, and one that repeats.
    Dims reversed = dims, repeated = dims;
    int64_t step = 1;
    for (int d = 0; d < dims.rank(); step *= dims[d], ++d) reversed[d] = step;
    for (int d = 0; d < dims.rank(); ++d) repeated[d] = d == 1 ? 0 : d + 1;
    const Strided<2> strided(dims, {reversed, repeated});
    EXPECT_EQ(strided.narrow, dims == small);
    const int64_t n = dims.Product();
    for (int64_t i : {int64_t{0}, int64_t{1}, n / 3, n / 2 + 1, n - 2, n - 1}) {
      int64_t want[2] = {0, 0}, rest = i, got[2];
      for (int d = dims.rank() - 1; d >= 0; rest /= dims[d], --d) {
        want[0] += rest % dims[d] * reversed[d];
        want[1] += rest % dims[d] * repeated[d];
      }
      strided.Offsets(i, got);
      EXPECT_EQ(got[0], want[0]) << i;
      EXPECT_EQ(got[1], want[1]) << i;
    }
  }
}

TEST(Divide, AgreesInBothWidths) {
  for (int64_t a : {int64_t{0}, int64_t{1}, int64_t{1000003}, int64_t{INT32_MAX}}) {
    for (int64_t b : {int64_t{1}, int64_t{3}, int64_t{INT32_MAX}}) {
      for (bool narrow : {false, true}) {
        EXPECT_EQ(Divide(narrow, a, b).quotient, a / b);
        EXPECT_EQ(Divide(narrow, a, b).rest, a % b);
      }
    }
  }
  const int64_t large = (int64_t{1} << 40) + 5;
  EXPECT_EQ(Divide(false, large, int64_t{1} << 33).rest, 5);
}

TEST(Packs, CoverEveryElementOnce) {
  for (int64_t n : {0, 1, 3, 4, 9, 64, 67}) {
    const Packs<4> packs(n);
    std::vector<int> seen(n, 0);
    for (int64_t item = 0; item < packs.num_items; ++item) {
      packs.At(item, [&](int64_t first, auto width) {
        EXPECT_TRUE(width() == 1 || first % 4 == 0);
        for (int64_t i = first; i < first + width(); ++i) ++seen.at(i);
      });
    }
    EXPECT_EQ(seen, std::vector<int>(n, 1));
  }
  const int64_t large = (int64_t{1} << 40) + 3;
  Packs<4>(large).At(Packs<4>(large).num_items - 1, [&](int64_t first, auto) { EXPECT_EQ(first, large - 1); });
}

}  // namespace
}  // namespace tacc::kernels::cuda
