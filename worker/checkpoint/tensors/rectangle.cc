#include "worker/checkpoint/tensors/rectangle.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tacc::worker {
namespace {

using Add = absl::FunctionRef<void(std::vector<int64_t> offset, std::vector<int64_t> shape)>;

// The positions [begin, end) of a row-major tensor as boxes of it, in order: what is left of the first row, whole rows,
// what there is of the last.
void SplitRange(int64_t begin, int64_t end, absl::Span<const int64_t> dims, Add add) {
  if (begin >= end) return;
  if (dims.size() == 1) return add({begin}, {end - begin});
  const int64_t row = *NumElements(dims.subspan(1));
  const auto in_row = [&](int64_t index, int64_t first, int64_t last) {
    SplitRange(first, last, dims.subspan(1), [&](std::vector<int64_t> offset, std::vector<int64_t> shape) {
      offset.insert(offset.begin(), index);
      shape.insert(shape.begin(), 1);
      add(std::move(offset), std::move(shape));
    });
  };
  const int64_t first = (begin + row - 1) / row, last = end / row;  // the whole rows
  if (first > last) return in_row(last, begin - last * row, end - last * row);
  in_row(first - 1, begin - (first - 1) * row, row);
  if (first < last) {
    std::vector<int64_t> offset(dims.size(), 0), shape(dims.begin(), dims.end());
    offset[0] = first;
    shape[0] = last - first;
    add(std::move(offset), std::move(shape));
  }
  in_row(last, 0, end - last * row);
}

// A box of a row-major tensor as ranges of positions, in order.
void MergeBox(const Rectangle& box, absl::Span<const int64_t> dims, Add add) {
  // What lies in one piece: the dims that the box has whole, and the one before them.
  size_t inner = dims.size() - 1;
  while (inner > 0 && box.shape[inner] == dims[inner]) --inner;
  const int64_t num_ranges = *NumElements(absl::MakeConstSpan(box.shape).first(inner));
  const int64_t length = *NumElements(absl::MakeConstSpan(box.shape).subspan(inner));
  for (int64_t i = 0; i < num_ranges && length > 0; ++i) {
    int64_t index = i, begin = 0, stride = 1;
    for (size_t d = dims.size(); d-- > 0; stride *= dims[d]) {
      const int64_t position = d < inner ? index % box.shape[d] : 0;
      if (d < inner) index /= box.shape[d];
      begin += (box.offset[d] + position) * stride;
    }
    add({begin}, {length});
  }
}

}  // namespace

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

std::vector<int64_t> MergedShape(absl::Span<const int64_t> shape, int64_t merged) {
  if (merged <= 1) return {shape.begin(), shape.end()};
  std::vector<int64_t> result(shape.begin() + merged - 1, shape.end());
  result[0] = NumElements(shape.first(merged)).value_or(0);
  return result;
}

absl::optional<std::vector<Rectangle>> Reshaped(const Rectangle& rectangle, absl::Span<const int64_t> from,
                                                absl::Span<const int64_t> to) {
  if (from == to) return std::vector<Rectangle>{rectangle};
  const bool splits = from.size() < to.size();
  const absl::Span<const int64_t> fine = splits ? to : from, merged = splits ? from : to;
  if (merged.empty() || fine.size() == merged.size()) return absl::nullopt;
  const size_t num_leading = fine.size() - merged.size() + 1;
  const absl::Span<const int64_t> leading = fine.first(num_leading);
  if (NumElements(leading) != merged[0] || fine.subspan(num_leading) != merged.subspan(1)) return absl::nullopt;
  const auto kept = static_cast<int64_t>(merged.size()) - 1;
  std::vector<Rectangle> parts;
  const auto add = [&](std::vector<int64_t> offset, std::vector<int64_t> shape) {
    offset.insert(offset.end(), rectangle.offset.end() - kept, rectangle.offset.end());
    shape.insert(shape.end(), rectangle.shape.end() - kept, rectangle.shape.end());
    parts.push_back({std::move(offset), std::move(shape)});
  };
  if (splits) {
    SplitRange(rectangle.offset[0], rectangle.offset[0] + rectangle.shape[0], leading, add);
  } else {
    const auto end = static_cast<int64_t>(num_leading);
    MergeBox({{rectangle.offset.begin(), rectangle.offset.begin() + end},
              {rectangle.shape.begin(), rectangle.shape.begin() + end}},
             leading, add);
  }
  return parts;
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
