#ifndef TACC_KERNELS_CUDA_CUBLASLT_H_
#define TACC_KERNELS_CUDA_CUBLASLT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/product.h"

struct cublasLtContext;

namespace tacc::kernels::cuda {

// cuBLASLt's algorithms for products of bf16, f16 and f32, with results of that type or f32, whose matrices have dense
// rows or columns and whose results have dense rows. Sums are in f32 (products of f32 in TF32 where that is on), parts
// of a sum meet in f32 and in a fixed order. None has run on a GPU.
//
// An algorithm's name is the library's version and the words of cublasLtMatmulAlgo_t, which the library takes back in
// another process: "cublaslt-130101:42.14.0.1".
class CublasLt : public ProductLibrary {
 public:
  enum class Tf32 { kOff, kOn };
  // What it works with, which must outlive the products.
  struct Options {
    cublasLtContext* handle = nullptr;
    void* workspace = nullptr;  // Of the stream that products are queued on.
    int64_t workspace_bytes = 0;
    Tf32 tf32 = Tf32::kOff;
  };
  explicit CublasLt(const Options& options) : options_(options) {}

  std::vector<Algorithm> Propose(const MatrixProduct& product, int most) override;
  std::shared_ptr<const FastProduct> Find(const MatrixProduct& product, const std::string& name) override;

 private:
  const Options options_;
};

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_CUBLASLT_H_
