// cuBLASLt's products against LibTorch's on the host. What multiplies needs a GPU.
#include "kernels/cuda/cublaslt.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <exception>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/aten.h"
#include "kernels/cuda/einsum.h"
#include "kernels/cuda/launch/stream.h"

namespace tacc::kernels::cuda {
namespace {

using Summand = MatrixProduct::Summand;
using ::testing::IsEmpty;

struct Case {
  const char* spec;
  Dims a, b, y;
};

// Views that lie as they are wanted, in every order; rows of 16 bytes and others.
const Case kCases[] = {
    {"bsk,nk->bsn", {2, 96, 128}, {64, 128}, {2, 96, 64}},          // linear layer
    {"bsn,nk->bsk", {2, 96, 64}, {64, 128}, {2, 96, 128}},          // its dX
    {"bsn,bsk->nk", {2, 96, 64}, {2, 96, 128}, {64, 128}},          // its dW
    {"bsk,khd->bshd", {2, 96, 128}, {128, 4, 16}, {2, 96, 4, 16}},  // fused heads
    {"bik,bkj->bij", {3, 40, 64}, {3, 64, 24}, {3, 40, 24}},        // batched
    {"bki,bkj->bji", {3, 64, 40}, {3, 64, 24}, {3, 24, 40}},
    {"mbk,nbk->mbn", {40, 3, 64}, {24, 3, 64}, {40, 3, 24}},  // rows apart
    {"mk,kn->nm", {40, 64}, {64, 24}, {24, 40}},
    {"mk,kn->mn", {37, 51}, {51, 29}, {37, 29}},
    {"mk,kn->mn", {1, 64}, {64, 24}, {1, 24}},
    {"mk,k->m", {40, 64}, {64}, {40}},
};

MatrixProduct ProductOf(const Case& c, DType operands, DType result, const TensorView* acc) {
  const auto kernel =
      CudaEinsum::Prepare(c.spec, {nullptr, operands, c.a}, {nullptr, operands, c.b}, {nullptr, result, c.y});
  EXPECT_TRUE(kernel.ok()) << kernel.status();
  return kernel->product(acc);
}

bool IsSwapped(const Case& c) { return PlanEinsum(c.spec, c.a, c.b)->swapped; }

TEST(CublasLt, TakesNoOtherTypes) {
  CublasLt library({});
  const MatrixProduct product = ProductOf(kCases[0], DType::kF64, DType::kF64, nullptr);
  EXPECT_THAT(library.Propose(product, 8), IsEmpty());
}

// All that it tells the library is taken; without a handle there are no algorithms.
TEST(CublasLt, DescribesEveryProduct) {
  CublasLt library({});
  const Dims bias{64};
  for (const Case& c : kCases) {
    for (const DType operands : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (const Dims* acc : {static_cast<const Dims*>(nullptr), &c.y, &bias}) {
        const TensorView summand{nullptr, operands, acc == nullptr ? Dims{} : *acc};
        const MatrixProduct product = ProductOf(c, operands, operands, acc == nullptr ? nullptr : &summand);
        try {
          library.Propose(product, 8);
          ADD_FAILURE() << "algorithms without a handle";
        } catch (const std::exception& error) {
          EXPECT_THAT(error.what(), testing::StartsWith("cuBLASLt, its algorithms: ")) << InWords(product);
        }
      }
    }
  }
}

TEST(CublasLt, KnowsNoNamesOfOthers) {
  CublasLt library({});
  const MatrixProduct product = ProductOf(kCases[0], DType::kBF16, DType::kBF16, nullptr);
  const std::string begin = "cublaslt-" + std::to_string(cublasLtGetVersion()) + ":";
  for (const std::string& name : {std::string(), std::string("libtorch"), std::string("cublaslt-1:42"), begin,
                                  begin + "42.x", begin + "1.2.3.4.5.6.7.8.9"})
    EXPECT_EQ(library.Find(product, name), nullptr) << name;
}

class CublasLtOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
    ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    scope_ = std::make_unique<StreamScope>(stream_);
    library_ = std::make_unique<CublasLt>(
        CublasLt::Options{handle_, OnDevice(kWorkspaceBytes), kWorkspaceBytes, CublasLt::Tf32::kOff});
  }
  ~CublasLtOnGpu() override {
    for (void* data : memory_) (void)cudaFree(data);
    scope_.reset();
    if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
    if (handle_ != nullptr) (void)cublasLtDestroy(handle_);
  }

  void* OnDevice(int64_t num_bytes) {
    EXPECT_EQ(cudaMalloc(&memory_.emplace_back(), static_cast<size_t>(num_bytes)), cudaSuccess);
    return memory_.back();
  }
  void* OnDevice(const at::Tensor& x) {
    void* data = OnDevice(static_cast<int64_t>(x.nbytes()));
    EXPECT_EQ(cudaMemcpy(data, x.data_ptr(), x.nbytes(), cudaMemcpyHostToDevice), cudaSuccess);
    return data;
  }

  // The result of one run on what `before` holds.
  at::Tensor Run(const FastProduct& product, const ProductMemory& memory, const at::Tensor& before) {
    EXPECT_EQ(cudaMemcpy(memory.result, before.data_ptr(), before.nbytes(), cudaMemcpyHostToDevice), cudaSuccess);
    EXPECT_TRUE(product.Run(memory));
    return Result(memory, before);
  }
  at::Tensor Result(const ProductMemory& memory, const at::Tensor& like) {
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    at::Tensor result = at::empty(like.sizes(), like.options());
    EXPECT_EQ(cudaMemcpy(result.data_ptr(), memory.result, result.nbytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    return result;
  }
  // As Run, but recorded and replayed.
  at::Tensor Replay(const FastProduct& product, const ProductMemory& memory, const at::Tensor& before) {
    EXPECT_EQ(cudaMemcpy(memory.result, before.data_ptr(), before.nbytes(), cudaMemcpyHostToDevice), cudaSuccess);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_TRUE(product.Run(memory));
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
    at::Tensor result = Result(memory, before);
    (void)cudaGraphExecDestroy(executable);
    (void)cudaGraphDestroy(graph);
    return result;
  }

  void CheckAll(const Case& c, DType operands, DType result_type, Summand summand) {
    const auto random = [](const Dims& dims, DType dtype) {
      return at::randn({dims.begin(), static_cast<size_t>(dims.rank())}).to(cpu::AtenOptions(dtype).dtype());
    };
    const Dims bias_dims{c.y.back()};
    const TensorView acc{nullptr, result_type, summand == Summand::kBias ? bias_dims : c.y};
    const MatrixProduct product = ProductOf(c, operands, result_type, summand == Summand::kNone ? nullptr : &acc);
    if (product.summand != summand) return;  // A bias that no epilogue takes.
    SCOPED_TRACE(InWords(product));
    const at::Tensor a = random(c.a, operands), b = random(c.b, operands), before = random(c.y, result_type),
                     bias = random(bias_dims, result_type);
    at::Tensor want = at::einsum(c.spec, {a.to(at::kDouble), b.to(at::kDouble)});
    if (summand == Summand::kResult) want += before.to(at::kDouble);
    if (summand == Summand::kBias) want += bias.to(at::kDouble);
    void *const a_data = OnDevice(a), *const b_data = OnDevice(b), *const y_data = OnDevice(before);
    ProductMemory memory{IsSwapped(c) ? b_data : a_data, IsSwapped(c) ? a_data : b_data, nullptr, y_data};
    if (summand != Summand::kNone) memory.summand = summand == Summand::kBias ? OnDevice(bias) : y_data;

    const std::vector<ProductLibrary::Algorithm> algorithms = library_->Propose(product, 8);
    num_algorithms_ += algorithms.size();
    const double tolerance = result_type == DType::kF32 ? 1e-5 : 1.0 / 128;
    for (const auto& [name, algorithm] : algorithms) {
      const at::Tensor got = Run(*algorithm, memory, before);
      EXPECT_LE(got.to(at::kDouble).sub(want).norm().item<double>(), tolerance * want.norm().item<double>()) << name;
      EXPECT_TRUE(Run(*algorithm, memory, before).equal(got)) << name << " gives other bits";
      EXPECT_TRUE(Replay(*algorithm, memory, before).equal(got)) << name << " replayed gives other bits";
      const auto found = library_->Find(product, name);
      ASSERT_NE(found, nullptr) << name;
      EXPECT_TRUE(Run(*found, memory, before).equal(got)) << name << " found by name gives other bits";
    }
  }

  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
  cublasLtHandle_t handle_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<StreamScope> scope_;
  std::vector<void*> memory_;
  std::unique_ptr<CublasLt> library_;
  size_t num_algorithms_ = 0;
};

TEST_F(CublasLtOnGpu, EveryAlgorithmIsRightAndFoundAgain) {
  for (const Case& c : kCases) {
    for (const DType operands : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (const DType result : std::set<DType>{operands, DType::kF32}) {
        for (const Summand summand : {Summand::kNone, Summand::kResult, Summand::kBias})
          CheckAll(c, operands, result, summand);
      }
    }
  }
  EXPECT_GT(num_algorithms_, 100u);
}

TEST_F(CublasLtOnGpu, ProposesNothingThatWantsMoreWorkspace) {
  CublasLt poor({handle_, nullptr, 0, CublasLt::Tf32::kOff});
  // Few results of long sums: most algorithms cut these, and want memory for the parts.
  const Case c{"km,kn->mn", {1 << 16, 64}, {1 << 16, 64}, {64, 64}};
  const MatrixProduct product = ProductOf(c, DType::kBF16, DType::kF32, nullptr);
  std::set<std::string> all, without;
  for (const auto& algorithm : library_->Propose(product, 8)) all.insert(algorithm.name);
  for (const auto& algorithm : poor.Propose(product, 8)) without.insert(algorithm.name);
  ASSERT_FALSE(all.empty());
  for (const std::string& name : all) {
    if (without.count(name) == 0 && poor.Find(product, name) == nullptr) return;
  }
  GTEST_SKIP() << "none of this GPU's algorithms for the product wants a workspace";
}

}  // namespace
}  // namespace tacc::kernels::cuda
