#include "worker/rank/cuda/cuda_kernels.h"

#include <utility>

#include "kernels/cuda/adamw.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/dropout.h"
#include "kernels/cuda/einsum.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/expert.h"
#include "kernels/cuda/lr_schedule.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/rotary.h"
#include "kernels/cuda/shape.h"
#include "kernels/cuda/views.h"

namespace tacc::worker {
namespace device = kernels::cuda;
}  // namespace tacc::worker

#include "worker/rank/bind_kernels.h"

namespace tacc::worker {

absl::StatusOr<Kernel> CudaKernelTable::Prepare(const KernelRequest& request) const {
  const std::string& op = request.node->op;
  const bool is_gradient = op == "attention_grad";
  if (!is_gradient && op != "attention" && op != "attention_continue") return PrepareKernel(request, "GPU");

  const Binding b{request};
  const size_t q = is_gradient ? 1 : 0;
  const device::AttentionParameters p = AttentionParametersOf(b, q);
  if (const std::string limit = device::AttentionLimit(b.in(q), p); !limit.empty())
    return absl::InvalidArgumentError(limit);
  std::shared_ptr<const device::FastAttention> fast;
  device::AttentionExtras extras{.first_keys = b.in_or_absent(is_gradient ? 6 : 3)};
  if (op == "attention_continue") extras = {b.in_or_absent(5), b.in(3), b.in(4)};
  if (pick_attention_ != nullptr) fast = pick_attention_(b.in(q), b.in(q + 1), extras, p);
  if (fast == nullptr) return PrepareKernel(request, "GPU");
  if (is_gradient) {
    return Kernel([fast, p, extras, dout = b.in(0), q = b.in(1), k = b.in(2), v = b.in(3), out = b.in(4), lse = b.in(5),
                   dq = b.out(0), dk = b.out(1),
                   dv = b.out(2)] { fast->RunGrad(dout, q, k, v, out, lse, extras.first_keys, p, dq, dk, dv); });
  }
  return Kernel([fast, p, extras, q = b.in(0), k = b.in(1), v = b.in(2), out = b.out(0), lse = b.out(1)] {
    fast->Run(q, k, v, extras, p, out, lse);
  });
}

absl::StatusOr<KernelTable::Joint> CudaKernelTable::PrepareFirst(absl::Span<const KernelRequest> requests,
                                                                 const KeepOnDevice& keep) const {
  if (requests.front().node->op != "adamw") return KernelTable::PrepareFirst(requests, keep);
  std::vector<device::AdamWUpdate> updates;
  for (const KernelRequest& request : requests) {
    const Binding b{request};
    updates.push_back({b.in(0), b.in(1), b.in(2), b.in(3), AdamWScalarsOf(b), AdamWParametersOf(b), b.out(0), b.out(1),
                       b.out(2), b.out_or_absent(3)});
  }
  const auto num_nodes = static_cast<size_t>(device::NumIndependent(updates));
  if (num_nodes == 1) return KernelTable::PrepareFirst(requests, keep);
  updates.resize(num_nodes);
  device::AdamWTable table = device::MakeAdamWTable(updates);
  if (table.num_updates > 0) {
    absl::StatusOr<const void*> place = keep(std::exchange(table.image, {}));
    if (!place.ok()) return place.status();
    table.device = *place;
  }
  return Joint{[table = std::move(table)] { device::AdamWMany(table); }, num_nodes};
}

std::vector<std::string> CudaKernelTable::Ops() { return KernelOps(); }

}  // namespace tacc::worker
