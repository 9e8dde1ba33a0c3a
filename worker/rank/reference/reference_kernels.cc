#include "worker/rank/reference/reference_kernels.h"

#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/reference/buffer.h"
#include "nlohmann/json.hpp"

namespace tacc::worker {
namespace {

using interpreter::Array;
using kernels::TensorView;

graph::Dims DimsOf(const kernels::Dims& dims) { return graph::Dims(dims.begin(), dims.end()); }

std::vector<std::vector<graph::Range>> RangesOrWhole(const std::vector<std::vector<graph::Range>>& ranges,
                                                     const std::vector<TensorView>& views) {
  if (!ranges.empty()) return ranges;
  std::vector<std::vector<graph::Range>> whole;
  for (const TensorView& view : views) {
    std::vector<graph::Range>& of_view = whole.emplace_back();
    for (const int64_t extent : view.dims) of_view.push_back({0, extent});
  }
  return whole;
}

interpreter::Request RequestOf(const KernelRequest& request) {
  interpreter::Request wanted;
  wanted.node = request.node;
  wanted.in_ranges = RangesOrWhole(request.in_ranges, request.in);
  wanted.out_ranges = RangesOrWhole(request.out_ranges, request.out);
  for (size_t i = 0; i < request.in.size(); ++i)
    wanted.in_logical.push_back(DimsOf(request.in_logical.empty() ? request.in[i].dims : request.in_logical[i]));
  for (const TensorView& view : request.out) {
    const graph::Dims dims = DimsOf(view.dims);
    wanted.out_types.push_back({static_cast<graph::DType>(view.dtype), dims});
    // Attributes are logical.
    const graph::Dims shape = graph::GetAttr<graph::Dims>(request.node->attrs, "shape", dims);
    wanted.out_logical.push_back(shape.size() == dims.size() ? shape : dims);
  }
  return wanted;
}

}  // namespace

absl::StatusOr<Kernel> ReferenceKernels::Prepare(const KernelRequest& request) const {
  const std::string op(request.node->op.name());
  if (!evaluators_.Has(op))
    return absl::UnimplementedError(absl::StrCat("the reference device has no kernel for ", op));
  return Kernel([this, op, in = request.in, out = request.out, prepared = RequestOf(request)] {
    std::vector<Array> operands;
    for (const TensorView& view : in) operands.push_back({DimsOf(view.dims), kernels::reference::Read(view).values});
    interpreter::Request wanted = prepared;
    for (const Array& operand : operands) wanted.in.push_back(&operand);
    absl::StatusOr<interpreter::Results> results = evaluators_.Evaluate(wanted);
    if (!results.ok()) throw std::runtime_error(absl::StrCat(op, ": ", results.status().message()));
    for (size_t i = 0; i < out.size(); ++i)
      kernels::reference::Write({out[i].dims, std::move((*results)[i].values)}, out[i]);
  });
}

std::string ProbeReference(const std::string& cpu_probe, const std::function<double()>& seconds) {
  constexpr int64_t kSize = 64;
  graph::Node product;
  product.op = "einsum";
  product.attrs = {{"spec", std::string("ik,jk->ij")}};
  std::vector<float> a(kSize * kSize, 1), b = a, y = a;
  const kernels::Dims dims = {kSize, kSize};
  const auto view = [&](std::vector<float>& values) { return TensorView{values.data(), kernels::DType::kF32, dims}; };
  KernelRequest request;
  request.node = &product;
  request.in = {view(a), view(b)};
  request.out = {view(y)};
  const ReferenceKernels kernels;
  const Kernel kernel = kernels.Prepare(request).value();
  const double start = seconds();
  int64_t num_calls = 0;
  do {
    kernel();
    ++num_calls;
  } while (seconds() - start < 0.1);
  const double rate = 2.0 * kSize * kSize * kSize * static_cast<double>(num_calls) / (seconds() - start);
  nlohmann::json probe = nlohmann::json::parse(cpu_probe);
  probe["name"] = probe["kind"] = "reference";
  probe["matmul_flops_per_second"] = {{"f32", rate}, {"bf16", rate}, {"f16", rate}};
  return probe.dump();
}

}  // namespace tacc::worker
