#include "gtest/gtest.h"

TEST(Cases, Pass) {}
TEST(Cases, Fail) { FAIL() << "as it should"; }
TEST(Cases, Skip) { GTEST_SKIP() << "no teapot"; }
TEST(Cases, SkipForAGpu) { GTEST_SKIP() << "no GPU"; }
