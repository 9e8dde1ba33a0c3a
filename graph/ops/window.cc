#include "graph/ops/window.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/facts.h"

namespace tacc::graph {

std::vector<AttrSpec> WindowAttrs() {
  return {{"stride", AttrKind::kInts, AttrSpec::kOptional},
          {"padding", AttrKind::kInts, AttrSpec::kOptional},
          {"dilation", AttrKind::kInts, AttrSpec::kOptional}};
}

absl::Status WantImage(absl::string_view name, const TensorType& type) {
  TACC_RETURN_IF_ERROR(WantFloating(name, type));
  return type.rank() >= 3 && type.rank() <= 5 ? absl::OkStatus()
                                              : Wanted(name, type, "samples, channels and 1 to 3 spatial dims");
}

Dims SpatialDims(const TensorType& image) { return Dims(image.dims.begin() + 2, image.dims.end()); }

Dims ImageDims(int64_t n, int64_t channels, const Dims& spatial) {
  Dims dims = {n, channels};
  dims.insert(dims.end(), spatial.begin(), spatial.end());
  return dims;
}

absl::StatusOr<Dims> SpatialAttr(const OpCall& call, const char* name, size_t num_spatial, int64_t least,
                                 const Dims& fallback) {
  constexpr int64_t kMost = int64_t{1} << 31;  // far from where products of them overflow
  if (call.attrs->count(name) == 0) return fallback;
  const Dims list = call.attr<Dims>(name);
  const bool fits = list.size() == num_spatial &&
                    std::all_of(list.begin(), list.end(), [&](int64_t x) { return x >= least && x <= kMost; });
  if (fits) return list;
  return absl::InvalidArgumentError(absl::StrCat(name, "=", DimsToString(list), "; wanted ", num_spatial,
                                                 num_spatial == 1 ? " number" : " numbers", " of at least ", least));
}

absl::StatusOr<Window> WindowOf(const OpCall& call, const Dims& kernel, const Dims& default_stride) {
  const size_t n = kernel.size();
  Window window{kernel, {}, {}, {}};
  if (std::any_of(kernel.begin(), kernel.end(), [](int64_t k) { return k < 1; })) {
    return absl::InvalidArgumentError(absl::StrCat("the kernel is ", DimsToString(kernel), "; wanted 1 or more each"));
  }
  TACC_ASSIGN_OR_RETURN(window.stride, SpatialAttr(call, "stride", n, 1, default_stride));
  TACC_ASSIGN_OR_RETURN(window.padding, SpatialAttr(call, "padding", n, 0, Dims(n, 0)));
  TACC_ASSIGN_OR_RETURN(window.dilation, SpatialAttr(call, "dilation", n, 1, Dims(n, 1)));
  return window;
}

absl::StatusOr<Dims> NumWindows(const Window& window, const Dims& spatial, LastWindow last) {
  Dims counts;
  for (size_t i = 0; i < spatial.size(); ++i) {
    const int64_t extent = (window.kernel[i] - 1) * window.dilation[i] + 1;
    const int64_t padded = spatial[i] + 2 * window.padding[i], stride = window.stride[i];
    if (padded < extent) {
      return absl::InvalidArgumentError(absl::StrCat(
          "spatial dim ", i, " is ", padded, " with its padding, less than the ", extent, " that the kernel spans"));
    }
    int64_t count = (padded - extent) / stride + 1;
    if (last == LastWindow::kBegins) {
      count = (padded - extent + stride - 1) / stride + 1;
      if ((count - 1) * stride >= spatial[i] + window.padding[i]) --count;
    }
    counts.push_back(count);
  }
  return counts;
}

}  // namespace tacc::graph
