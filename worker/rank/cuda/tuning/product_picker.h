// Which algorithm multiplies matrices of a shape.
#ifndef TACC_WORKER_RANK_CUDA_TUNING_PRODUCT_PICKER_H_
#define TACC_WORKER_RANK_CUDA_TUNING_PRODUCT_PICKER_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/product.h"
#include "kernels/tensor.h"
#include "worker/rank/device/device.h"
#include "worker/rank/device/measured_products.h"

namespace tacc::worker {

// A node's product, where its operands lie; `summand` has no data, or is one, perhaps the result.
struct ProductCall {
  kernels::cuda::MatrixProduct product;
  kernels::TensorView left, right, summand, result;
  // Queues the node's work, its product by this algorithm; null: by LibTorch.
  std::function<void(std::shared_ptr<const kernels::cuda::FastProduct> fast)> run;
};

// Measures once for all products of a shape how fast a library's algorithms are, and computes them by what is chosen
// later: LibTorch where nothing is.
class ProductPicker {
 public:
  static constexpr int kMostAlgorithms = 8;

  // Shapes that `earlier` has are not measured where the algorithm that it names is there (kLibtorchProduct always is).
  // The pointers must outlive the object.
  ProductPicker(Device* device, kernels::cuda::ProductLibrary* library, EarlierProducts earlier)
      : device_(*device), library_(*library), earlier_(std::move(earlier)) {}

  // To be called when Take has been; null: LibTorch alone can. Before the operands have values: the call is run on them
  // with random numbers, in the device's queue and the plan's workspace, and they are zeros then. Algorithms fail that
  // throw, or whose result (parts of it are looked at) is not LibTorch's. Waits for the device: not in a step. Does not
  // throw: where something fails, Measured says it.
  std::shared_ptr<const kernels::cuda::FastProduct> Pick(const ProductCall& call);
  // Measures those of these shapes that were not, for their earlier choice was there. Before Take, as Pick otherwise.
  void MeasureAnew(const std::vector<std::string>& shapes);
  // What has been found, by shape.
  std::vector<ProductChoice> Measured() const;
  // Who computes each shape, of the algorithms that did not fail; others than Measured's are passed over. Once.
  void Take(const std::vector<ProductChoice>& choices);

 private:
  class Chosen;
  struct Shape {
    std::vector<ProductTiming> timings;
    std::map<std::string, std::shared_ptr<const kernels::cuda::FastProduct>> algorithms;  // Those that work.
    std::shared_ptr<Chosen> chosen;
    std::optional<ProductCall> unmeasured;  // Its first call, where an earlier choice is there.
  };
  enum class Earlier { kTaken, kForgotten };
  // Finds out which algorithms work, whatever is known of the shape.
  void Examine(const ProductCall& call, Earlier earlier, Shape& shape);
  // Whether an earlier choice has been found, and needs no measuring.
  bool TakeEarlier(const kernels::cuda::MatrixProduct& product, Shape& shape);
  void Measure(const ProductCall& call, Shape& shape);

  Device& device_;
  kernels::cuda::ProductLibrary& library_;
  const EarlierProducts earlier_;
  std::map<std::string, Shape> shapes_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_TUNING_PRODUCT_PICKER_H_
