// The norms of every device against the reference.
#include <gtest/gtest.h>
#include <omp.h>

#include <vector>

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

struct Shape {
  Dims x;
  int64_t n;
};
const Shape kShapes[] = {{{1, 1}, 1},       {{2, 3, 17}, 17},    {{5, 512}, 512}, {{200, 513}, 513},
                         {{3, 1600}, 1600}, {{2, 12296}, 12296}, {{0, 8}, 8}};

// Each dtype in memory that is aligned to its elements only, and to 16 bytes.
struct Kind {
  DType dtype;
  Buffer::Placement place;
};
constexpr Kind kKinds[] = {
    {DType::kF32, Buffer::Placement::kOffByOne},  {DType::kF32, Buffer::Placement::kAligned},
    {DType::kBF16, Buffer::Placement::kOffByOne}, {DType::kBF16, Buffer::Placement::kAligned},
    {DType::kF16, Buffer::Placement::kOffByOne},  {DType::kF16, Buffer::Placement::kAligned},
    {DType::kF64, Buffer::Placement::kOffByOne},
};

double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 1.0 / 100;  // rms_norm rounds twice, as Hugging Face's does
    case DType::kF16:
      return 1.0 / 800;
    case DType::kF32:
      return 1e-5;
    default:
      return 1e-11;
  }
}

DType Wide(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }
Dims Rows(const Dims& x) { return Dims(x.begin(), x.end() - 1); }

TEST(RmsNorm, MatchesTheReference) {
  for (const Shape& shape : kShapes) {
    for (const auto& [dtype, place] : kKinds) {
      const Tensor x = Rounded(Random(shape.x, 1, 3), dtype), w = Rounded(Random({shape.n}, 2), dtype);
      const Tensor dy = Rounded(Random(shape.x, 3), dtype);
      const auto want = reference::RmsNorm(x, w, 1e-5);
      const auto gradient = reference::RmsNormGrad(dy, x, w, 1e-5);
      const Buffer bx(dtype, x, place), bw(dtype, w, place), bd(dtype, dy, place), y(dtype, shape.x, place),
          rstd(Wide(dtype), Rows(shape.x), place);
      tested.norm.RmsNorm(bx, bw, 1e-5, y, rstd);
      EXPECT_LE(MaxError(y.ToTensor(), want.y, 1e-2), Tolerance(dtype)) << Name(dtype);
      EXPECT_LE(MaxError(rstd.ToTensor(), want.rstd, 1e-2), Tolerance(Wide(dtype)));
      const Buffer dx(dtype, shape.x, place), dw(Wide(dtype), Dims{shape.n}, place),
          again(Wide(dtype), Dims{shape.n}, place);
      tested.norm.RmsNormGrad(bd, bx, bw, rstd, dx, dw, {});
      EXPECT_LE(MaxError(dx.ToTensor(), gradient.dx, 1e-1), Tolerance(dtype)) << Name(dtype);
      EXPECT_LE(MaxError(dw.ToTensor(), gradient.dw, 1), Tolerance(Wide(dtype))) << Name(dtype);
      const int threads = omp_get_max_threads();
      omp_set_num_threads(3);
      tested.norm.RmsNormGrad(bd, bx, bw, rstd, bx, again, {});  // dx over x
      omp_set_num_threads(threads);
      EXPECT_EQ(dw.ToTensor().values, again.ToTensor().values);
      EXPECT_EQ(dx.ToTensor().values, bx.ToTensor().values);
      EXPECT_TRUE(y.GuardsIntact() && dx.GuardsIntact() && dw.GuardsIntact() && rstd.GuardsIntact());
    }
  }
}

TEST(RmsNorm, MixesDtypes) {
  const Tensor x = Random({4, 100}, 1), w = Random({100}, 2);
  const Buffer bx(DType::kF32, x), bw(DType::kBF16, w), y(DType::kBF16, Dims{4, 100}), rstd(DType::kF32, Dims{4});
  tested.norm.RmsNorm(bx, bw, 1e-5, y, rstd);
  EXPECT_LE(MaxError(y.ToTensor(), reference::RmsNorm(Rounded(x, DType::kF32), Rounded(w, DType::kBF16), 1e-5).y, 1e-2),
            Tolerance(DType::kBF16));
}

TEST(RmsNorm, RoundsTheNormalisedValueAsHuggingFaceDoes) {
  const Tensor x = Rounded(Random({1, 64}, 1), DType::kBF16), w = Random({64}, 2);
  const Buffer bx(DType::kBF16, x), bw(DType::kF32, w), y(DType::kF32, Dims{1, 64}), rstd(DType::kF32, Dims{1});
  tested.norm.RmsNorm(bx, bw, 1e-5, y, rstd);
  Tensor want(x.dims);
  for (int64_t i = 0; i < 64; ++i) want[i] = x[i] * rstd.ToTensor()[0];
  want = Rounded(Rounded(want, DType::kF32), DType::kBF16);
  for (int64_t i = 0; i < 64; ++i) want[i] *= bw.ToTensor()[i];
  EXPECT_LE(MaxError(y.ToTensor(), want, 1e-6), 1e-7);
}

TEST(LayerNorm, MatchesTheReferenceWithAndWithoutWeights) {
  for (const Shape& shape : kShapes) {
    for (const auto& [dtype, place] : kKinds) {
      for (int affine = 0; affine < 3; ++affine) {
        Tensor x = Random(shape.x, 1, 3);
        for (double& v : x.values) v += 2;
        x = Rounded(x, dtype);
        const Tensor w = Rounded(Random({shape.n}, 2), dtype), b = Rounded(Random({shape.n}, 4), dtype);
        const Tensor dy = Rounded(Random(shape.x, 3), dtype);
        const Tensor none;
        const auto want = reference::LayerNorm(x, affine > 0 ? w : none, affine > 1 ? b : none, 1e-5);
        const auto gradient = reference::LayerNormGrad(dy, x, affine > 0 ? w : none, 1e-5);
        const Buffer bx(dtype, x, place), bw(dtype, w, place), bb(dtype, b, place), bd(dtype, dy, place),
            y(dtype, shape.x, place), dx(dtype, shape.x, place);
        const Buffer mean(Wide(dtype), Rows(shape.x), place), rstd(Wide(dtype), Rows(shape.x), place);
        const Buffer dw(Wide(dtype), Dims{shape.n}, place), db(Wide(dtype), Dims{shape.n}, place);
        const TensorView absent;
        tested.norm.LayerNorm(bx, affine > 0 ? bw : absent, affine > 1 ? bb : absent, 1e-5, y, mean, rstd);
        EXPECT_LE(MaxError(y.ToTensor(), want.y, 1e-1), Tolerance(dtype)) << Name(dtype) << " n " << shape.n;
        EXPECT_LE(MaxError(mean.ToTensor(), want.mean, 1e-1), Tolerance(Wide(dtype)));
        EXPECT_LE(MaxError(rstd.ToTensor(), want.rstd, 1e-1), Tolerance(Wide(dtype)));
        tested.norm.LayerNormGrad(bd, bx, mean, rstd, affine > 0 ? bw : absent, dx, affine > 0 ? dw : absent,
                                  affine > 1 ? db : absent, {});
        // With one feature dx is 0 and what is left is the rounding of dy, times rstd = 1 / sqrt(eps).
        const double floor = shape.n == 1 ? 30 : 1e-1;
        EXPECT_LE(MaxError(dx.ToTensor(), gradient.dx, floor), 2 * Tolerance(dtype)) << Name(dtype) << " n " << shape.n;
        if (affine > 0) {
          EXPECT_LE(MaxError(dw.ToTensor(), gradient.dw, 1), 2 * Tolerance(Wide(dtype)));
        }
        if (affine > 1) {
          EXPECT_LE(MaxError(db.ToTensor(), gradient.db, 1), Tolerance(Wide(dtype)));
        }
        EXPECT_TRUE(y.GuardsIntact() && dx.GuardsIntact() && dw.GuardsIntact() && db.GuardsIntact());
      }
    }
  }
}

// The dtypes of two addends and of their sum.
struct Addends {
  DType a, b, sum;
  Buffer::Placement place;
};
constexpr Addends kAddends[] = {
    {DType::kF32, DType::kF32, DType::kF32, Buffer::Placement::kOffByOne},
    {DType::kF32, DType::kF32, DType::kF32, Buffer::Placement::kAligned},
    {DType::kF32, DType::kBF16, DType::kF32, Buffer::Placement::kAligned},
    {DType::kF16, DType::kF32, DType::kF32, Buffer::Placement::kOffByOne},
    {DType::kBF16, DType::kBF16, DType::kBF16, Buffer::Placement::kAligned},
    {DType::kF16, DType::kF16, DType::kF16, Buffer::Placement::kOffByOne},
    {DType::kF64, DType::kF64, DType::kF64, Buffer::Placement::kOffByOne},
};

// Where the sum goes; the norm then goes over the other addend.
enum class Over { kNothing, kA, kB };

// As after a product of 16-bit numbers, with no cast between.
TEST(NormGrads, TakeANarrowGradientAsItsCast) {
  for (const Shape& shape : kShapes) {
    for (const auto& [dtype, place] : kKinds) {
      if (dtype != DType::kBF16 && dtype != DType::kF16) continue;
      const Buffer narrow(dtype, Random(shape.x, 1), place), wide(DType::kF32, narrow.ToTensor(), place);
      const Buffer x(DType::kF32, Random(shape.x, 2, 3), place), w(DType::kF32, Random({shape.n}, 3), place);
      const Buffer y(DType::kF32, shape.x, place), mean(DType::kF32, Rows(shape.x)), rstd(DType::kF32, Rows(shape.x));
      const auto gradients = [&](const Buffer& dy) {
        const Buffer rms_dx(DType::kF32, shape.x, place), rms_dw(DType::kF32, Dims{shape.n}, place);
        const Buffer dx(DType::kF32, shape.x, place), dw(DType::kF32, Dims{shape.n}), db(DType::kF32, Dims{shape.n});
        tested.norm.RmsNorm(x, w, 1e-5, y, rstd);
        tested.norm.RmsNormGrad(dy, x, w, rstd, rms_dx, rms_dw, {});
        tested.norm.LayerNorm(x, w, w, 1e-5, y, mean, rstd);
        tested.norm.LayerNormGrad(dy, x, mean, rstd, w, dx, dw, db, {});
        std::vector<std::vector<double>> values;
        for (const Buffer* result : {&rms_dx, &rms_dw, &dx, &dw, &db}) values.push_back(result->ToTensor().values);
        return values;
      };
      EXPECT_EQ(gradients(narrow), gradients(wide)) << Name(dtype) << " n " << shape.n;
    }
  }
}

TEST(AddRmsNorm, HasTheBitsOfTheAddAndTheNorm) {
  for (const Shape& shape : kShapes) {
    for (const auto& [da, db, ds, place] : kAddends) {
      for (Over over : {Over::kNothing, Over::kA, Over::kB}) {
        const Buffer a(da, Random(shape.x, 1, 3), place), b(db, Random(shape.x, 2), place),
            w(ds, Random({shape.n}, 3), place);
        const Buffer s(ds, shape.x, place), y(ds, shape.x, place), rstd(Wide(ds), Rows(shape.x), place);
        tested.pointwise.Binary(BinaryOp::kAdd, a, b, s);
        tested.norm.RmsNorm(s, w, 1e-5, y, rstd);
        const Buffer made(ds, shape.x, place), sum_y(ds, shape.x, place), sum_rstd(Wide(ds), Rows(shape.x), place);
        const Buffer& sum = over == Over::kA && da == ds ? a : over == Over::kB && db == ds ? b : made;
        const Buffer& out = over == Over::kA && db == ds ? b : over == Over::kB && da == ds ? a : sum_y;
        tested.norm.AddRmsNorm(a, b, w, 1e-5, out, sum_rstd, sum);
        EXPECT_EQ(sum.ToTensor().values, s.ToTensor().values) << Name(da) << " " << Name(db) << " n " << shape.n;
        EXPECT_EQ(out.ToTensor().values, y.ToTensor().values) << Name(da) << " " << Name(db) << " n " << shape.n;
        EXPECT_EQ(sum_rstd.ToTensor().values, rstd.ToTensor().values);
        EXPECT_TRUE(sum.GuardsIntact() && out.GuardsIntact() && sum_rstd.GuardsIntact());
      }
    }
  }
}

TEST(RmsNormGradAccumulate, HasTheBitsOfTheGradientAndTheAdd) {
  for (const Shape& shape : kShapes) {
    for (const auto& [dtype, place] : kKinds) {
      const Buffer acc(dtype, Random(shape.x, 5), place), dy(dtype, Random(shape.x, 1), place),
          x(dtype, Random(shape.x, 2, 3), place), w(dtype, Random({shape.n}, 3), place);
      const Buffer y(dtype, shape.x, place), rstd(Wide(dtype), Rows(shape.x), place);
      tested.norm.RmsNorm(x, w, 1e-5, y, rstd);
      const Buffer dx(dtype, shape.x, place), dw(Wide(dtype), Dims{shape.n}, place), want(dtype, shape.x, place);
      tested.norm.RmsNormGrad(dy, x, w, rstd, dx, dw, {});
      tested.pointwise.Binary(BinaryOp::kAdd, acc, dx, want);
      const Buffer out(dtype, shape.x, place), out_dw(Wide(dtype), Dims{shape.n}, place);
      tested.norm.RmsNormGradAccumulate(acc, dy, x, w, rstd, out, out_dw, {});
      EXPECT_EQ(out.ToTensor().values, want.ToTensor().values) << Name(dtype) << " n " << shape.n;
      EXPECT_EQ(out_dw.ToTensor().values, dw.ToTensor().values) << Name(dtype) << " n " << shape.n;
      tested.norm.RmsNormGradAccumulate(acc, dy, x, w, rstd, acc, out_dw, {});
      EXPECT_EQ(acc.ToTensor().values, want.ToTensor().values) << Name(dtype) << " n " << shape.n;
      EXPECT_TRUE(out.GuardsIntact() && acc.GuardsIntact() && out_dw.GuardsIntact());
    }
  }
}

// The copy goes to memory of its own, then over the gradient that is read, which is as narrow.
TEST(NormGrads, CopyWithTheBitsOfACast) {
  struct Copied {
    DType wide, narrow;
    Buffer::Placement place;
  };
  constexpr Copied kCopied[] = {{DType::kF32, DType::kBF16, Buffer::Placement::kOffByOne},
                                {DType::kF32, DType::kBF16, Buffer::Placement::kAligned},
                                {DType::kF32, DType::kF16, Buffer::Placement::kAligned},
                                {DType::kF64, DType::kF32, Buffer::Placement::kOffByOne}};
  const Shape shapes[] = {{{2, 3, 17}, 17}, {{5, 512}, 512}, {{1, 12296}, 12296}, {{0, 8}, 8}};
  for (const Shape& shape : shapes) {
    for (const auto& [wide, narrow, place] : kCopied) {
      const Buffer acc(wide, Random(shape.x, 5), place), x(wide, Random(shape.x, 2, 3), place),
          w(wide, Random({shape.n}, 3), place), dy(narrow, Random(shape.x, 1), place);
      const Buffer y(wide, shape.x), mean(Wide(wide), Rows(shape.x)), rstd(Wide(wide), Rows(shape.x)),
          rms(Wide(wide), Rows(shape.x));
      tested.norm.RmsNorm(x, w, 1e-5, y, rms);
      tested.norm.LayerNorm(x, w, w, 1e-5, y, mean, rstd);
      const Buffer dw(Wide(wide), Dims{shape.n}), db(Wide(wide), Dims{shape.n});
      // The gradient and its copy where it is wanted; by the number of the case.
      const auto run = [&](int kernel, const TensorView& in, const Buffer& dx, const TensorView& copy) {
        if (kernel == 0) tested.norm.RmsNormGrad(in, x, w, rms, dx, dw, copy);
        if (kernel == 1) tested.norm.RmsNormGradAccumulate(acc, in, x, w, rms, dx, dw, copy);
        if (kernel == 2) tested.norm.LayerNormGrad(in, x, mean, rstd, w, dx, dw, db, copy);
        if (kernel == 3) tested.norm.LayerNormGradAccumulate(acc, in, x, mean, rstd, w, dx, dw, db, copy);
        if (kernel == 4) tested.norm.LayerNormGrad(in, x, mean, rstd, {}, dx, {}, {}, copy);
      };
      for (int kernel = 0; kernel < 5; ++kernel) {
        const Buffer wanted(wide, shape.x, place), dx(wide, shape.x, place);
        const Buffer cast(narrow, shape.x, place), copy(narrow, shape.x, place), over(narrow, dy.ToTensor(), place);
        run(kernel, dy, wanted, {});
        tested.unary.Unary(UnaryOp::kCast, wanted, cast, {});
        run(kernel, dy, dx, copy);
        EXPECT_EQ(dx.ToTensor().values, wanted.ToTensor().values) << kernel << " " << Name(narrow) << " n " << shape.n;
        EXPECT_EQ(copy.ToTensor().values, cast.ToTensor().values) << kernel << " " << Name(narrow) << " n " << shape.n;
        run(kernel, over, dx, over);
        EXPECT_EQ(over.ToTensor().values, cast.ToTensor().values) << kernel << " " << Name(narrow) << " n " << shape.n;
        EXPECT_TRUE(dx.GuardsIntact() && copy.GuardsIntact() && over.GuardsIntact());
      }
    }
  }
}

TEST(AddLayerNorm, HasTheBitsOfTheAddAndTheNorm) {
  const TensorView absent;
  for (const Shape& shape : kShapes) {
    for (const auto& [da, db, ds, place] : kAddends) {
      for (int affine = 0; affine < 3; ++affine) {
        const Buffer a(da, Random(shape.x, 1, 3), place), b(db, Random(shape.x, 2), place),
            w(ds, Random({shape.n}, 3), place), bias(ds, Random({shape.n}, 4), place);
        const Buffer s(ds, shape.x, place), y(ds, shape.x, place), mean(Wide(ds), Rows(shape.x), place),
            rstd(Wide(ds), Rows(shape.x), place);
        tested.pointwise.Binary(BinaryOp::kAdd, a, b, s);
        tested.norm.LayerNorm(s, affine > 0 ? w : absent, affine > 1 ? bias : absent, 1e-5, y, mean, rstd);
        const Buffer sum(ds, shape.x, place), sum_y(ds, shape.x, place), sum_mean(Wide(ds), Rows(shape.x), place),
            sum_rstd(Wide(ds), Rows(shape.x), place);
        const Buffer& out = db == ds ? b : sum_y;
        tested.norm.AddLayerNorm(a, b, affine > 0 ? w : absent, affine > 1 ? bias : absent, 1e-5, out, sum_mean,
                                 sum_rstd, sum);
        EXPECT_EQ(sum.ToTensor().values, s.ToTensor().values) << Name(da) << " " << Name(db) << " n " << shape.n;
        EXPECT_EQ(out.ToTensor().values, y.ToTensor().values) << Name(da) << " " << Name(db) << " n " << shape.n;
        EXPECT_EQ(sum_mean.ToTensor().values, mean.ToTensor().values);
        EXPECT_EQ(sum_rstd.ToTensor().values, rstd.ToTensor().values);
        EXPECT_TRUE(sum.GuardsIntact() && out.GuardsIntact() && sum_mean.GuardsIntact() && sum_rstd.GuardsIntact());
      }
    }
  }
}

TEST(LayerNormGradAccumulate, HasTheBitsOfTheGradientAndTheAdd) {
  const TensorView absent;
  for (const Shape& shape : kShapes) {
    for (const auto& [dtype, place] : kKinds) {
      for (int affine = 0; affine < 3; ++affine) {
        const Buffer acc(dtype, Random(shape.x, 5), place), dy(dtype, Random(shape.x, 1), place),
            x(dtype, Random(shape.x, 2, 3), place), w(dtype, Random({shape.n}, 3), place);
        const Buffer y(dtype, shape.x, place), mean(Wide(dtype), Rows(shape.x), place),
            rstd(Wide(dtype), Rows(shape.x), place);
        tested.norm.LayerNorm(x, w, absent, 1e-5, y, mean, rstd);
        const Dims n{shape.n};
        const Buffer dx(dtype, shape.x, place), dw(Wide(dtype), n, place), db(Wide(dtype), n, place);
        const TensorView some_w = affine > 0 ? w : absent;
        tested.norm.LayerNormGrad(dy, x, mean, rstd, some_w, dx, affine > 0 ? dw : absent, affine > 1 ? db : absent,
                                  {});
        const Buffer want(dtype, shape.x, place), out_dw(Wide(dtype), n, place), out_db(Wide(dtype), n, place);
        tested.pointwise.Binary(BinaryOp::kAdd, acc, dx, want);
        tested.norm.LayerNormGradAccumulate(acc, dy, x, mean, rstd, some_w, acc, affine > 0 ? out_dw : absent,
                                            affine > 1 ? out_db : absent, {});
        EXPECT_EQ(acc.ToTensor().values, want.ToTensor().values) << Name(dtype) << " n " << shape.n;
        if (affine > 0) {
          EXPECT_EQ(out_dw.ToTensor().values, dw.ToTensor().values);
        }
        if (affine > 1) {
          EXPECT_EQ(out_db.ToTensor().values, db.ToTensor().values);
        }
        EXPECT_TRUE(acc.GuardsIntact() && out_dw.GuardsIntact() && out_db.GuardsIntact());
      }
    }
  }
}

TEST(L2Normalize, MatchesTheReferenceAlsoBelowEps) {
  for (const Shape& shape : kShapes) {
    for (const auto& [dtype, place] : kKinds) {
      Tensor x = Random(shape.x, 1);
      for (int64_t i = 0; i < x.size() && i < shape.n; ++i) x[i] *= 1e-5;  // the first row's norm is under eps
      x = Rounded(x, dtype);
      const Tensor dy = Rounded(Random(shape.x, 3), dtype);
      const double eps = 1e-2;
      const Buffer bx(dtype, x, place), bd(dtype, dy, place), y(dtype, shape.x, place), dx(dtype, shape.x, place),
          rnorm(Wide(dtype), Rows(shape.x), place);
      tested.norm.L2Normalize(bx, eps, y, rnorm);
      EXPECT_LE(MaxError(y.ToTensor(), reference::L2Normalize(x, eps).y, 1e-2), Tolerance(dtype));
      tested.norm.L2NormalizeGrad(bd, bx, rnorm, eps, dx);
      EXPECT_LE(MaxError(dx.ToTensor(), reference::L2NormalizeGrad(dy, x, eps).dx, 1e-1), 2 * Tolerance(dtype))
          << Name(dtype) << " n " << shape.n;
    }
  }
}

}  // namespace
}  // namespace tacc::kernels
