#include "worker/rank/torch/matmul_rate.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <array>

namespace tacc::worker {
namespace {

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

// A machine's clock and neighbours change, and products of some layouts are slower than others: a training step gets
// less than the best product did.
MatmulRate MeasureMatmul(const at::TensorOptions& options, const std::vector<LayerShape>& layers,
                         const std::function<std::vector<double>(const std::function<void()>& product)>& time) {
  MatmulRate rate;
  double all_flops = 0, all_seconds = 0;
  for (const auto& [rows, inputs, outputs] : layers) {
    const at::Tensor x = at::randn({rows, inputs}, options), w = at::randn({outputs, inputs}, options);
    const at::Tensor y = at::randn({rows, outputs}, options);
    const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(inputs) * static_cast<double>(outputs);
    const std::array<std::array<at::Tensor, 3>, 3> products = {
        {{x, w.t(), at::empty_like(y)}, {y, w, at::empty_like(x)}, {y.t(), x, at::empty_like(w)}}};
    for (const auto& [a, b, c] : products) {
      at::Tensor out = c;
      std::vector<double> taken = time([&, &a = a, &b = b] { at::mm_out(out, a, b); });
      if (taken.empty()) return rate;
      rate.best = std::max(rate.best, flops / *std::min_element(taken.begin(), taken.end()));
      all_flops += flops;
      all_seconds += Median(std::move(taken));
      rate.sustained = all_flops / all_seconds;
    }
  }
  return rate;
}

}  // namespace tacc::worker
