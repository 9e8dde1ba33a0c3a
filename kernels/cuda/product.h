// A matrix product of an einsum, and others than LibTorch who compute it by an algorithm that is chosen.
#ifndef TACC_KERNELS_CUDA_PRODUCT_H_
#define TACC_KERNELS_CUDA_PRODUCT_H_

#include <memory>
#include <string>
#include <vector>

#include "kernels/einsum_plan.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

// [batch,m,k] x [batch,k,n] -> [batch,m,n], views with strides as of an EinsumPlan (their perm does not count).
struct MatrixProduct {
  enum class Summand {
    kNone,
    kResult,
    kBias
  };  // What it is added to: what the result holds, or n numbers to each row.

  DType operands = DType::kF32, result = DType::kF32;
  int64_t batch = 1, m = 1, n = 1, k = 1;
  EinsumView left, right, out;
  Summand summand = Summand::kNone;
};

// For people too, another for all that differ in more than addresses: "bf16 [16384,2048] x [8192,2048]^T in f32 + y".
// Matrices as they lie, ^T where that is transposed; 2048:4096 are 2048 rows (matrices) that begin 4096 elements apart.
std::string InWords(const MatrixProduct& product);

// Where it lies: each at a multiple of kProductAlignment bytes. `summand`: the bias, or the result itself, or null.
inline constexpr int64_t kProductAlignment = 16;
struct ProductMemory {
  const void *left = nullptr, *right = nullptr, *summand = nullptr;
  void* result = nullptr;
};

// A product by one algorithm.
class FastProduct {
 public:
  virtual ~FastProduct() = default;
  // Queues it on CurrentStream(); allocates nothing, waits for nothing, may be captured. False: nothing is queued, and
  // LibTorch is to compute it. Throws where the library fails.
  virtual bool Run(const ProductMemory& memory) const = 0;
};

// Who knows several algorithms of a product.
class ProductLibrary {
 public:
  virtual ~ProductLibrary() = default;

  struct Algorithm {
    std::string name;  // Of this version of the library; the same on each GPU of a kind.
    std::shared_ptr<const FastProduct> product;
  };
  // Those that it holds for the fastest, these first, which give the same bits each time and find room in the workspace
  // that they have. None: it does not take the product. Throws where the library fails.
  virtual std::vector<Algorithm> Propose(const MatrixProduct& product, int most) = 0;
  // The one that was named so, by another process perhaps. Null: there is none of this name for the product here.
  virtual std::shared_ptr<const FastProduct> Find(const MatrixProduct& product, const std::string& name) = 0;
};

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_PRODUCT_H_
