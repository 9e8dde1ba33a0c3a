#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>

#include "kernels/reference/buffer.h"
#include "kernels/reference/reference.h"
#include "kernels/testing/kernels_under_test.h"

namespace tacc::kernels {
namespace {

const Kernels& tested = KernelsUnderTest();

using reference::Buffer;
using reference::MaxError;
using reference::Random;
using reference::Rounded;
using reference::Tensor;
using Index = std::vector<int64_t>;

// Wide copies need aligned arrays; the others are for those that are not.
constexpr Buffer::Placement kPlacements[] = {Buffer::Placement::kOffByOne, Buffer::Placement::kAligned};
constexpr DType kSizes[] = {DType::kBool, DType::kBF16, DType::kF32, DType::kF64};

TEST(Transpose, MovesEveryElement) {
  const std::pair<Dims, Dims> cases[] = {
      {{70, 130}, {1, 0}},
      {{3, 50, 40}, {0, 2, 1}},
      {{3, 5, 40}, {1, 0, 2}},
      {{3, 50, 40}, {2, 1, 0}},
      {{4, 6, 3, 8}, {0, 2, 1, 3}},
      {{4, 6, 3, 8}, {3, 1, 0, 2}},
      {{1, 9, 1, 4}, {2, 3, 0, 1}},
      {{2, 3, 5, 16}, {0, 2, 1, 3}},
      {{3, 20, 7, 33}, {3, 2, 0, 1}},
      {{2, 40, 35}, {2, 0, 1}},
      {{}, {}},
      {{5, 0}, {1, 0}},
  };
  for (const auto& [dims, perm] : cases) {
    for (DType dtype : kSizes) {
      const Tensor x = Rounded(Random(dims, 3), dtype);
      Dims y_dims;
      for (int64_t p : perm) y_dims.push_back(dims[static_cast<int>(p)]);
      const Dims order = perm;
      for (Buffer::Placement placement : kPlacements) {
        const Buffer in(dtype, x, placement), out(dtype, y_dims, placement);
        tested.shape.Transpose(in, perm, out);
        const Tensor want = reference::Gather(in.ToTensor(), y_dims, [&](const Index& i) {
          Index source(i.size());
          for (size_t d = 0; d < i.size(); ++d) source[order[static_cast<int>(d)]] = i[d];
          return source;
        });
        EXPECT_EQ(out.ToTensor().values, want.values);
        EXPECT_TRUE(out.GuardsIntact());
      }
    }
  }
}

TEST(SliceConcatPad, AreInverses) {
  const auto test = [](const Dims& dims, int dim, int64_t at, DType dtype, Buffer::Placement placement) {
    const Buffer x(dtype, Random(dims, 4), placement);
    Dims first_dims = dims, second_dims = dims;
    first_dims[dim] = at;
    second_dims[dim] = dims[dim] - at;
    const Buffer first(dtype, first_dims, placement), second(dtype, second_dims, placement);
    const Buffer whole(dtype, dims, placement);
    tested.shape.Slice(x, dim, 0, first);
    tested.shape.Slice(x, dim, at, second);
    tested.shape.Concat({first, second}, dim, whole);
    EXPECT_EQ(whole.ToTensor().values, x.ToTensor().values);
    // Padding what was cut off with zeros and masking it give the same.
    const Buffer padded(dtype, dims, placement);
    tested.shape.Pad(first, dim, 0, padded);
    Dims bounds = dims;
    bounds[dim] = at;
    tested.shape.MaskPadding(whole, bounds);
    EXPECT_EQ(padded.ToTensor().values, whole.ToTensor().values);
    const Buffer back(dtype, second_dims, placement);
    tested.shape.Pad(second, dim, at, padded);
    tested.shape.Slice(padded, dim, at, back);
    EXPECT_EQ(back.ToTensor().values, second.ToTensor().values);
    const Buffer zeros(dtype, first_dims, placement);
    tested.shape.Slice(padded, dim, 0, zeros);
    EXPECT_EQ(zeros.ToTensor().values, std::vector<double>(first_dims.Product(), 0.0));
    EXPECT_TRUE(first.GuardsIntact() && whole.GuardsIntact() && padded.GuardsIntact());
  };
  for (int dim = 0; dim < 3; ++dim) {
    for (DType dtype : kSizes) {
      for (Buffer::Placement placement : kPlacements) {
        test({5, 7, 9}, dim, 2, dtype, placement);
        test({12, 20, 48}, dim, 8, dtype, placement);
      }
    }
  }
}

TEST(MaskPadding, CutsSeveralDims) {
  const Dims dims{4, 6, 10}, bounds{3, 6, 7};
  const Buffer x(DType::kF32, Random(dims, 9));
  Tensor want = x.ToTensor();
  for (int64_t i = 0; i < want.size(); ++i) {
    if (i / 60 >= 3 || i % 10 >= 7) want[i] = 0;
  }
  tested.shape.MaskPadding(x, bounds);
  EXPECT_EQ(x.ToTensor().values, want.values);
  EXPECT_TRUE(x.GuardsIntact());
}

TEST(CopyBytes, CopiesAnyNumberOfBytesFromAnywhere) {
  for (int64_t n : {0, 1, 15, 16, 17, 1000, 4099}) {
    for (int64_t shift : {0, 1, 4, 16}) {
      const Buffer from(DType::kI32, Random({n + 32}, 3, 1e9), Buffer::Placement::kAligned);
      const Buffer to(DType::kI32, Dims{n + 32}, Buffer::Placement::kAligned);
      const Buffer before(DType::kI32, Dims{n + 32}, Buffer::Placement::kAligned);
      const char* source = from.view().as<char>() + shift;
      char* target = to.view().as<char>() + 16;
      tested.shape.CopyBytes(source, target, n);
      EXPECT_EQ(std::memcmp(source, target, n), 0);
      const std::vector<char> untouched(before.view().as<char>(), before.view().as<char>() + 16);
      EXPECT_EQ(std::memcmp(target - 16, untouched.data(), 16), 0);
      EXPECT_EQ(std::memcmp(target + n, untouched.data(), 16), 0);
    }
  }
}

TEST(Broadcast, RepeatsTheDimsNotNamed) {
  const Tensor x = Random({3, 4}, 5);
  const Buffer in(DType::kF32, x), y(DType::kF32, Dims{3, 5, 4, 2});
  tested.shape.Broadcast(in, {0, 2}, y);
  const Tensor want = reference::Gather(in.ToTensor(), {3, 5, 4, 2}, [](const Index& i) { return Index{i[0], i[2]}; });
  EXPECT_EQ(y.ToTensor().values, want.values);
  const Buffer scalar(DType::kF32, Tensor(Dims{}, {2.0})), many(DType::kF32, Dims{100});
  tested.shape.Broadcast(scalar, {}, many);
  EXPECT_EQ(many.ToTensor().values, std::vector<double>(100, 2.0));
}

TEST(Reduce, MatchesTheReferenceForAnyDims) {
  const std::pair<Dims, std::vector<int>> cases[] = {
      {{4, 6, 5}, {0}},    {{4, 6, 5}, {1}},     {{4, 6, 5}, {2}},          {{4, 6, 5}, {0, 1}},
      {{4, 6, 5}, {0, 2}}, {{4, 6, 5}, {1, 2}},  {{4, 6, 5}, {0, 1, 2}},    {{2000, 300}, {0}},
      {{3, 70000}, {1}},   {{2500, 2, 40}, {0}}, {{30, 3, 800}, {0, 2}},    {{200000}, {0}},
      {{4, 0, 5}, {1}},    {{1, 1, 7}, {0, 1}},  {{2, 3, 4, 5, 6}, {1, 3}}, {{3, 4}, {}},
  };
  for (const auto& [dims, reduced] : cases) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      const Tensor x = Rounded(Random(dims, 6), dtype);
      const Dims reduced_dims(reduced.begin(), reduced.end());
      const Tensor sum = reference::ReduceSum(x, reduced), max = reference::ReduceMax(x, reduced);
      const DType result = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
      for (Buffer::Placement placement : kPlacements) {
        const Buffer in(dtype, x, placement), y(result, sum.dims), again(result, sum.dims);
        const int threads = omp_get_max_threads();
        tested.reduce.ReduceSum(in, reduced_dims, y);
        omp_set_num_threads(5);
        tested.reduce.ReduceSum(in, reduced_dims, again);
        omp_set_num_threads(threads);
        EXPECT_LE(MaxError(y.ToTensor(), sum, 1), result == DType::kF64 ? 1e-12 : 1e-6);
        EXPECT_EQ(y.ToTensor().values, again.ToTensor().values);
        tested.reduce.ReduceMax(in, reduced_dims, y);
        EXPECT_LE(MaxError(y.ToTensor(), max, 1e-300), 0);
        EXPECT_TRUE(y.GuardsIntact());
      }
    }
  }
}

TEST(ReduceMax, NanWins) {
  for (int64_t n : {2, 16}) {
    for (const Dims& dims : {Dims{0}, Dims{1}}) {
      for (Buffer::Placement placement : kPlacements) {
        Tensor values = Random({n, n}, 2);
        values[n + 1] = std::nan("");
        const Buffer x(DType::kF32, values, placement), y(DType::kF32, Dims{n});
        tested.reduce.ReduceMax(x, dims, y);
        const Tensor got = y.ToTensor();
        for (int64_t i = 0; i < n; ++i) EXPECT_EQ(std::isnan(got[i]), i == 1) << i;
      }
    }
  }
}

TEST(ScatterAdd, SumsInOrder) {
  struct Case {
    Dims x;
    int dim;
    int64_t extent;
  };
  for (const auto& [dims, dim, extent] : {Case{{3, 70, 5}, 1, 9}, Case{{700, 3}, 0, 4}, Case{{2, 5}, 1, 40},
                                          Case{{4, 0}, 1, 3}, Case{{0, 4}, 1, 3}, Case{{6}, 0, 1}}) {
    for (DType dtype : {DType::kF32, DType::kF64}) {
      const Tensor x = Rounded(Random(dims, 3), dtype);
      Dims y_dims = dims;
      y_dims[dim] = extent;
      // One in eleven names no element.
      std::vector<double> places(x.values.size());
      for (size_t i = 0; i < places.size(); ++i) places[i] = i % 11 == 10 ? -1 : static_cast<double>(i * 7 % extent);
      const Tensor ids(dims, places);
      Tensor want(y_dims, std::vector<double>(y_dims.Product(), 0));
      const int64_t inner = dims.Product(dim + 1, dims.rank()), from = dims[dim];
      for (int64_t i = 0; i < static_cast<int64_t>(places.size()); ++i) {
        const auto place = static_cast<int64_t>(places[i]);
        double& sum = want.values[place < 0 ? 0 : (i / (from * inner) * extent + place) * inner + i % inner];
        if (place < 0) continue;
        sum = dtype == DType::kF32 ? static_cast<float>(sum) + static_cast<float>(x.values[i]) : sum + x.values[i];
      }
      const Buffer in(dtype, x), at(DType::kI64, ids), out(dtype, y_dims);
      tested.reduce.ScatterAdd(in, at, dim, out);
      EXPECT_EQ(out.ToTensor().values, want.values);
      EXPECT_TRUE(out.GuardsIntact());
    }
  }
}

}  // namespace
}  // namespace tacc::kernels
