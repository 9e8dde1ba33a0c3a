#include "worker/checkpoint/tensors/rectangle.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace tacc::worker {
namespace {

TEST(RectangleTest, NumElementsRefusesOverflowAndNegativeExtents) {
  EXPECT_EQ(NumElements({}), 1);
  EXPECT_EQ(NumElements({3, 0, 5}), 0);
  EXPECT_EQ(NumElements({3, 4, 5}), 60);
  EXPECT_FALSE(NumElements({INT64_MAX, 2}).has_value());
  EXPECT_FALSE(NumElements({-1}).has_value());
}

TEST(RectangleTest, IsInside) {
  EXPECT_TRUE(IsInside({{1, 2}, {2, 3}}, {3, 5}));
  EXPECT_TRUE(IsInside({{3}, {0}}, {3}));
  EXPECT_TRUE(IsInside({{}, {}}, {}));
  EXPECT_FALSE(IsInside({{1, 3}, {2, 3}}, {3, 5}));
  EXPECT_FALSE(IsInside({{-1}, {1}}, {3}));
  EXPECT_FALSE(IsInside({{0}, {-1}}, {3}));
  EXPECT_FALSE(IsInside({{0}, {3, 5}}, {3, 5}));
  EXPECT_FALSE(IsInside({{INT64_MAX}, {INT64_MAX}}, {3}));
}

TEST(RectangleTest, ScalarIsOneElement) {
  const float source = 3;
  float target = 0;
  EXPECT_EQ(CopyIntersection(reinterpret_cast<const char*>(&source), {}, reinterpret_cast<char*>(&target), {}, 4), 1);
  EXPECT_EQ(target, 3);
}

// The flat positions of a box's elements in its tensor, in the box's order.
std::vector<int64_t> Positions(const Rectangle& box, const std::vector<int64_t>& dims) {
  std::vector<int64_t> all(*NumElements(dims)), inside(*NumElements(box.shape));
  std::iota(all.begin(), all.end(), 0);
  CopyIntersection(reinterpret_cast<const char*>(all.data()), WholeTensor(dims), reinterpret_cast<char*>(inside.data()),
                   box, sizeof(int64_t));
  return inside;
}

// Random boxes in both directions: the same elements in the same order, in as few boxes as the contract says.
TEST(RectangleTest, ReshapedBoxesHaveTheSameElements) {
  std::mt19937 random(11);
  const auto draw = [&random](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<int64_t> fine;
    for (int64_t d = draw(2, 4); d > 0; --d) fine.push_back(draw(1, 5));
    const int64_t merged = draw(2, static_cast<int64_t>(fine.size()));
    std::vector<int64_t> coarse(fine.begin() + merged, fine.end());
    coarse.insert(coarse.begin(), *NumElements(absl::MakeConstSpan(fine).first(merged)));
    const bool splits = draw(0, 1) == 0;
    const std::vector<int64_t>& from = splits ? coarse : fine;
    const std::vector<int64_t>& to = splits ? fine : coarse;
    Rectangle box;
    for (int64_t extent : from) {
      box.offset.push_back(draw(0, 1) == 0 ? 0 : draw(0, extent));
      box.shape.push_back(draw(0, 1) == 0 ? extent - box.offset.back() : draw(0, extent - box.offset.back()));
    }
    const auto parts = Reshaped(box, from, to);
    ASSERT_TRUE(parts.has_value());
    std::vector<int64_t> positions;
    for (const Rectangle& part : *parts) {
      ASSERT_TRUE(IsInside(part, to));
      const std::vector<int64_t> of_part = Positions(part, to);
      positions.insert(positions.end(), of_part.begin(), of_part.end());
    }
    EXPECT_EQ(positions, Positions(box, from)) << "round " << round;
    if (splits) EXPECT_LE(parts->size(), static_cast<size_t>(2 * merged - 1));
  }
}

TEST(RectangleTest, ReshapedRefusesOtherTensors) {
  EXPECT_TRUE(Reshaped({{1, 0}, {2, 3}}, {4, 3}, {4, 3}).has_value());
  EXPECT_FALSE(Reshaped({{1, 0}, {2, 3}}, {4, 3}, {3, 4}).has_value());
  EXPECT_FALSE(Reshaped({{1, 0}, {2, 3}}, {4, 3}, {2, 2, 4}).has_value());
  EXPECT_FALSE(Reshaped({{0, 0}, {4, 3}}, {4, 3}, {2, 6}).has_value());
  EXPECT_FALSE(Reshaped({{0, 0}, {4, 3}}, {4, 3}, {11}).has_value());
  EXPECT_FALSE(Reshaped({{}, {}}, {}, {1}).has_value());
}

// Random boxes of a random tensor against the definition, element by element.
TEST(RectangleTest, CopiesExactlyTheIntersection) {
  std::mt19937 random(7);
  const auto draw = [&random](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 300; ++round) {
    const int num_dims = static_cast<int>(draw(1, 4));
    Rectangle a, b;
    for (int d = 0; d < num_dims; ++d) {
      const int64_t extent = draw(1, 5);
      for (Rectangle* r : {&a, &b}) {
        // Whole dims are frequent, to reach the merged runs.
        const int64_t begin = draw(0, 1) == 0 ? 0 : draw(0, extent - 1);
        r->offset.push_back(begin);
        r->shape.push_back(begin == 0 && draw(0, 1) == 0 ? extent : draw(0, extent - begin));
      }
    }
    std::vector<int32_t> source(*NumElements(a.shape));
    std::iota(source.begin(), source.end(), 1);
    std::vector<int32_t> target(*NumElements(b.shape), 0);
    std::vector<int32_t> expected = target;
    int64_t count = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      int64_t rest = i, at = 0, stride = 1;
      bool inside = true;
      for (int d = num_dims - 1; d >= 0; --d) {
        const int64_t in_a = b.offset[d] + rest % b.shape[d] - a.offset[d];
        rest /= b.shape[d];
        inside = inside && in_a >= 0 && in_a < a.shape[d];
        at += in_a * stride;
        stride *= a.shape[d];
      }
      if (inside) {
        expected[i] = source[at];
        ++count;
      }
    }
    EXPECT_EQ(
        CopyIntersection(reinterpret_cast<const char*>(source.data()), a, reinterpret_cast<char*>(target.data()), b, 4),
        count);
    EXPECT_EQ(target, expected) << RectangleText(a) << " to " << RectangleText(b);
  }
}

}  // namespace
}  // namespace tacc::worker
