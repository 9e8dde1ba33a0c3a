// Casts, fills and sums of squares of many tensors in one launch, beside one call each.
#include "kernels/cuda/many_tensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "kernels/contract/pointwise.h"
#include "kernels/contract/sum_squares.h"
#include "kernels/contract/unary.h"
#include "kernels/cuda/kernels.h"
#include "kernels/reference/buffer.h"

namespace tacc::kernels::cuda {
namespace {

using reference::Buffer;
using reference::Random;
using reference::Tensor;

constexpr Buffer::Placement kPlacements[] = {Buffer::Placement::kAligned, Buffer::Placement::kOffByOne};
// Chunks are 16384 elements: less than one, exactly one, a little more, none, several.
constexpr int64_t kSizes[] = {1, 16384, 16387, 0, 50001};

bool SameBits(const Buffer& a, const Buffer& b) {
  return std::memcmp(a.view().data, b.view().data, static_cast<size_t>(a.view().bytes())) == 0;
}

// The table as it lies on the device, and no more in its image.
struct OnDevice {
  explicit OnDevice(TensorTable made) : table(std::move(made)), bytes(table.image) {
    table.image.assign(table.image.size(), 0);
    table.device = bytes.data();
  }
  TensorTable table;
  const std::vector<char> bytes;
};

TEST(CastMany, EqualsTheSingleCastsToTheBit) {
  const std::pair<DType, DType> kDTypes[] = {
      {DType::kF32, DType::kBF16}, {DType::kBF16, DType::kF32}, {DType::kF32, DType::kF16},
      {DType::kBF16, DType::kF16}, {DType::kF64, DType::kBF16}, {DType::kF32, DType::kF64},
      {DType::kI64, DType::kF32},  {DType::kI64, DType::kI32},  {DType::kF32, DType::kBool}};
  std::vector<std::unique_ptr<Buffer>> xs, many, single;
  std::vector<CastPair> casts;
  for (Buffer::Placement placement : kPlacements) {
    for (const auto& [from, to] : kDTypes) {
      for (int64_t n : kSizes) {
        Tensor x = Random({n}, n + 1, IsFloat(from) ? 1.0 : 1e6);
        if (n > 1 && IsFloat(from)) x[n - 1] = NAN;
        xs.push_back(std::make_unique<Buffer>(from, x, placement));
        for (auto* results : {&many, &single}) results->push_back(std::make_unique<Buffer>(to, Dims{n}, placement));
        casts.push_back({*xs.back(), *many.back()});
        kUnary.Unary(UnaryOp::kCast, *xs.back(), *single.back(), {});
      }
    }
  }
  const OnDevice on_device(CastTable(casts));
  EXPECT_EQ(on_device.table.num_tensors, 2 * 9 * 4);  // not the empty ones
  CastMany(on_device.table);
  for (size_t i = 0; i < many.size(); ++i) {
    EXPECT_TRUE(SameBits(*many[i], *single[i])) << i;
    EXPECT_TRUE(many[i]->GuardsIntact()) << i;
  }
}

TEST(FillMany, EqualsTheSingleFillsToTheBit) {
  std::vector<std::unique_ptr<Buffer>> many, single;
  std::vector<FillOf> fills;
  for (Buffer::Placement placement : kPlacements) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64, DType::kI32, DType::kI64, DType::kBool}) {
      for (int64_t n : kSizes) {
        const double value = n % 2 == 0 ? 0.0 : 1.0 / 3 + static_cast<double>(n);
        for (auto* results : {&many, &single}) results->push_back(std::make_unique<Buffer>(dtype, Dims{n}, placement));
        fills.push_back({value, *many.back()});
        kPointwise.Fill(value, *single.back());
      }
    }
  }
  const OnDevice on_device(FillTable(fills));
  EXPECT_EQ(on_device.table.num_tensors, 2 * 7 * 4);
  FillMany(on_device.table);
  for (size_t i = 0; i < many.size(); ++i) {
    EXPECT_TRUE(SameBits(*many[i], *single[i])) << i;
    EXPECT_TRUE(many[i]->GuardsIntact()) << i;
  }
}

TEST(SumSquaresMany, EqualsTheSumWithoutATableToTheBit) {
  std::vector<std::unique_ptr<Buffer>> buffers;
  std::vector<BoundedTensor> xs;
  double want = 0;
  for (Buffer::Placement placement : kPlacements) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
      for (int64_t n : {1, 8192, 8199, 0, 30001}) {
        buffers.push_back(std::make_unique<Buffer>(dtype, Random({n}, n + 1), placement));
        xs.push_back({*buffers.back(), {n}});
      }
      // Padding, in rows that can be read in packs and in others.
      buffers.push_back(std::make_unique<Buffer>(dtype, Random({3, 40, 336}, 5), placement));
      for (const Dims& bounds : {Dims{3, 40, 328}, Dims{3, 39, 336}, Dims{2, 40, 331}, Dims{0, 40, 336}})
        xs.push_back({*buffers.back(), bounds});
    }
  }
  for (const auto& [x, bounds] : xs) {
    const Buffer alone(DType::kF64, Dims{});
    kSumSquares.SumSquares({{x, bounds}}, alone);
    want += alone.ToTensor()[0];
  }
  const OnDevice on_device(SumSquaresTable(xs));
  for (DType dtype : {DType::kF64, DType::kF32}) {
    const Buffer many(dtype, Dims{}), single(dtype, Dims{});
    SumSquaresMany(on_device.table, many);
    kSumSquares.SumSquares(xs, single);
    EXPECT_TRUE(SameBits(many, single));
    EXPECT_NEAR(many.ToTensor()[0], want, (dtype == DType::kF64 ? 1e-13 : 1e-7) * want);
  }
}

// What the target promises (graph/targets/cuda.cc), of tensors too large for a test's memory.
TEST(SumSquaresMany, CutsIntoNoMoreChunksThanScratchHas) {
  std::vector<BoundedTensor> xs(500);
  for (size_t i = 0; i < xs.size(); ++i) {
    const Dims dims{static_cast<int64_t>(i * i * 1000 + 1)};
    xs[i] = {{nullptr, DType::kF32, dims}, dims};
  }
  const TensorTable table = SumSquaresTable(xs);
  EXPECT_GT(table.num_chunks, 16384);
  EXPECT_LE(table.num_chunks, 16384 + 500);
}

TEST(SumSquaresMany, OfNothingIsZero) {
  const Buffer y(DType::kF32, Dims{});
  SumSquaresMany(SumSquaresTable({}), y);
  EXPECT_EQ(y.ToTensor()[0], 0);
}

}  // namespace
}  // namespace tacc::kernels::cuda
