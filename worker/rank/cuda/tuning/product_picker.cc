#include "worker/rank/cuda/tuning/product_picker.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/aten.h"
#include "worker/rank/cuda/tuning/recorded_calls.h"
#include "worker/rank/device/region.h"

namespace tacc::worker {
namespace {

using kernels::TensorView;
using kernels::cuda::FastProduct;
using kernels::cuda::MatrixProduct;

using Fast = std::shared_ptr<const FastProduct>;

// Products that follow each other are about this many FLOPs, 2 to 20 of them: about a millisecond of a GPU.
constexpr double kMeasuredFlops = 5e11;
// Distance over length of what is looked at. Sums in another order differ by a rounding of bf16; a wrong matrix is
// another altogether.
constexpr double kTolerance = 0.02;

double FlopsOf(const MatrixProduct& p) {
  return 2.0 * static_cast<double>(p.batch) * static_cast<double>(p.m) * static_cast<double>(p.n) *
         static_cast<double>(p.k);
}

bool IsAligned(const TensorView& x) {
  return reinterpret_cast<uintptr_t>(x.data) % kernels::cuda::kProductAlignment == 0;
}

at::Tensor Tensor(const TensorView& x) {
  return kernels::cuda::TensorIn(x.data, {x.dims.begin(), static_cast<size_t>(x.dims.rank())}, x.dtype);
}

// The operands' memory, which is zeros again when the object ends.
class Operands {
 public:
  Operands(Device* device, const ProductCall* call) : device_(*device), call_(*call) {
    DoOn(device_, [&] {
      Tensor(call_.left).normal_();
      Tensor(call_.right).normal_();
      if (call_.summand.data != nullptr) Tensor(call_.summand).normal_(0, Length());
    });
  }
  ~Operands() {
    for (const TensorView* x : {&call_.left, &call_.right, &call_.summand, &call_.result})
      device_.Clear(Flat(x->data, x->data == nullptr ? 0 : x->bytes()));
    (void)device_.Synchronize();  // What fails here fails the next call too.
  }
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;

  // Of the result by this algorithm: its first numbers, some in the middle and its last.
  at::Tensor Parts(const Fast& fast) {
    DoOn(device_, [&] {
      // What is not written shows; what the product is added to is as long as the product.
      const bool is_summand = call_.result.data == call_.summand.data;
      Tensor(call_.result).fill_(is_summand ? Length() : std::numeric_limits<double>::quiet_NaN());
      call_.run(fast);
    });
    constexpr int64_t kPart = 4096;
    const TensorView& y = call_.result;
    const int64_t size = std::min(kPart, y.size());
    at::Tensor parts = at::zeros({3, size}, kernels::cpu::AtenOptions(y.dtype));
    for (int64_t i = 0; i < 3; ++i) {
      char* begin = y.as<char>() + (y.size() - size) * i / 2 * SizeOf(y.dtype);
      device_.Download(Flat(begin, size * SizeOf(y.dtype)), parts[i].data_ptr());
    }
    DoOn(device_, [] {});
    return parts.to(at::kDouble);
  }

 private:
  // Of a number of the product.
  double Length() const { return std::sqrt(static_cast<double>(call_.product.k)); }

  Device& device_;
  const ProductCall& call_;
};

}  // namespace

// LibTorch's until another is taken.
class ProductPicker::Chosen : public FastProduct {
 public:
  void Take(Fast fast) { fast_ = std::move(fast); }
  bool Run(const kernels::cuda::ProductMemory& memory) const override { return fast_ != nullptr && fast_->Run(memory); }

 private:
  Fast fast_;
};

Fast ProductPicker::Pick(const ProductCall& call) {
  const MatrixProduct& p = call.product;
  const bool is_empty = p.batch * p.m * p.n * p.k == 0;
  if (is_empty || !IsAligned(call.left) || !IsAligned(call.right) || !IsAligned(call.summand) ||
      !IsAligned(call.result))
    return nullptr;
  const auto [it, is_new] = shapes_.try_emplace(InWords(p));
  Shape& shape = it->second;
  if (is_new) {
    shape.chosen = std::make_shared<Chosen>();
    Examine(call, Earlier::kTaken, shape);
  }
  return shape.chosen;
}

void ProductPicker::MeasureAnew(const std::vector<std::string>& shapes) {
  for (const std::string& name : shapes) {
    const auto found = shapes_.find(name);
    if (found == shapes_.end() || !found->second.unmeasured.has_value()) continue;
    const ProductCall call = *std::exchange(found->second.unmeasured, std::nullopt);
    Examine(call, Earlier::kForgotten, found->second);
  }
}

void ProductPicker::Examine(const ProductCall& call, Earlier earlier, Shape& shape) {
  shape.algorithms.clear();
  shape.timings = {{kLibtorchProduct}};
  try {
    if (earlier == Earlier::kTaken && TakeEarlier(call.product, shape)) {
      shape.unmeasured = call;
    } else {
      Measure(call, shape);
    }
  } catch (const std::exception& error) {
    shape.algorithms.clear();
    shape.timings = {{kLibtorchProduct}, {"its library", 0, WhyThrown(device_, error)}};
  }
}

bool ProductPicker::TakeEarlier(const MatrixProduct& product, Shape& shape) {
  const auto before = earlier_.find(InWords(product));
  if (before == earlier_.end()) return false;
  if (before->second == kLibtorchProduct) return true;
  Fast fast = library_.Find(product, before->second);
  if (fast == nullptr) return false;
  shape.timings.push_back({before->second});
  shape.algorithms[before->second] = std::move(fast);
  return true;
}

void ProductPicker::Measure(const ProductCall& call, Shape& shape) {
  const auto proposed = library_.Propose(call.product, kMostAlgorithms);
  if (proposed.empty()) return;
  const int num_calls = static_cast<int>(std::clamp(kMeasuredFlops / FlopsOf(call.product), 2.0, 20.0));
  Operands operands(&device_, &call);
  const at::Tensor wanted = operands.Parts(nullptr);
  const auto seconds = [&](const Fast& fast) { return RecordedSeconds(device_, num_calls, [&] { call.run(fast); }); };
  shape.timings[0].seconds = seconds(nullptr);
  for (const auto& [name, fast] : proposed) {
    ProductTiming& timing = shape.timings.emplace_back(ProductTiming{name});
    try {
      const double distance = operands.Parts(fast).sub(wanted).norm().item<double>() / wanted.norm().item<double>();
      if (distance <= kTolerance) {
        timing.seconds = seconds(fast);
        shape.algorithms[name] = fast;
      } else {
        timing.failed = absl::StrCat("its result is more than ", kTolerance, " from LibTorch's");
        timing.distance = std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
      }
    } catch (const std::exception& error) {
      timing.failed = WhyThrown(device_, error);
    }
  }
  // Once more: the GPU may not have been awake before.
  shape.timings[0].seconds = std::min(shape.timings[0].seconds, seconds(nullptr));
}

std::vector<ProductChoice> ProductPicker::Measured() const {
  std::vector<ProductChoice> measured;
  for (const auto& [name, shape] : shapes_) measured.push_back({name, "", shape.timings});
  return measured;
}

void ProductPicker::Take(const std::vector<ProductChoice>& choices) {
  for (const ProductChoice& choice : choices) {
    const auto found = shapes_.find(choice.shape);
    if (found == shapes_.end()) continue;
    auto& algorithms = found->second.algorithms;
    if (const auto algorithm = algorithms.find(choice.algorithm); algorithm != algorithms.end())
      found->second.chosen->Take(algorithm->second);
    algorithms.clear();
    found->second.unmeasured.reset();
  }
}

}  // namespace tacc::worker
