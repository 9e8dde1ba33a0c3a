#include "worker/checkpoint/tensors/element.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace tacc::worker {
namespace {

uint16_t Narrow(const std::string& dtype, float value) {
  uint16_t bits = 0;
  EXPECT_TRUE(ConvertFromFloat(dtype, &value, 1, reinterpret_cast<char*>(&bits)).ok());
  return bits;
}

// Every 16-bit pattern survives the way to fp32 and back, so an export of an import is byte-equal.
TEST(ElementTest, AllSixteenBitPatternsRoundTrip) {
  for (const char* dtype : {"BF16", "F16"}) {
    for (uint32_t pattern = 0; pattern <= 0xffff; ++pattern) {
      const uint16_t bits = pattern;
      float value = 0;
      ASSERT_TRUE(ConvertToFloat(dtype, reinterpret_cast<const char*>(&bits), 1, &value).ok());
      ASSERT_EQ(Narrow(dtype, value), bits) << dtype << " pattern " << pattern;
    }
  }
}

TEST(ElementTest, RoundsToNearestEven) {
  EXPECT_EQ(Narrow("BF16", 1.0f + 0x1p-8f), 0x3f80);      // Tie to even, down.
  EXPECT_EQ(Narrow("BF16", 1.0f + 3 * 0x1p-8f), 0x3f82);  // Tie to even, up.
  EXPECT_EQ(Narrow("BF16", 1.0f + 0x1p-8f + 0x1p-20f), 0x3f81);
  EXPECT_EQ(Narrow("BF16", std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(Narrow("F16", 1.0f), 0x3c00);
  EXPECT_EQ(Narrow("F16", 1.0f + 0x1p-11f), 0x3c00);
  EXPECT_EQ(Narrow("F16", 1.0f + 3 * 0x1p-11f), 0x3c02);
  EXPECT_EQ(Narrow("F16", 65504.0f), 0x7bff);
  EXPECT_EQ(Narrow("F16", 65519.0f), 0x7bff);
  EXPECT_EQ(Narrow("F16", 65520.0f), 0x7c00);
  EXPECT_EQ(Narrow("F16", -0x1p-24f), 0x8001);
  EXPECT_EQ(Narrow("F16", 0x1p-25f), 0x0000);      // Tie to even.
  EXPECT_EQ(Narrow("F16", 0x1.ffep-15f), 0x0400);  // Rounds up to the smallest normal number.
  EXPECT_EQ(Narrow("F16", std::numeric_limits<float>::quiet_NaN()) & 0x7e00, 0x7e00);
}

TEST(ElementTest, ReadsUnalignedAndDouble) {
  std::vector<char> bytes(17);
  const double values[2] = {0.5, 1e300};
  std::memcpy(bytes.data() + 1, values, 16);
  float out[2];
  ASSERT_TRUE(ConvertToFloat("F64", bytes.data() + 1, 2, out).ok());
  EXPECT_EQ(out[0], 0.5f);
  EXPECT_TRUE(std::isinf(out[1]));
}

TEST(ElementTest, IntegersAreNotWeights) {
  float value = 0;
  char bytes[8] = {};
  EXPECT_EQ(ConvertToFloat("I64", bytes, 1, &value).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ConvertFromFloat("F64", &value, 1, bytes).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tacc::worker
