#include "worker/rank/program/bind_aten.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "graph/ops/torch/aten_call.h"
#include "kernels/contract/kernels.h"

namespace tacc::worker {
namespace {

using Ints = std::vector<int64_t>;

// What whoever runs the worker, or the job, can do about it.
absl::Status NoOperator(const Binding& b) {
  const std::string schema = b.attr<std::string>("schema"), library = b.attr<std::string>("library"),
                    source = b.attr<std::string>("source");
  if (graph::IsOfLibTorch(schema)) {
    return absl::NotFoundError(absl::StrCat("LibTorch has no operator ", schema,
                                            "; the rank can call its operators and those of --op-library"));
  }
  return absl::NotFoundError(
      absl::StrCat(source.empty() ? "" : absl::StrCat(source, ": "),
                   "neither LibTorch nor a library that this worker gives its ranks ", "has the operator ", schema,
                   library.empty() ? "" : absl::StrCat(", which was of ", library, " at the export"),
                   "; start each worker with --op-library FILE, the path of that library on its machine"));
}

absl::StatusOr<std::shared_ptr<const kernels::AtenKernel>> Prepare(const Binding& b) {
  absl::StatusOr<std::shared_ptr<const kernels::AtenKernel>> kernel = b.kernels.aten.PrepareAten(
      {b.attr<std::string>("schema"), b.attr<std::vector<std::string>>("args"), b.attr<Ints>("ints")});
  if (absl::IsNotFound(kernel.status())) return NoOperator(b);
  return kernel;
}

absl::StatusOr<Kernel> Aten(const Binding& b) {
  absl::StatusOr<std::shared_ptr<const kernels::AtenKernel>> kernel = Prepare(b);
  if (!kernel.ok()) return kernel.status();
  return Kernel([kernel = *std::move(kernel), in = b.request.in, out = b.request.out] { kernel->Run(in, out); });
}

absl::StatusOr<Kernel> AtenVjp(const Binding& b) {
  absl::StatusOr<std::shared_ptr<const kernels::AtenKernel>> kernel = Prepare(b);
  if (!kernel.ok()) return kernel.status();
  const auto cotangents = b.request.in.begin() + b.attr<int64_t>("operands");
  return Kernel([kernel = *std::move(kernel),
                 derivative = kernels::AtenDerivative{b.attr<Ints>("needed"), b.attr<Ints>("given")},
                 in = std::vector<TensorView>(b.request.in.begin(), cotangents),
                 dy = std::vector<TensorView>(cotangents, b.request.in.end()),
                 out = b.request.out] { kernel->RunDerivative(derivative, in, dy, out); });
}

// An operator that writes the node's only result.
absl::StatusOr<Kernel> Call(const Binding& b, std::string schema, std::vector<std::string> args, Ints ints = {}) {
  absl::StatusOr<std::shared_ptr<const kernels::AtenKernel>> kernel =
      b.kernels.aten.PrepareAten({std::move(schema), std::move(args), std::move(ints)});
  if (!kernel.ok()) return kernel.status();
  return Kernel([kernel = *std::move(kernel), in = b.request.in, out = b.request.out] { kernel->Run(in, out); });
}

absl::StatusOr<Kernel> Compare(const Binding& b) {
  return Call(b, "aten::" + b.attr<std::string>("comparison") + ".Tensor_out", {"%0", "%1", "@0"});
}

absl::StatusOr<Kernel> Gather(const Binding& b) {
  return Call(b, "aten::gather.out", {"%0", "#0", "%1", "false", "@0"}, {b.attr<int64_t>("dim")});
}

absl::StatusOr<Kernel> CumulativeSum(const Binding& b) {
  return Call(b, "aten::cumsum.out", {"%0", "#0", "none", "@0"}, {b.attr<int64_t>("dim")});
}

absl::StatusOr<Kernel> Flip(const Binding& b) {
  Ints dims = b.attr<Ints>("dims");
  std::string list;
  for (size_t i = 0; i < dims.size(); ++i) list += (i == 0 ? "#" : ",#") + std::to_string(i);
  return Call(b, "aten::flip.out", {"%0", "[" + list + "]", "@0"}, std::move(dims));
}

absl::StatusOr<Kernel> Log1p(const Binding& b) { return Call(b, "aten::log1p.out", {"%0", "@0"}); }

absl::StatusOr<Kernel> Pow(const Binding& b) {
  return Call(b, "aten::pow.Tensor_Scalar_out", {"%0", absl::StrFormat("%.17g", b.attr<double>("exponent")), "@0"});
}

absl::StatusOr<Kernel> ScatterAdd(const Binding& b) {
  return Kernel([&k = b.kernels.reduce, dim = b.dim(), x = b.in(0), ids = b.in(1), y = b.out(0)] {
    k.ScatterAdd(x, ids, dim, y);
  });
}

}  // namespace

absl::StatusOr<Kernel> Where(const Binding& b) { return Call(b, "aten::where.self_out", {"%0", "%1", "%2", "@0"}); }

const std::map<std::string, PrepareKernel>& AtenKernels() {
  static const std::map<std::string, PrepareKernel> table = {
      {"aten", Aten},     {"aten_vjp", AtenVjp}, {"compare", Compare}, {"cumsum", CumulativeSum},   {"flip", Flip},
      {"gather", Gather}, {"log1p", Log1p},      {"pow", Pow},         {"scatter_add", ScatterAdd},
  };
  return table;
}

}  // namespace tacc::worker
