#include "text/nearest_name.h"

#include <gtest/gtest.h>

namespace tacc {
namespace {

const std::vector<std::string>& Names() {
  static const std::vector<std::string> names = {"max_steps", "save_steps", "seed"};
  return names;
}

TEST(NearestNameTest, FindsSlips) {
  EXPECT_EQ(NearestSlip("max_step", Names()), "max_steps");
  EXPECT_EQ(NearestSlip("sede", Names()), "seed");
  EXPECT_EQ(NearestSlip("MAX_STEPS", Names()), "max_steps");
  EXPECT_EQ(NearestSlip("learning_rate", Names()), "");
  EXPECT_EQ(NearestSlip("", Names()), "");
  EXPECT_EQ(NearestSlip("seed" + std::string(80, 'x'), {"seed" + std::string(80, 'x')}), "");
}

TEST(NearestNameTest, OfNamesOneIsAlwaysNearest) {
  EXPECT_EQ(NearestName("max_step", Names()), "max_steps");
  EXPECT_EQ(NearestName("something_else", {"q", "some", "else"}), "some");
  EXPECT_EQ(NearestName("seed", {"sead", "sees"}), "sead");
  EXPECT_EQ(NearestName("seed", {}), "");
}

}  // namespace
}  // namespace tacc
