#include "worker/rank/testing/naive_kernels.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace tacc::worker {
namespace {

using kernels::TensorView;

// y = einsum(a, b): runs over every index of every letter.
void Einsum(const std::string& spec, const TensorView& a, const TensorView& b, const TensorView& y) {
  const size_t comma = spec.find(','), arrow = spec.find("->");
  const std::string names[3] = {spec.substr(0, comma), spec.substr(comma + 1, arrow - comma - 1),
                                spec.substr(arrow + 2)};
  const TensorView* views[3] = {&a, &b, &y};
  std::map<char, int64_t> extents;
  for (int i = 0; i < 3; ++i) {
    for (size_t d = 0; d < names[i].size(); ++d) extents[names[i][d]] = views[i]->dims[static_cast<int>(d)];
  }
  for (int64_t i = 0; i < y.size(); ++i) y.as<float>()[i] = 0;
  std::map<char, int64_t> index;
  const auto at = [&](int i) {
    int64_t flat = 0;
    for (size_t d = 0; d < names[i].size(); ++d) flat = flat * views[i]->dims[static_cast<int>(d)] + index[names[i][d]];
    return flat;
  };
  int64_t total = 1;
  for (const auto& [letter, extent] : extents) total *= extent;
  for (int64_t k = 0; k < total; ++k) {
    int64_t rest = k;
    for (const auto& [letter, extent] : extents) {
      index[letter] = rest % extent;
      rest /= extent;
    }
    y.as<float>()[at(2)] += a.as<float>()[at(0)] * b.as<float>()[at(1)];
  }
}

template <typename F>
Kernel Binary(const KernelRequest& request, F f) {
  return [a = request.in[0], b = request.in[1], y = request.out[0], f] {
    for (int64_t i = 0; i < y.size(); ++i) y.as<float>()[i] = f(a.as<float>()[i], b.as<float>()[b.size() == 1 ? 0 : i]);
  };
}

}  // namespace

absl::StatusOr<Kernel> NaiveKernels::Prepare(const KernelRequest& request) const {
  const graph::Node& node = *request.node;
  const TensorView& y = request.out[0];
  if (node.op == "einsum") {
    return Kernel([spec = graph::GetAttr<std::string>(node.attrs, "spec"), a = request.in[0], b = request.in[1], y] {
      Einsum(spec, a, b, y);
    });
  }
  if (node.op == "add") return Binary(request, [](float a, float b) { return a + b; });
  if (node.op == "sub") return Binary(request, [](float a, float b) { return a - b; });
  if (node.op == "mul") return Binary(request, [](float a, float b) { return a * b; });
  if (node.op == "scale") {
    return Kernel([factor = static_cast<float>(graph::GetAttr<double>(node.attrs, "factor")), x = request.in[0], y] {
      for (int64_t i = 0; i < y.size(); ++i) y.as<float>()[i] = factor * x.as<float>()[i];
    });
  }
  if (node.op == graph::Op::kConstant) {
    return Kernel([value = static_cast<float>(graph::GetAttr<double>(node.attrs, "value")), y] {
      for (int64_t i = 0; i < y.size(); ++i) y.as<float>()[i] = value;
    });
  }
  if (node.op == "reduce_sum") {
    return Kernel([x = request.in[0], y] {
      double sum = 0;
      for (int64_t i = 0; i < x.size(); ++i) sum += x.as<float>()[i];
      *y.as<float>() = static_cast<float>(sum);
    });
  }
  return absl::UnimplementedError(absl::StrCat("no kernel for ", node.op.name()));
}

}  // namespace tacc::worker
