#include "worker/rank/torch/matmul_rate.h"

#include "gtest/gtest.h"

namespace tacc::worker {
namespace {

// A layer of 4 x 6 x 8 whose second kind of product, as the first and the third do not, takes twice its time.
TEST(MeasureMatmul, SustainsTheMedianOfAllKindsAndPeaksAtTheBestOfOne) {
  const double flops = 2 * 4 * 6 * 8;
  int num_products = 0;
  const MatmulRate rate = MeasureMatmul(at::kFloat, {{4, 6, 8}}, [&](const std::function<void()>& product) {
    product();
    const double usual = ++num_products == 2 ? 2.0 : 1.0;
    return std::vector<double>{usual, 9.0, usual, 0.5, usual};
  });
  EXPECT_EQ(num_products, 3);
  EXPECT_EQ(rate.best, flops / 0.5);
  EXPECT_EQ(rate.sustained, 3 * flops / (1 + 2 + 1));
}

TEST(MeasureMatmul, EndsWhereNoTimeIsLeft) {
  int num_products = 0;
  const MatmulRate rate = MeasureMatmul(at::kFloat, {{2, 2, 2}, {2, 2, 20}}, [&](const std::function<void()>& product) {
    product();
    return std::vector<double>(++num_products <= 2 ? 1 : 0, 1.0);
  });
  EXPECT_EQ(num_products, 3);
  EXPECT_EQ(rate.best, 16);
  EXPECT_EQ(rate.sustained, 16);
}

TEST(MeasureMatmul, EveryLayerCounts) {
  int num_products = 0;
  const MatmulRate rate =
      MeasureMatmul(at::kBFloat16, {{2, 2, 2}, {2, 2, 20}}, [&](const std::function<void()>& product) {
        product();
        return std::vector<double>(1, ++num_products <= 3 ? 1.0 : 10.0);
      });
  EXPECT_EQ(num_products, 6);
  EXPECT_EQ(rate.best, 16);
  EXPECT_EQ(rate.sustained, (3 * 16 + 3 * 160) / (3 * 1 + 3 * 10.0));
}

}  // namespace
}  // namespace tacc::worker
