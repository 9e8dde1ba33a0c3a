#include "graph/planner/report/words.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

TEST(Words, Numbers) {
  EXPECT_EQ(BytesText(12), "12 B");
  EXPECT_EQ(BytesText(1.5 * 1073741824), "1.5 GiB");
  EXPECT_EQ(SecondsText(2.149), "2.15 s");
  EXPECT_EQ(SecondsText(0.0311), "31.1 ms");
  EXPECT_EQ(SecondsText(1.2e-5), "12 us");
  EXPECT_EQ(SecondsText(1e-7), "100 ns");
  EXPECT_EQ(SecondsText(1e-12), "< 1 ns");
  // The unit is that of the rounded number.
  EXPECT_EQ(SecondsText(0.9994), "999 ms");
  EXPECT_EQ(SecondsText(0.9997), "1.00 s");
  EXPECT_EQ(SecondsText(-0.9997), "-1.00 s");
  EXPECT_EQ(SecondsText(0.9997e-3), "1 ms");
  EXPECT_EQ(SecondsText(0.9997e-6), "1 us");
  EXPECT_EQ(SecondsText(9.996), "10.0 s");
  EXPECT_EQ(SecondsText(99.96), "100 s");
  EXPECT_EQ(DurationText(21480), "5 h 58 min");
  EXPECT_EQ(DurationText(3.17 * 86400), "3 days 4 h");
  EXPECT_EQ(RangeText("0.86 s", "1.02 s"), "0.86 to 1.02 s");
  EXPECT_EQ(RangeText("981 ms", "1.02 s"), "981 ms to 1.02 s");
  EXPECT_EQ(RangeText("431", "500"), "431 to 500");
  EXPECT_EQ(RangeText("less than 0.01 %", "less than 0.01 %"), "less than 0.01 % to less than 0.01 %");
  EXPECT_EQ(RangeText("1.2 million", "1.4 million"), "1.2 to 1.4 million");
  EXPECT_EQ(WholeText(262144), "262,144");
  EXPECT_EQ(WholeText(-1000), "-1,000");
  EXPECT_EQ(WholeText(-100), "-100");
  EXPECT_EQ(CountText(6.738e9), "6.74 billion");
  EXPECT_EQ(CountText(999.6e3), "1 million");
}

TEST(Words, PartsAddUp) {
  using ::testing::ElementsAre;
  const double gib = 1 << 30, mib = 1 << 20;
  // Each by itself would be 1.3 + 1.3 + 1.3 = 4.0.
  EXPECT_THAT(BytesTexts({1.333 * gib, 1.333 * gib, 1.334 * gib}, 4 * gib),
              ElementsAre("1.3 GiB", "1.3 GiB", "1.4 GiB"));
  EXPECT_THAT(BytesTexts({0.05 * mib, 900 * mib, 0, 124 * mib}, gib),
              ElementsAre("51.2 KiB", "0.9 GiB", "0 B", "0.1 GiB"));
  // What many small ones come to is not shown with the large ones.
  EXPECT_THAT(BytesTexts({gib, gib, 50 * mib, 50 * mib, 50 * mib, 50 * mib}, 2248 * mib),
              ElementsAre("1.0 GiB", "1.0 GiB", "50.0 MiB", "50.0 MiB", "50.0 MiB", "50.0 MiB"));
  EXPECT_THAT(BytesTexts({410 * mib, 410 * mib, 205 * mib, 60 * mib, 60 * mib, 60 * mib}, 1205 * mib),
              ElementsAre("0.4 GiB", "0.4 GiB", "0.2 GiB", "60.0 MiB", "60.0 MiB", "60.0 MiB"));
  EXPECT_THAT(BytesTexts({100, 200}, 300), ElementsAre("100 B", "200 B"));
  EXPECT_THAT(BytesTexts({}, 0), ElementsAre());
  EXPECT_THAT(BytesTexts({gib, gib}, 9 * gib), ElementsAre("1.0 GiB", "1.0 GiB")) << "they do not";
  EXPECT_THAT(RoundedPercents({0.7065, 0.1267, 0.1668}), ElementsAre(70.6, 12.7, 16.7));
  EXPECT_THAT(RoundedPercents({1, 0, 0}), ElementsAre(100, 0, 0));
  EXPECT_EQ(PercentText(70.6), "70.6 %");
  EXPECT_EQ(PercentText(100), "100.0 %");
}

}  // namespace
}  // namespace tacc::graph
