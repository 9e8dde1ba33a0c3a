#include "kernels/reference/buffer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tacc::kernels::reference {
namespace {

TEST(MaxError, SaysWhereItIs) {
  Tensor got(Dims{2, 3}, {1, 2, 3, 4, 5, 6}), want = got;
  EXPECT_EQ(testing::PrintToString(MaxError(got, want, 1)), "0");
  got[1] = 2.5;
  got[5] = 13;
  EXPECT_EQ(testing::PrintToString(MaxError(got, want, 1)), "1 at [1,2] of [2,3]: 13, not 6");
  got[3] = NAN;
  got[4] = INFINITY;
  EXPECT_EQ(MaxError(got, want, 1), INFINITY);
  EXPECT_EQ(testing::PrintToString(MaxError(got, want, 1)), "inf at [1,0] of [2,3]: nan, not 4");
  EXPECT_EQ(testing::PrintToString(MaxError(Tensor(Dims{}, {2}), Tensor(Dims{}, {1}), 0)), "1 at [] of []: 2, not 1");
}

}  // namespace
}  // namespace tacc::kernels::reference
