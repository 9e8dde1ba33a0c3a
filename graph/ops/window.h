// Windows that slide over the spatial dims of images [N,C,spatial...]: those of convolutions and pools.
#ifndef TACC_GRAPH_OPS_WINDOW_H_
#define TACC_GRAPH_OPS_WINDOW_H_

#include <vector>

#include "absl/status/statusor.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// Attributes of an op with windows: lists with an entry a spatial dim. Absent: `stride` as the op says, `padding` 0 on
// both sides, `dilation` 1.
std::vector<AttrSpec> WindowAttrs();

struct Window {
  Dims kernel, stride, padding, dilation;
};

// One to three spatial dims behind samples and channels, floating. Errors name it `name`.
absl::Status WantImage(absl::string_view name, const TensorType& type);
Dims SpatialDims(const TensorType& image);
// [n, channels, spatial...].
Dims ImageDims(int64_t n, int64_t channels, const Dims& spatial);

// The attribute `name`, a list with an entry of at least `least` a spatial dim; `fallback` when it is absent.
absl::StatusOr<Dims> SpatialAttr(const OpCall& call, const char* name, size_t num_spatial, int64_t least,
                                 const Dims& fallback);

// The windows of `kernel` that the node's attributes say.
absl::StatusOr<Window> WindowOf(const OpCall& call, const Dims& kernel, const Dims& default_stride);

enum class LastWindow {
  kInside,  // lies in the padded image
  kBegins,  // begins in the image or in the padding before it (ceil_mode)
};
// How many windows there are in each dim. Errors: a window is larger than the padded image.
absl::StatusOr<Dims> NumWindows(const Window& window, const Dims& spatial, LastWindow last = LastWindow::kInside);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_WINDOW_H_
