#include "kernels/cuda/product.h"

#include "gtest/gtest.h"
#include "kernels/cuda/einsum.h"

namespace tacc::kernels::cuda {
namespace {

// Of a node with these operands; `acc`: what it adds to, null where it does not.
std::string Words(const std::string& spec, DType operands, const Dims& a, const Dims& b, DType result, const Dims& y,
                  const Dims* acc = nullptr) {
  const auto kernel = CudaEinsum::Prepare(spec, {nullptr, operands, a}, {nullptr, operands, b}, {nullptr, result, y});
  if (!kernel.ok()) return kernel.status().ToString();
  const TensorView summand{nullptr, result, acc == nullptr ? Dims{} : *acc};
  return InWords(kernel->product(acc == nullptr ? nullptr : &summand));
}

TEST(MatrixProduct, IsNamedByWhatItMultiplies) {
  const Dims x{2, 8, 32}, w{16, 32}, y{2, 8, 16}, bias{16};
  EXPECT_EQ(Words("bsk,nk->bsn", DType::kBF16, x, w, DType::kBF16, y), "bf16 [16,32] x [16,32]^T");
  EXPECT_EQ(Words("bsn,nk->bsk", DType::kBF16, y, w, DType::kBF16, x), "bf16 [16,16] x [16,32]");
  EXPECT_EQ(Words("bsn,bsk->nk", DType::kBF16, y, x, DType::kF32, w, &w), "bf16 [16,16]^T x [16,32] in f32 + y");
  EXPECT_EQ(Words("bsk,nk->bsn", DType::kBF16, x, w, DType::kBF16, y, &bias), "bf16 [16,32] x [16,32]^T + bias");
  // In another type than the product's the bias is added afterwards.
  EXPECT_EQ(Words("bsk,nk->bsn", DType::kF32, x, w, DType::kBF16, y, &bias), "f32 [16,32] x [16,32]^T");
}

TEST(MatrixProduct, TellsHowFarApartRowsAndMatricesAre) {
  EXPECT_EQ(Words("bik,bkj->bij", DType::kF32, {3, 5, 7}, {3, 7, 6}, DType::kF32, {3, 5, 6}), "f32 [3,5,7] x [3,7,6]");
  EXPECT_EQ(Words("mbk,nbk->mbn", DType::kF32, {6, 3, 8}, {7, 3, 8}, DType::kF32, {6, 3, 7}),
            "f32 [3:8,6:24,8] x [3:8,7:24,8]^T to [3:7,6:21,7]");
  EXPECT_EQ(Words("mk,k->m", DType::kF32, {5, 4}, {4}, DType::kF32, {5}), "f32 [1,4] x [5,4]^T");
}

}  // namespace
}  // namespace tacc::kernels::cuda
