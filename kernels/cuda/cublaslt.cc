#include "kernels/cuda/cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "kernels/cuda/launch/stream.h"

namespace tacc::kernels::cuda {
namespace {

using Summand = MatrixProduct::Summand;

constexpr size_t kAlgorithmWords = sizeof(cublasLtMatmulAlgo_t::data) / sizeof(uint64_t);

void Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw std::runtime_error(absl::StrCat("cuBLASLt, ", what, ": ", cublasLtGetStatusName(status)));
}

std::optional<cudaDataType_t> CudaType(DType dtype) {
  if (dtype == DType::kBF16) return CUDA_R_16BF;
  if (dtype == DType::kF16) return CUDA_R_16F;
  if (dtype == DType::kF32) return CUDA_R_32F;
  return std::nullopt;
}

std::string NamesBegin() { return absl::StrCat("cublaslt-", cublasLtGetVersion(), ":"); }

std::string NameOf(const cublasLtMatmulAlgo_t& algorithm) {
  size_t num_words = kAlgorithmWords;
  while (num_words > 1 && algorithm.data[num_words - 1] == 0) --num_words;
  std::string name = NamesBegin();
  for (size_t i = 0; i < num_words; ++i) absl::StrAppend(&name, i == 0 ? "" : ".", absl::Hex(algorithm.data[i]));
  return name;
}

std::optional<cublasLtMatmulAlgo_t> AlgorithmOf(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, NamesBegin())) return std::nullopt;
  const std::vector<absl::string_view> words = absl::StrSplit(name, '.');
  cublasLtMatmulAlgo_t algorithm = {};
  if (words.size() > kAlgorithmWords) return std::nullopt;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!absl::SimpleHexAtoi(words[i], &algorithm.data[i])) return std::nullopt;
  }
  return algorithm;
}

// A matrix that lies by columns: what the library multiplies.
struct Matrix {
  int64_t rows, columns, stride;  // From a column to the next, in elements.
  bool transposed;                // It multiplies what this is the transpose of.
};

// The transpose of a [rows, columns] matrix: dense rows of ours are dense columns. None: neither rows nor columns are
// dense.
std::optional<Matrix> TransposeOf(const EinsumView& view, int64_t rows, int64_t columns) {
  const int64_t from_row = rows == 1 ? std::max(view.row_stride, columns) : view.row_stride;
  if ((view.column_stride == 1 || columns == 1) && from_row >= columns) return Matrix{columns, rows, from_row, false};
  const int64_t from_column = columns == 1 ? std::max(view.column_stride, rows) : view.column_stride;
  if ((view.row_stride == 1 || rows == 1) && from_column >= rows) return Matrix{rows, columns, from_column, true};
  return std::nullopt;
}

// What is multiplied, as the library is told: result^T = right^T left^T, since its matrices lie by columns.
struct Problem {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t right, left, out;
  float beta = 0;

  // Null: the library is not asked about such a product.
  static std::unique_ptr<Problem> Of(const MatrixProduct& product, CublasLt::Tf32 tf32);

  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, T value) {
    Check(cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof(value)), "what is multiplied");
  }
};

void Describe(const Matrix& matrix, cudaDataType_t type, int64_t batch, int64_t batch_stride,
              cublasLtMatrixLayoutOpaque_t* layout) {
  constexpr char kWhat[] = "a matrix";
  Check(cublasLtMatrixLayoutInit(layout, type, matrix.rows, matrix.columns, matrix.stride), kWhat);
  const int32_t count = static_cast<int32_t>(batch);
  Check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)), kWhat);
  Check(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride,
                                         sizeof(batch_stride)),
        kWhat);
}

std::unique_ptr<Problem> Problem::Of(const MatrixProduct& p, CublasLt::Tf32 tf32) {
  const std::optional<cudaDataType_t> type = CudaType(p.operands), result = CudaType(p.result);
  const std::optional<Matrix> left = TransposeOf(p.left, p.m, p.k), right = TransposeOf(p.right, p.k, p.n),
                              out = TransposeOf(p.out, p.m, p.n);
  if (!type || !result || !left || !right || !out || out->transposed) return nullptr;
  auto problem = std::make_unique<Problem>();
  const bool is_tf32 = tf32 == CublasLt::Tf32::kOn && p.operands == DType::kF32;
  Check(cublasLtMatmulDescInit(&problem->operation, is_tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                               CUDA_R_32F),
        "what is multiplied");
  problem->Set(CUBLASLT_MATMUL_DESC_TRANSA, right->transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  problem->Set(CUBLASLT_MATMUL_DESC_TRANSB, left->transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (p.summand == Summand::kBias) {
    problem->Set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    // Until the product runs an address that says how it is aligned.
    problem->Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(kProductAlignment));
  }
  Describe(*right, *type, p.batch, p.right.batch_stride, &problem->right);
  Describe(*left, *type, p.batch, p.left.batch_stride, &problem->left);
  Describe(*out, *result, p.batch, p.out.batch_stride, &problem->out);
  problem->beta = p.summand == Summand::kResult ? 1 : 0;
  return problem;
}

class Product : public FastProduct {
 public:
  Product(const CublasLt::Options& options, std::unique_ptr<Problem> problem, const cublasLtMatmulAlgo_t& algorithm,
          Summand summand)
      : options_(options), problem_(std::move(problem)), algorithm_(algorithm), has_bias_(summand == Summand::kBias) {}

  bool Run(const ProductMemory& memory) const override {
    Problem& p = *problem_;
    if (has_bias_) p.Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, memory.summand);
    const float alpha = 1;
    Check(cublasLtMatmul(options_.handle, &p.operation, &alpha, memory.right, &p.right, memory.left, &p.left, &p.beta,
                         memory.result, &p.out, memory.result, &p.out, &algorithm_, options_.workspace,
                         static_cast<size_t>(options_.workspace_bytes), CurrentStream()),
          "a product");
    return true;
  }

 private:
  const CublasLt::Options options_;
  const std::unique_ptr<Problem> problem_;  // Of this product alone.
  const cublasLtMatmulAlgo_t algorithm_;
  const bool has_bias_;
};

// What the library may propose.
cublasLtMatmulPreferenceOpaque_t Preference(uint64_t workspace_bytes) {
  constexpr char kWhat[] = "a preference";
  cublasLtMatmulPreferenceOpaque_t preference;
  Check(cublasLtMatmulPreferenceInit(&preference), kWhat);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    Check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)), kWhat);
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(attribute, static_cast<uint32_t>(kProductAlignment));
  return preference;
}

}  // namespace

std::vector<ProductLibrary::Algorithm> CublasLt::Propose(const MatrixProduct& product, int most) {
  const std::unique_ptr<Problem> p = Problem::Of(product, options_.tf32);
  if (p == nullptr) return {};
  cublasLtMatmulPreferenceOpaque_t preference = Preference(static_cast<uint64_t>(options_.workspace_bytes));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int num_results = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(options_.handle, &p->operation, &p->right, &p->left, &p->out, &p->out, &preference,
                                     most, results.data(), &num_results);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  Check(status, "its algorithms");
  results.resize(static_cast<size_t>(num_results));
  std::vector<Algorithm> algorithms;
  for (const cublasLtMatmulHeuristicResult_t& result : results) {
    if (result.state != CUBLAS_STATUS_SUCCESS || static_cast<int64_t>(result.workspaceSize) > options_.workspace_bytes)
      continue;
    algorithms.push_back(
        {NameOf(result.algo),
         std::make_shared<const Product>(options_, Problem::Of(product, options_.tf32), result.algo, product.summand)});
  }
  return algorithms;
}

std::shared_ptr<const FastProduct> CublasLt::Find(const MatrixProduct& product, const std::string& name) {
  const std::optional<cublasLtMatmulAlgo_t> algorithm = AlgorithmOf(name);
  std::unique_ptr<Problem> p = Problem::Of(product, options_.tf32);
  if (!algorithm || p == nullptr) return nullptr;
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(options_.handle, &p->operation, &p->right, &p->left, &p->out,
                                                        &p->out, &*algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS || static_cast<int64_t>(result.workspaceSize) > options_.workspace_bytes)
    return nullptr;
  return std::make_shared<const Product>(options_, std::move(p), *algorithm, product.summand);
}

}  // namespace tacc::kernels::cuda
