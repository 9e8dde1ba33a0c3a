#include "graph/ir/weight_init.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace tacc::graph {
namespace {

TEST(WeightInitTest, ReadsWhatIsWritten) {
  EXPECT_EQ(ParseWeightInit("zeros")->first, 0);
  EXPECT_EQ(ParseWeightInit("ones")->first, 1);
  EXPECT_EQ(ParseWeightInit("constant(-2.5)")->first, -2.5);
  EXPECT_EQ(ParseWeightInit("normal(0.02)")->kind, WeightInit::Kind::kNormal);
  EXPECT_EQ(ParseWeightInit("truncated_normal(0.02,0.06)")->second, 0.06);
  EXPECT_EQ(ParseWeightInit("uniform(-0.5,0.25)")->first, -0.5);
  EXPECT_EQ(ParseWeightInit("normal(0)")->first, 0);
}

TEST(WeightInitTest, RefusesTheRest) {
  for (const char* text : {"", "one", "normal", "normal(0.1", "normal()", "normal(0.1,0.2)", "uniform(0.1)",
                           "normal(nan)", "normal(inf)", "normal(1e400)", "normal(1e39)", "normal(-1)", "uniform(1,0)",
                           "truncated_normal(0.1,0)", "constant(1)x", "gauss(1)"}) {
    EXPECT_THAT(std::string(ParseWeightInit(text).status().message()),
                testing::HasSubstr("is not known; use normal(STD)"))
        << text;
  }
}

}  // namespace
}  // namespace tacc::graph
