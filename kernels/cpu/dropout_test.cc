// Dropout of every device against Philox.
#include <gtest/gtest.h>

#include "kernels/backend_under_test.h"
#include TACC_KERNEL_HEADER(dropout.h)
#include "kernels/reference/buffer.h"
#include "kernels/reference/reference.h"

namespace tacc::kernels::TACC_BACKEND {
namespace {

using reference::Buffer;
using reference::MaxError;
using reference::Random;
using reference::Tensor;

constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 1.0 / 250;
    case DType::kF16:
      return 1.0 / 2000;
    case DType::kF32:
      return 4e-6;
    default:
      return 1e-11;
  }
}

TEST(Dropout, FollowsPhiloxAndDoesNotSeeTheSharding) {
  const int64_t n = 1037;
  const double rate = 0.3;
  int64_t step = 12;
  std::vector<int64_t> samples = {4, 5, 900};
  const TensorView step_view{&step, DType::kI64, {}};
  const DropoutParameters parameters{.rate = rate, .key = 17, .seed = 42};
  const Tensor x = Random({3, n}, 1);
  for (DType dtype : kFloats) {
    const Buffer in(dtype, x), y(dtype, Dims{3, n});
    Dropout(in, step_view, {samples.data(), DType::kI64, {3}}, {}, parameters, y);
    const Tensor values = in.ToTensor(), got = y.ToTensor();
    int64_t kept = 0;
    Tensor want(x.dims);
    for (int64_t row = 0; row < 3; ++row) {
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t counter[4] = {static_cast<uint32_t>(i / 4), static_cast<uint32_t>(samples[row]), 12, 0};
        const uint32_t key[2] = {42, 17};
        const bool keep = reference::Philox(counter, key, i % 4) >= static_cast<uint32_t>(rate * 4294967296.0);
        kept += keep;
        want[row * n + i] = keep ? values[row * n + i] / (1 - rate) : 0;
      }
    }
    EXPECT_LE(MaxError(got, want, 1e-1), Tolerance(dtype));
    EXPECT_NEAR(static_cast<double>(kept) / (3 * n), 1 - rate, 0.03);
    // The third row alone, as another rank would hold it.
    const Buffer row_in(dtype, Tensor({1, n}, std::vector<double>(x.values.begin() + 2 * n, x.values.end())));
    const Buffer row_out(dtype, Dims{1, n});
    Dropout(row_in, step_view, {&samples[2], DType::kI64, {1}}, {}, parameters, row_out);
    EXPECT_EQ(row_out.ToTensor().values, std::vector<double>(got.values.begin() + 2 * n, got.values.end()));
    // A part of every sample: 17 x 61 elements, of which columns 10 to 40 of rows 3 to 8.
    const Dims sample_dims{17, 61};
    const Tensor wide({3, 17, 61}, x.values);
    const auto cut = [&](const Tensor& from) {
      return reference::Gather(from, {3, 5, 30}, [](const std::vector<int64_t>& i) {
        return std::vector<int64_t>{i[0], i[1] + 3, i[2] + 10};
      });
    };
    const Buffer part_in(dtype, cut(wide)), part_out(dtype, Dims{3, 5, 30});
    Dropout(part_in, step_view, {samples.data(), DType::kI64, {3}}, {sample_dims, {3, 10}}, parameters, part_out);
    EXPECT_EQ(part_out.ToTensor().values, cut(Tensor({3, 17, 61}, got.values)).values);
  }
}

TEST(Philox, MatchesThePublishedVector) {
  // Source: Random123's known answers, philox4x32-10 with zero counter and key.
  const uint32_t counter[4] = {0, 0, 0, 0}, key[2] = {0, 0};
  EXPECT_EQ(reference::Philox(counter, key, 0), 0x6627e8d5u);
  EXPECT_EQ(reference::Philox(counter, key, 3), 0x9b00dbd8u);
}

}  // namespace
}  // namespace tacc::kernels::TACC_BACKEND
