#include "worker/rank/cuda/cuda_kernels.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "graph/ir/status_macros.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/einsum.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/many_tensors.h"
#include "worker/rank/cuda/tuning/product_picker.h"
#include "worker/rank/program/bind_kernels.h"
#include "worker/rank/program/bind_optimizer.h"
#include "worker/rank/program/kernel_operands.h"

namespace tacc::worker {
namespace {

namespace cuda = kernels::cuda;

bool Overlap(const TensorView& a, const TensorView& b) {
  if (a.bytes() == 0 || b.bytes() == 0) return false;
  return a.as<char>() < b.as<char>() + b.bytes() && b.as<char>() < a.as<char>() + a.bytes();
}

// Whether the first writes what the second reads or writes.
bool WritesInto(const KernelRequest& first, const KernelRequest& second) {
  for (const TensorView& written : first.out) {
    for (const std::vector<TensorView>* touched : {&second.in, &second.out}) {
      if (std::any_of(touched->begin(), touched->end(), [&](const auto& view) { return Overlap(written, view); }))
        return true;
    }
  }
  return false;
}

// How many of the first requests may be done in any order. (A planned program may give one node's result the memory of
// an earlier one's operand.)
size_t NumIndependent(absl::Span<const KernelRequest> requests) {
  for (size_t i = 1; i < requests.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (WritesInto(requests[j], requests[i]) || WritesInto(requests[i], requests[j])) return i;
    }
  }
  return requests.size();
}

// A launch over many tensors.
struct Launch {
  cuda::TensorTable table;
  std::function<void(const cuda::TensorTable&)> run;
};

Launch LaunchUpdates(absl::Span<const KernelRequest> requests) {
  std::vector<kernels::WeightUpdate> updates;
  for (const KernelRequest& request : requests) updates.push_back(WeightUpdateOf({cuda::kKernels, request}));
  return {cuda::UpdateTable(updates), cuda::UpdateMany};
}

Launch LaunchCasts(absl::Span<const KernelRequest> requests) {
  std::vector<cuda::CastPair> casts;
  for (const KernelRequest& request : requests) casts.push_back({request.in[0], request.out[0]});
  return {cuda::CastTable(casts), cuda::CastMany};
}

Launch LaunchConstants(absl::Span<const KernelRequest> requests) {
  std::vector<cuda::FillOf> fills;
  for (const KernelRequest& request : requests)
    fills.push_back({Binding{cuda::kKernels, request}.attr<double>("value"), request.out[0]});
  return {cuda::FillTable(fills), cuda::FillMany};
}

Launch LaunchSumSquares(absl::Span<const KernelRequest> requests) {
  const Binding b{cuda::kKernels, requests.front()};
  return {cuda::SumSquaresTable(BoundedOperands(b)),
          [y = b.out(0)](const cuda::TensorTable& table) { cuda::SumSquaresMany(table, y); }};
}

// The ops that a GPU does over many tensors in one launch: those of several nodes, or of one.
struct ManyTensors {
  Launch (*launch)(absl::Span<const KernelRequest> requests);
  size_t max_nodes = std::numeric_limits<size_t>::max();
};

const std::map<std::string, ManyTensors>& ManyTensorOps() {
  static const std::map<std::string, ManyTensors> ops = {
      {"adam", {LaunchUpdates}}, {"adamw", {LaunchUpdates}},
      {"cast", {LaunchCasts}},   {"constant", {LaunchConstants}},
      {"lion", {LaunchUpdates}}, {"moving_average", {LaunchUpdates}},
      {"sgd", {LaunchUpdates}},  {"sum_squares", {LaunchSumSquares, 1}},
  };
  return ops;
}

}  // namespace

absl::StatusOr<Kernel> CudaKernelTable::Prepare(const KernelRequest& request) const {
  const graph::Op& op = request.node->op;
  if (absl::StartsWith(op.name(), "attention")) return PrepareAttention(request);
  if (pick_product_ != nullptr && (op == "einsum" || op == "einsum_accumulate" || op == "einsum_joined"))
    return PrepareProduct(request);
  return BindKernel(cuda::kKernels, request);
}

absl::StatusOr<Kernel> CudaKernelTable::PrepareProduct(const KernelRequest& request) const {
  const Binding b{cuda::kKernels, request};
  ProductOf product = ProductOfNode(b);
  // A part may begin anywhere; algorithms are told of operands that lie as all memory does.
  const bool is_aligned = reinterpret_cast<uintptr_t>(product.a.data) % cuda::kProductAlignment == 0;
  if (!product.copied.empty() || !is_aligned) return BindKernel(cuda::kKernels, request);
  TACC_ASSIGN_OR_RETURN(cuda::CudaEinsum kernel, cuda::CudaEinsum::Prepare(b.attr<std::string>("spec"), product.a,
                                                                           product.b, product.y, product.part));
  const auto run_by = [kernel, product](std::shared_ptr<const cuda::FastProduct> fast) mutable {
    kernel.ComputeBy(std::move(fast));
    product.Run(cuda::kKernels, kernel);
  };
  const bool adds = product.acc.data != nullptr;
  const TensorView& a_whole = b.in(adds ? 1 : 0);
  kernel.ComputeBy(pick_product_(
      {kernel.product(adds ? &product.acc : nullptr), a_whole, product.b, product.acc, product.y, run_by}));
  return Kernel([kernel = std::move(kernel), product = std::move(product)] { product.Run(cuda::kKernels, kernel); });
}

absl::StatusOr<Kernel> CudaKernelTable::PrepareAttention(const KernelRequest& request) const {
  AttentionOf node = AttentionOfNode({cuda::kKernels, request});
  if (const std::string limit = cuda::AttentionLimit(node.q, node.v, node.parameters); !limit.empty())
    return absl::InvalidArgumentError(limit);
  if (node.dbias.data != nullptr) return BindKernel(cuda::kKernels, request);
  std::shared_ptr<const cuda::FastAttention> fast;
  // The others want heads of values as large as those of queries.
  if (pick_attention_ != nullptr && node.v.dims[3] == node.q.dims[3])
    fast = pick_attention_(node.q, node.k, node.extras, node.parameters);
  if (fast == nullptr) return BindKernel(cuda::kKernels, request);
  return Kernel([fast, n = std::move(node)] {
    if (n.is_gradient()) {
      fast->RunGrad(n.dout, n.q, n.k, n.v, n.out, n.lse, n.extras.first_keys, n.parameters, n.dq, n.dk, n.dv);
    } else {
      fast->Run(n.q, n.k, n.v, n.extras, n.parameters, n.out, n.lse);
    }
  });
}

absl::StatusOr<KernelTable::Joint> CudaKernelTable::PrepareLrSchedule(const KernelRequest& request,
                                                                      const KeepOnDevice& keep) {
  const Binding b{cuda::kKernels, request};
  kernels::LrSchedule schedule = LrScheduleOf(b);
  const auto factors = b.attr<std::vector<double>>("factors");
  if (!factors.empty()) {
    const char* bytes = reinterpret_cast<const char*>(factors.data());
    TACC_ASSIGN_OR_RETURN(const void* kept, keep({bytes, bytes + factors.size() * sizeof(double)}));
    schedule.factors = static_cast<const double*>(kept);
    schedule.num_factors = static_cast<int64_t>(factors.size());
  }
  return Joint{[schedule, step = b.in(0), y = b.out(0)] { cuda::kLrSchedule.LearningRate(schedule, step, y); }, 1};
}

absl::StatusOr<KernelTable::Joint> CudaKernelTable::PrepareFirst(absl::Span<const KernelRequest> requests,
                                                                 const KeepOnDevice& keep) const {
  if (requests.front().node->op == "lr_schedule") return PrepareLrSchedule(requests.front(), keep);
  const auto op = ManyTensorOps().find(std::string(requests.front().node->op.name()));
  if (op == ManyTensorOps().end()) return KernelTable::PrepareFirst(requests, keep);
  const size_t num_nodes = NumIndependent(requests.subspan(0, op->second.max_nodes));
  auto [table, run] = op->second.launch(requests.first(num_nodes));
  if (table.num_tensors <= 1) return KernelTable::PrepareFirst(requests, keep);
  TACC_ASSIGN_OR_RETURN(table.device, keep(std::exchange(table.image, {})));
  return Joint{[table = std::move(table), run = std::move(run)] { run(table); }, num_nodes};
}

}  // namespace tacc::worker
