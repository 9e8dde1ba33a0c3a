// Einsum of every device against the reference.
#include <gtest/gtest.h>

#include <cmath>

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

struct Case {
  const char* spec;
  Dims a, b, y;
  bool permutes;  // some tensor's letters are not in groups
};

const Case kCases[] = {
    {"bsk,nk->bsn", {2, 9, 33}, {17, 33}, {2, 9, 17}, false},        // linear layer
    {"bsn,nk->bsk", {2, 9, 17}, {17, 33}, {2, 9, 33}, false},        // its dX
    {"bsn,bsk->nk", {2, 9, 17}, {2, 9, 33}, {17, 33}, false},        // its dW
    {"bsk,bsn->nk", {2, 9, 33}, {2, 9, 17}, {17, 33}, false},        // dW, operands the other way round
    {"bsk,khd->bshd", {2, 9, 33}, {33, 3, 5}, {2, 9, 3, 5}, false},  // fused heads
    {"bshd,khd->bsk", {2, 9, 3, 5}, {33, 3, 5}, {2, 9, 33}, false},
    {"bsk,chdk->cbshd", {2, 9, 11}, {3, 4, 5, 11}, {3, 2, 9, 4, 5}, true},  // W_pack
    {"bik,bkj->bij", {3, 5, 7}, {3, 7, 6}, {3, 5, 6}, false},               // batched
    {"bik,bjk->bij", {3, 50, 70}, {3, 60, 70}, {3, 50, 60}, false},
    {"bki,bkj->bji", {3, 50, 70}, {3, 50, 60}, {3, 60, 70}, false},
    {"bihd,bjhd->bhij", {2, 6, 3, 8}, {2, 7, 3, 8}, {2, 3, 6, 7}, true},
    {"mbk,nbk->bmn", {6, 3, 8}, {7, 3, 8}, {3, 6, 7}, false},
    {"mbk,nbk->mbn", {6, 3, 8}, {7, 3, 8}, {6, 3, 7}, false},  // result rows apart
    {"mkb,nkb->bmn", {6, 8, 3}, {7, 8, 3}, {3, 6, 7}, true},   // batch innermost
    {"bm,bn->bmn", {3, 6}, {3, 7}, {3, 6, 7}, false},          // outer product
    {"k,k->", {19}, {19}, {}, false},                          // dot product
    {"b,b->b", {19}, {19}, {19}, false},
    {"m,n->mn", {5}, {4}, {5, 4}, false},
    {"mk,k->m", {5, 4}, {4}, {5}, false},
    {"k,kn->n", {4}, {4, 5}, {5}, false},
    {"mk,kn->mn", {0, 4}, {4, 5}, {0, 5}, false},
    {"mk,kn->mn", {3, 0}, {0, 5}, {3, 5}, false},
    {"mk,kn->nm", {30, 40}, {40, 50}, {50, 30}, false},
    {"mkl,lnk->mn", {3, 4, 5}, {5, 6, 4}, {3, 6}, true},
    {"mk,kn->mn", {1, 1}, {1, 1}, {1, 1}, false},
};

double Tolerance(DType a, DType b, DType y, double k) {
  if (y == DType::kBF16 || (a == DType::kBF16 && b == DType::kBF16)) return 1.0 / 128;
  if (y == DType::kF16) return 1.0 / 1024;
  if (y == DType::kF64 && (a == DType::kF64 || b == DType::kF64)) return 1e-12;
  return 1e-6 * std::sqrt(k + 1);
}

// x + y, which has the last dims of x.
Tensor Sum(Tensor x, const Tensor& y) {
  for (int64_t i = 0; i < x.size(); ++i) x[i] += y[i % y.size()];
  return x;
}

TEST(Einsum, MatchesTheReference) {
  const DType kTypes[][3] = {
      {DType::kF32, DType::kF32, DType::kF32},    {DType::kF64, DType::kF64, DType::kF64},
      {DType::kBF16, DType::kBF16, DType::kBF16}, {DType::kBF16, DType::kBF16, DType::kF32},
      {DType::kF32, DType::kBF16, DType::kF32},   {DType::kF16, DType::kF16, DType::kF16},
      {DType::kF64, DType::kF32, DType::kF64},
  };
  for (const Case& c : kCases) {
    for (const auto& [a_type, b_type, y_type] : kTypes) {
      const Tensor a = Rounded(Random(c.a, 1), a_type), b = Rounded(Random(c.b, 2), b_type);
      const Tensor want = reference::Einsum(c.spec, a, b);
      const Buffer ba(a_type, a), bb(b_type, b), y(y_type, c.y);
      auto kernel = tested.einsum.PrepareEinsum(c.spec, ba, bb, y, {});
      ASSERT_TRUE(kernel.ok()) << kernel.status();
      const EinsumPlan& plan = (*kernel)->plan();
      EXPECT_EQ(!plan.left.perm.empty() || !plan.right.perm.empty() || !plan.result.perm.empty(), c.permutes) << c.spec;
      (*kernel)->Run(ba, bb, y);
      const double tolerance = Tolerance(a_type, b_type, y_type, static_cast<double>(plan.k));
      EXPECT_LE(MaxError(y.ToTensor(), want, 1), tolerance)
          << c.spec << " " << Name(a_type) << " " << Name(b_type) << " " << Name(y_type);
      EXPECT_TRUE(y.GuardsIntact());
      for (int num_dims = c.y.rank(); num_dims >= 0; --num_dims) {
        const Tensor start = Rounded(Random(Dims(c.y.end() - num_dims, c.y.end()), 3), y_type);
        const Tensor sum = Sum(want, start);
        const Buffer acc(y_type, start), other(y_type, c.y);
        (*kernel)->RunAccumulate(acc, ba, bb, other);
        EXPECT_LE(MaxError(other.ToTensor(), sum, 1), tolerance)
            << c.spec << " and the last " << num_dims << " dims of " << Name(y_type);
        EXPECT_TRUE(other.GuardsIntact());
        if (num_dims < c.y.rank()) continue;
        (*kernel)->RunAccumulate(acc, ba, bb, acc);  // in place
        EXPECT_EQ(acc.ToTensor().values, other.ToTensor().values) << c.spec;
      }
    }
  }
}

// The first operand as entries [start, ...) in dim `dim` of a larger tensor.
TEST(Einsum, MultipliesAPartOfATensor) {
  struct Part {
    const char* spec;
    Dims whole, b, y;
    int dim;
    int64_t start, extent;
  };
  const Part parts[] = {{"bshd,bsk->hdk", {2, 9, 8, 5}, {2, 9, 33}, {3, 5, 33}, 2, 2, 3},
                        {"bsn,bsk->nk", {2, 9, 40}, {2, 9, 33}, {16, 33}, 2, 24, 16},
                        {"bsn,nk->bsk", {2, 9, 40}, {16, 33}, {2, 9, 33}, 2, 8, 16},
                        {"bn,bk->nk", {1, 12}, {1, 7}, {4, 7}, 1, 4, 4},
                        {"bn,bk->nk", {9, 12}, {9, 7}, {1, 7}, 1, 4, 1}};
  for (const Part& c : parts) {
    for (const auto& [type, y_type] : {std::pair(DType::kF32, DType::kF32),
                                       {DType::kF64, DType::kF64},
                                       {DType::kBF16, DType::kF32},
                                       {DType::kBF16, DType::kBF16}}) {
      for (const DType b_type : {type, DType::kF32}) {
        const Tensor whole = Rounded(Random(c.whole, 1), type), b = Rounded(Random(c.b, 2), b_type);
        Dims dims = c.whole;
        dims[c.dim] = c.extent;
        const int64_t pitch = c.whole.Product(c.dim, c.whole.rank()), run = dims.Product(c.dim, dims.rank());
        const int64_t first = c.start * (run / c.extent);
        Tensor part(dims);
        for (int64_t i = 0; i < part.size(); ++i) part[i] = whole[i / run * pitch + first + i % run];
        const Buffer in(type, whole), bb(b_type, b), y(y_type, c.y);
        TensorView a = in;
        a.data = a.as<char>() + first * SizeOf(type);
        a.dims = dims;
        const auto kernel = tested.einsum.PrepareEinsum(c.spec, a, bb, y, {c.dim, pitch});
        ASSERT_TRUE(kernel.ok()) << kernel.status();
        (*kernel)->Run(a, bb, y);
        const double tolerance = Tolerance(type, b_type, y_type, static_cast<double>((*kernel)->plan().k));
        EXPECT_LE(MaxError(y.ToTensor(), reference::Einsum(c.spec, part, b), 1), tolerance) << c.spec;
        EXPECT_TRUE(y.GuardsIntact());
      }
    }
  }
}

// What a product rounded to bf16 would cancel to 0 is what the rounding left.
TEST(Einsum, SumIsRoundedOnce) {
  const Tensor x = Rounded(Random({2, 8, 96}, 1), DType::kBF16), w = Rounded(Random({5, 16, 96}, 2), DType::kBF16);
  const Tensor product = reference::Einsum("bsk,hdk->bshd", x, w);
  for (const Dims& dims : {Dims{5, 16}, Dims{16}, Dims{2, 8, 5, 16}}) {
    Tensor acc(dims);
    for (int64_t i = 0; i < acc.size(); ++i) acc[i] = -product[i];
    acc = Rounded(acc, DType::kBF16);
    const Buffer bx(DType::kBF16, x), bw(DType::kBF16, w), bacc(DType::kBF16, acc), y(DType::kBF16, {2, 8, 5, 16});
    const auto kernel = tested.einsum.PrepareEinsum("bsk,hdk->bshd", bx, bw, y, {});
    ASSERT_TRUE(kernel.ok());
    (*kernel)->RunAccumulate(bacc, bx, bw, y);
    EXPECT_LE(MaxError(y.ToTensor(), Sum(product, acc), 1e-3), 1.0 / 200) << dims.rank();
  }
}

TEST(Einsum, ModelSizedBf16ProductIsRoundedOnce) {
  const Tensor x = Rounded(Random({64, 512}, 1), DType::kBF16), w = Rounded(Random({96, 512}, 2), DType::kBF16);
  const Buffer bx(DType::kBF16, x), bw(DType::kBF16, w), y(DType::kBF16, Dims{64, 96});
  auto kernel = tested.einsum.PrepareEinsum("mk,nk->mn", bx, bw, y, {});
  ASSERT_TRUE(kernel.ok());
  (*kernel)->Run(bx, bw, y);
  EXPECT_LE(MaxError(y.ToTensor(), reference::Einsum("mk,nk->mn", x, w), 1e-2), 1.0 / 250);
}

TEST(PlanEinsum, RefusesBadSpecs) {
  const std::pair<const char*, const char*> cases[] = {
      {"ab->ab", "want the form"},
      {"ab,bc", "want the form"},
      {"abc,bc->ac", "names 3 dims, the operand has 2"},
      {"aa,bc->ac", "letter a is twice"},
      {"ab,cd->ad", "letter b is in one operand only"},
      {"ab,bc->az", "letter z of the result"},
      {"ab,bc->aac", "letter a of the result"},
  };
  for (const auto& [spec, message] : cases) {
    const auto plan = PlanEinsum(spec, {2, 3}, {3, 4});
    ASSERT_FALSE(plan.ok()) << spec;
    EXPECT_NE(plan.status().message().find(message), absl::string_view::npos) << plan.status();
  }
  const auto plan = PlanEinsum("ab,bc->ac", {2, 3}, {4, 5});
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.status().message().find("letter b is 3 in the first operand and 4 in the second"),
            absl::string_view::npos);
}

}  // namespace
}  // namespace tacc::kernels
