#include "worker/checkpoint/rectangle.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tacc::worker {

absl::optional<int64_t> NumElements(absl::Span<const int64_t> shape) {
  int64_t count = 1;
  for (int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) return absl::nullopt;
  }
  return count;
}

std::string ShapeText(absl::Span<const int64_t> shape) { return absl::StrCat("[", absl::StrJoin(shape, ","), "]"); }

std::string RectangleText(const Rectangle& rectangle) {
  return absl::StrCat(ShapeText(rectangle.shape), " at ", ShapeText(rectangle.offset));
}

Rectangle WholeTensor(absl::Span<const int64_t> shape) {
  return {std::vector<int64_t>(shape.size(), 0), std::vector<int64_t>(shape.begin(), shape.end())};
}

bool IsInside(const Rectangle& rectangle, absl::Span<const int64_t> tensor_shape) {
  if (rectangle.offset.size() != tensor_shape.size() || rectangle.shape.size() != tensor_shape.size()) return false;
  for (size_t d = 0; d < tensor_shape.size(); ++d) {
    if (rectangle.offset[d] < 0 || rectangle.shape[d] < 0) return false;
    if (rectangle.offset[d] > tensor_shape[d] || rectangle.shape[d] > tensor_shape[d] - rectangle.offset[d])
      return false;
  }
  return true;
}

absl::optional<Rectangle> Intersect(const Rectangle& a, const Rectangle& b) {
  Rectangle common = a;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.shape[d], b.offset[d] + b.shape[d]);
    if (begin >= end) return absl::nullopt;
    common.offset[d] = begin;
    common.shape[d] = end - begin;
  }
  return common;
}

absl::Status ForEachRun(const Rectangle& source, const Rectangle& target,
                        absl::FunctionRef<absl::Status(int64_t from, int64_t to, int64_t num_elements)> visit) {
  const absl::optional<Rectangle> common = Intersect(source, target);
  if (!common.has_value()) return absl::OkStatus();
  const int num_dims = static_cast<int>(common->shape.size());
  // Trailing dims that both buffers hold whole, and the one dim before them, make one contiguous run.
  int run_dim = num_dims;
  int64_t run_elements = 1;
  while (run_dim > 0) {
    --run_dim;
    run_elements *= common->shape[run_dim];
    if (common->shape[run_dim] != source.shape[run_dim] || common->shape[run_dim] != target.shape[run_dim]) break;
  }
  const auto position = [num_dims](const std::vector<int64_t>& index, const Rectangle& in) {
    int64_t at = 0;
    for (int d = 0; d < num_dims; ++d) at = at * in.shape[d] + (index[d] - in.offset[d]);
    return at;
  };
  std::vector<int64_t> index = common->offset;
  while (true) {
    absl::Status status = visit(position(index, source), position(index, target), run_elements);
    if (!status.ok()) return status;
    int d = run_dim - 1;
    for (; d >= 0; --d) {
      if (++index[d] < common->offset[d] + common->shape[d]) break;
      index[d] = common->offset[d];
    }
    if (d < 0) return absl::OkStatus();
  }
}

int64_t CopyIntersection(const char* source_data, const Rectangle& source, char* target_data, const Rectangle& target,
                         int64_t element_bytes) {
  int64_t copied = 0;
  (void)ForEachRun(source, target, [&](int64_t from, int64_t to, int64_t num_elements) {
    std::memcpy(target_data + to * element_bytes, source_data + from * element_bytes, num_elements * element_bytes);
    copied += num_elements;
    return absl::OkStatus();
  });
  return copied;
}

}  // namespace tacc::worker
