#ifndef TACC_WORKER_RANK_CUDA_CUDA_KERNELS_H_
#define TACC_WORKER_RANK_CUDA_CUDA_KERNELS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/product.h"
#include "worker/rank/device/kernel_table.h"

namespace tacc::worker {

struct ProductCall;

// A GPU's kernels, by BindKernel, but for products and attention that somebody else computes faster.
class CudaKernelTable : public KernelTable {
 public:
  // Who is faster than kernels/cuda at attention of these operands; null: nobody.
  using PickAttention = std::function<std::shared_ptr<const kernels::cuda::FastAttention>(
      const kernels::TensorView& q, const kernels::TensorView& k, const kernels::AttentionExtras& extras,
      const kernels::AttentionParameters& parameters)>;

  // Who computes an einsum's product (worker/rank/cuda/tuning/product_picker.h); null: LibTorch.
  using PickProduct = std::function<std::shared_ptr<const kernels::cuda::FastProduct>(const ProductCall& call)>;

  // Both may be empty.
  explicit CudaKernelTable(PickAttention pick_attention = nullptr, PickProduct pick_product = nullptr)
      : pick_attention_(std::move(pick_attention)), pick_product_(std::move(pick_product)) {}

  // Errors: as BindKernel; InvalidArgument too for attention that is too wide for a GPU.
  absl::StatusOr<Kernel> Prepare(const KernelRequest& request) const override;
  // Independent updates of parameters by one optimizer, casts and constants in one launch each, the squares of many
  // tensors in two.
  absl::StatusOr<Joint> PrepareFirst(absl::Span<const KernelRequest> requests, const KeepOnDevice& keep) const override;

 private:
  absl::StatusOr<Kernel> PrepareAttention(const KernelRequest& request) const;
  absl::StatusOr<Kernel> PrepareProduct(const KernelRequest& request) const;
  // A table of factors goes to the device.
  static absl::StatusOr<Joint> PrepareLrSchedule(const KernelRequest& request, const KeepOnDevice& keep);

  const PickAttention pick_attention_;
  const PickProduct pick_product_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_CUDA_KERNELS_H_
