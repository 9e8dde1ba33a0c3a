// The picker on a simulated device with a fake library: what it measures, what it leaves and what it takes. The fake's
// products are LibTorch's on the host.
#include "worker/rank/cuda/tuning/product_picker.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/einsum.h"
#include "worker/rank/testing/naive_kernels.h"
#include "worker/rank/testing/simulated_device.h"

namespace tacc::worker {
namespace {

using kernels::DType;
using kernels::TensorView;
using kernels::cuda::CudaEinsum;
using kernels::cuda::FastProduct;
using kernels::cuda::MatrixProduct;
using kernels::cuda::ProductLibrary;
using kernels::cuda::ProductMemory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kTokens = 96, kIn = 32, kOut = 64;
constexpr int kLibtorchPieces = 5;

// What an algorithm of the fake does.
struct Behaviour {
  std::string name;
  int pieces = 1;     // Of work: milliseconds of the simulated device's time.
  double factor = 1;  // Of its result.
  bool forgets_summand = false;
  int throws_at_call = 0;
};

// As CUDA does, it keeps an error for whoever looks next, unless the exception is asked what it says.
class KeepingDevice : public SimulatedDevice {
 public:
  using SimulatedDevice::SimulatedDevice;
  absl::Status StatusOf(const std::exception& exception) const override {
    keeps_error = false;
    return SimulatedDevice::StatusOf(exception);
  }
  [[noreturn]] void Throw(const std::string& what) {
    keeps_error = true;
    throw std::runtime_error(what + "\nException raised from ...");
  }
  mutable bool keeps_error = false;
};

class FakeLibrary : public ProductLibrary {
 public:
  explicit FakeLibrary(KeepingDevice* device) : device_(*device) {}

  std::vector<Algorithm> Propose(const MatrixProduct& product, int most) override {
    if (!fault.empty()) device_.Throw(fault);
    num_asked += 1;
    std::vector<Algorithm> algorithms;
    for (const Behaviour& behaviour : algorithms_of_all)
      algorithms.push_back({behaviour.name, Make(behaviour, product)});
    algorithms.resize(std::min<size_t>(algorithms.size(), static_cast<size_t>(most)));
    return algorithms;
  }
  std::shared_ptr<const FastProduct> Find(const MatrixProduct& product, const std::string& name) override {
    for (const Behaviour& behaviour : algorithms_of_all) {
      if (behaviour.name == name) return Make(behaviour, product);
    }
    return nullptr;
  }

  std::vector<Behaviour> algorithms_of_all = {{"lt:1", 3}, {"lt:2", 2}};
  std::string fault;
  int num_asked = 0;
  std::map<std::string, int> num_calls;

 private:
  // y = x w^T + what it is added to, of the dims below.
  class Fake : public FastProduct {
   public:
    Fake(FakeLibrary* library, Behaviour does, const MatrixProduct& product)
        : library_(*library), does_(std::move(does)), product_(product) {}
    bool Run(const ProductMemory& memory) const override {
      if (++library_.num_calls[does_.name] == does_.throws_at_call)
        library_.device_.Throw("CUBLAS_STATUS_EXECUTION_FAILED");
      const auto tensor = [](const void* data, c10::IntArrayRef dims) {
        return at::from_blob(const_cast<void*>(data), dims, at::kFloat);
      };
      at::Tensor y = tensor(memory.result, {kTokens, kOut});
      at::Tensor result = tensor(memory.left, {kTokens, kIn}).mm(tensor(memory.right, {kOut, kIn}).t());
      if (product_.summand == MatrixProduct::Summand::kResult && !does_.forgets_summand) result.add_(y);
      if (product_.summand == MatrixProduct::Summand::kBias) result.add_(tensor(memory.summand, {kOut}));
      y.copy_(result.mul_(does_.factor));
      static char byte[1];
      for (int i = 0; i < does_.pieces; ++i) library_.device_.Clear(Flat(byte, 1));
      return true;
    }

   private:
    FakeLibrary& library_;
    const Behaviour does_;
    const MatrixProduct product_;
  };
  std::shared_ptr<const FastProduct> Make(const Behaviour& behaviour, const MatrixProduct& product) {
    return std::make_shared<const Fake>(this, behaviour, product);
  }

  KeepingDevice& device_;
};

// Its name, and why it failed, a line.
std::vector<std::string> Failures(const std::vector<ProductTiming>& timings) {
  std::vector<std::string> lines;
  for (const ProductTiming& timing : timings) lines.push_back(timing.algorithm + ": " + timing.failed);
  return lines;
}

std::vector<double> Pieces(const std::vector<ProductTiming>& timings) {
  std::vector<double> pieces;
  for (const ProductTiming& timing : timings)
    pieces.push_back(std::round(timing.seconds / SimulatedDevice::kPieceSeconds));
  return pieces;
}

class ProductPickerTest : public testing::Test {
 protected:
  // Tokens times weights: alone, added to what the result holds, or to a bias.
  ProductCall Call(MatrixProduct::Summand summand = MatrixProduct::Summand::kNone) {
    const TensorView acc = summand == MatrixProduct::Summand::kNone     ? TensorView()
                           : summand == MatrixProduct::Summand::kResult ? y_
                                                                        : bias_;
    auto kernel = CudaEinsum::Prepare("sk,nk->sn", x_, w_, y_);
    EXPECT_TRUE(kernel.ok()) << kernel.status();
    const bool adds = acc.data != nullptr;
    ProductCall call{kernel->product(adds ? &acc : nullptr), x_, w_, acc, y_, {}};
    EXPECT_EQ(call.product.summand, summand);
    call.run = [this, kernel = *kernel, adds, acc](std::shared_ptr<const FastProduct> fast) mutable {
      kernel.ComputeBy(std::move(fast));
      const auto fakes_calls = library_.num_calls;
      adds ? kernel.RunAccumulate(acc, x_, w_, y_) : kernel.Run(x_, w_, y_);
      if (library_.num_calls != fakes_calls) return;
      ++num_calls_of_libtorch_;
      static char byte[1];
      for (int i = 0; i < kLibtorchPieces; ++i) device_.Clear(Flat(byte, 1));
    };
    return call;
  }
  // Of one shape.
  std::vector<ProductTiming> Timings() const {
    const std::vector<ProductChoice> measured = picker_.Measured();
    EXPECT_EQ(measured.size(), 1u);
    return measured.empty() ? std::vector<ProductTiming>() : measured[0].timings;
  }
  // Those that compute a call.
  std::string Runs(const ProductCall& call, const std::shared_ptr<const FastProduct>& fast) {
    const auto before = library_.num_calls;
    const int before_of_libtorch = num_calls_of_libtorch_;
    call.run(fast);
    EXPECT_TRUE(device_.Synchronize().ok());
    std::string names = num_calls_of_libtorch_ == before_of_libtorch ? "" : kLibtorchProduct;
    for (const auto& [name, count] : library_.num_calls) {
      const auto earlier = before.find(name);
      if (earlier == before.end() || count != earlier->second) names += name;
    }
    return names;
  }
  void Take(const std::string& algorithm) {
    std::vector<ProductChoice> choices = picker_.Measured();
    for (ProductChoice& choice : choices) choice.algorithm = algorithm;
    picker_.Take(choices);
  }

  alignas(64) float x_data_[kTokens * kIn] = {}, w_data_[kOut * kIn] = {}, y_data_[kTokens * kOut] = {},
                                      bias_data_[kOut] = {};
  const TensorView x_{x_data_, DType::kF32, {kTokens, kIn}}, w_{w_data_, DType::kF32, {kOut, kIn}},
      y_{y_data_, DType::kF32, {kTokens, kOut}}, bias_{bias_data_, DType::kF32, {kOut}};
  const NaiveKernels kernels_;
  KeepingDevice device_{&kernels_};
  FakeLibrary library_{&device_};
  int num_calls_of_libtorch_ = 0;
  ProductPicker picker_{&device_, &library_, {}};
};

TEST_F(ProductPickerTest, MeasuresAShapeOnceAndLeavesZeros) {
  for (const auto summand :
       {MatrixProduct::Summand::kNone, MatrixProduct::Summand::kResult, MatrixProduct::Summand::kBias}) {
    const ProductCall call = Call(summand);
    const auto first = picker_.Pick(call);
    ASSERT_NE(first, nullptr);
    const int num_asked = library_.num_asked;
    EXPECT_EQ(picker_.Pick(call), first);
    EXPECT_EQ(library_.num_asked, num_asked);
  }
  const std::vector<ProductChoice> measured = picker_.Measured();
  std::vector<std::string> shapes;
  for (const ProductChoice& choice : measured) {
    shapes.push_back(choice.shape);
    EXPECT_EQ(choice.algorithm, "");
    EXPECT_THAT(Failures(choice.timings), ElementsAre("libtorch: ", "lt:1: ", "lt:2: "));
    EXPECT_THAT(Pieces(choice.timings), ElementsAre(kLibtorchPieces, 3, 2));
  }
  EXPECT_THAT(shapes,
              ElementsAre("f32 [96,32] x [64,32]^T", "f32 [96,32] x [64,32]^T + bias", "f32 [96,32] x [64,32]^T + y"));
  for (const TensorView& operand : {x_, w_, y_, bias_}) {
    for (int64_t i = 0; i < operand.size(); ++i) ASSERT_EQ(operand.as<float>()[i], 0);
  }
}

TEST_F(ProductPickerTest, ComputesByWhatIsTaken) {
  const ProductCall call = Call();
  const auto fast = picker_.Pick(call);
  EXPECT_EQ(Runs(call, fast), kLibtorchProduct);
  Take("lt:2");
  EXPECT_EQ(Runs(call, fast), "lt:2");
}

TEST_F(ProductPickerTest, LibtorchComputesWhereItWasChosen) {
  const ProductCall call = Call();
  const auto fast = picker_.Pick(call);
  Take(kLibtorchProduct);
  EXPECT_EQ(Runs(call, fast), kLibtorchProduct);
}

// The next kernel is not to be blamed for an algorithm that was refused: as it throws when its result is looked at, and
// when it is recorded, and as the library throws.
TEST_F(ProductPickerTest, LeavesNoErrorBehind) {
  for (const int throws_at_call : {1, 3}) {
    library_.num_calls.clear();
    library_.algorithms_of_all = {{"lt:1", 1, 1, false, throws_at_call}};
    ProductPicker picker(&device_, &library_, {});
    picker.Pick(Call());
    EXPECT_THAT(Failures(picker.Measured()[0].timings),
                ElementsAre("libtorch: ", "lt:1: CUBLAS_STATUS_EXECUTION_FAILED"));
    EXPECT_FALSE(device_.keeps_error);
  }
  library_.fault = "CUBLAS_STATUS_NOT_INITIALIZED";
  picker_.Pick(Call());
  EXPECT_FALSE(device_.keeps_error);
}

TEST_F(ProductPickerTest, SaysWhatFailedAndGoesOn) {
  // The call whose result is looked at and the one before the recording work; the next one is recorded.
  library_.algorithms_of_all = {{"lt:1", 1, 2}, {"lt:2", 1, 1, false, 3}, {"lt:3", 1}};
  const ProductCall call = Call();
  picker_.Pick(call);
  EXPECT_THAT(Failures(Timings()), ElementsAre("libtorch: ", "lt:1: its result is more than 0.02 from LibTorch's",
                                               "lt:2: CUBLAS_STATUS_EXECUTION_FAILED", "lt:3: "));
  EXPECT_EQ(Timings()[1].seconds, 0);
  EXPECT_NEAR(Timings()[1].distance, 1, 1e-5);
  Take("lt:1");
  EXPECT_EQ(Runs(call, picker_.Pick(call)), kLibtorchProduct);
}

TEST_F(ProductPickerTest, SeesASummandThatIsForgotten) {
  library_.algorithms_of_all = {{"lt:1", 1, 1, true}};
  picker_.Pick(Call(MatrixProduct::Summand::kResult));
  EXPECT_THAT(Failures(Timings())[1], HasSubstr("from LibTorch's"));
}

TEST_F(ProductPickerTest, MeasuresAsManyAsItSays) {
  library_.algorithms_of_all.assign(20, {"lt", 1});
  picker_.Pick(Call());
  EXPECT_EQ(Timings().size(), 1u + ProductPicker::kMostAlgorithms);
}

TEST_F(ProductPickerTest, MeasuresNothingThatTheLibraryDoesNotTake) {
  library_.algorithms_of_all.clear();
  picker_.Pick(Call());
  EXPECT_THAT(Failures(Timings()), ElementsAre("libtorch: "));
  EXPECT_EQ(num_calls_of_libtorch_, 0);
}

TEST_F(ProductPickerTest, DoesNotThrow) {
  library_.fault = "cuBLASLt, its algorithms: CUBLAS_STATUS_NOT_INITIALIZED";
  const ProductCall call = Call();
  const auto fast = picker_.Pick(call);
  EXPECT_THAT(Failures(Timings()), ElementsAre("libtorch: ", "its library: " + library_.fault));
  EXPECT_EQ(Runs(call, fast), kLibtorchProduct);
}

TEST_F(ProductPickerTest, LeavesToLibtorchWhatIsNotAligned) {
  ProductCall call = Call();
  call.left.data = x_data_ + 1;
  EXPECT_EQ(picker_.Pick(call), nullptr);
  call = Call();
  call.product.k = 0;
  EXPECT_EQ(picker_.Pick(call), nullptr);
  EXPECT_THAT(picker_.Measured(), IsEmpty());
}

// So that a restart of the job neither waits nor changes a bit.
TEST_F(ProductPickerTest, MeasuresNothingThatAnEarlierAttemptChose) {
  const ProductCall call = Call(), adding = Call(MatrixProduct::Summand::kResult);
  ProductPicker picker(&device_, &library_, {{InWords(call.product), "lt:2"}, {InWords(adding.product), "libtorch"}});
  const auto fast = picker.Pick(call), of_adding = picker.Pick(adding);
  EXPECT_EQ(num_calls_of_libtorch_, 0);
  EXPECT_EQ(library_.num_calls["lt:2"], 0);
  std::vector<ProductChoice> choices = picker.Measured();
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_THAT(Failures(choices[0].timings), ElementsAre("libtorch: ", "lt:2: "));
  EXPECT_THAT(Failures(choices[1].timings), ElementsAre("libtorch: "));
  EXPECT_THAT(Pieces(choices[0].timings), ElementsAre(0, 0));
  choices[0].algorithm = "lt:2";
  choices[1].algorithm = kLibtorchProduct;
  picker.Take(choices);
  EXPECT_EQ(Runs(call, fast), "lt:2");
  EXPECT_EQ(Runs(adding, of_adding), kLibtorchProduct);
}

// On another GPU, or with another version of the library.
TEST_F(ProductPickerTest, MeasuresAgainWhereTheEarlierOneIsNotThere) {
  const ProductCall call = Call();
  ProductPicker picker(&device_, &library_, {{InWords(call.product), "lt:9"}});
  picker.Pick(call);
  EXPECT_THAT(Pieces(picker.Measured()[0].timings), ElementsAre(kLibtorchPieces, 3, 2));
}

// Another rank may lack the earlier one.
TEST_F(ProductPickerTest, MeasuresWhatAnEarlierAttemptChoseWhenAskedTo) {
  const ProductCall call = Call(), adding = Call(MatrixProduct::Summand::kResult);
  ProductPicker picker(&device_, &library_, {{InWords(call.product), "lt:1"}, {InWords(adding.product), "lt:1"}});
  const auto fast = picker.Pick(call), of_adding = picker.Pick(adding);
  for (int i = 0; i < 2; ++i) {
    picker.MeasureAnew({InWords(call.product), "of another rank"});
    EXPECT_EQ(library_.num_asked, 1);
  }
  std::vector<ProductChoice> choices = picker.Measured();
  EXPECT_THAT(Pieces(choices[0].timings), ElementsAre(kLibtorchPieces, 3, 2));
  EXPECT_THAT(Pieces(choices[1].timings), ElementsAre(0, 0));
  choices[0].algorithm = "lt:2";
  choices[1].algorithm = "lt:1";
  picker.Take(choices);
  EXPECT_EQ(Runs(call, fast), "lt:2");
  EXPECT_EQ(Runs(adding, of_adding), "lt:1");
}

}  // namespace
}  // namespace tacc::worker
