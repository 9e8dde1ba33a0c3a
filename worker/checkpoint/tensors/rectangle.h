// Axis-aligned boxes of a tensor's index space, and copying between row-major buffers that hold such boxes.
#ifndef TACC_WORKER_CHECKPOINT_TENSORS_RECTANGLE_H_
#define TACC_WORKER_CHECKPOINT_TENSORS_RECTANGLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"

namespace tacc::worker {

// Elements offset[d] <= index[d] < offset[d] + shape[d] of a tensor; both have one entry per dim, none for a scalar.
struct Rectangle {
  std::vector<int64_t> offset;
  std::vector<int64_t> shape;
};

// Returns the product of the extents: 1 for a scalar. Nothing when an extent is negative or the product overflows.
absl::optional<int64_t> NumElements(absl::Span<const int64_t> shape);

// Returns "[4096,512]".
std::string ShapeText(absl::Span<const int64_t> shape);

// Returns "[4096,512] at [0,0]".
std::string RectangleText(const Rectangle& rectangle);

// Returns the rectangle of the whole tensor of this shape.
Rectangle WholeTensor(absl::Span<const int64_t> shape);

// True when the rectangle has the tensor's number of dims and lies inside it.
bool IsInside(const Rectangle& rectangle, absl::Span<const int64_t> tensor_shape);

// The rectangle of a tensor of shape `from` in the same tensor of shape `to`, one of which has leading dims of the
// other as one: rectangles whose elements, one after the other, are its own. Nothing where the shapes are no such. As
// few as there are: a row range is at most two of part of a row and one of whole rows for each dim that is split.
absl::optional<std::vector<Rectangle>> Reshaped(const Rectangle& rectangle, absl::Span<const int64_t> from,
                                                absl::Span<const int64_t> to);

// The shape with its first `merged` dims (1 to all) as one. Of a tensor whose elements can be counted.
std::vector<int64_t> MergedShape(absl::Span<const int64_t> shape, int64_t merged);

// Returns the common part of two rectangles with equally many dims; nothing when it is empty.
absl::optional<Rectangle> Intersect(const Rectangle& a, const Rectangle& b);

// The common part of two rectangles that lie dense and row-major somewhere, as runs that are contiguous in both: calls
// `visit` for each with the positions of its first element in `source` and in `target` and its number of elements, in
// order of the positions. The first error ends it.
absl::Status ForEachRun(const Rectangle& source, const Rectangle& target,
                        absl::FunctionRef<absl::Status(int64_t from, int64_t to, int64_t num_elements)> visit);

// Copies the common part of `source` and `target` from one buffer to the other. Each buffer holds its rectangle, dense
// and row-major, elements of `element_bytes`. Returns the number of elements copied.
int64_t CopyIntersection(const char* source_data, const Rectangle& source, char* target_data, const Rectangle& target,
                         int64_t element_bytes);

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_TENSORS_RECTANGLE_H_
