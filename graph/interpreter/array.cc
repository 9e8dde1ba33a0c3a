#include "graph/interpreter/array.h"

namespace tacc::interpreter {

Array Array::Filled(Dims dims, double value) {
  int64_t size = 1;
  for (int64_t d : dims) size *= d;
  return Array{std::move(dims), std::vector<double>(size, value)};
}

size_t Array::Offset(const Dims& index) const {
  int64_t offset = 0;
  for (size_t i = 0; i < dims.size(); ++i) offset = offset * dims[i] + index[i];
  return static_cast<size_t>(offset);
}

void ForEachIndex(const Dims& begin, const Dims& end, const std::function<void(const Dims&)>& visit) {
  for (size_t i = 0; i < begin.size(); ++i) {
    if (begin[i] >= end[i]) return;
  }
  Dims index = begin;
  while (true) {
    visit(index);
    int i = static_cast<int>(index.size()) - 1;
    while (i >= 0 && ++index[i] == end[i]) {
      index[i] = begin[i];
      --i;
    }
    if (i < 0) return;
  }
}

void ForEachIndex(const Dims& dims, const std::function<void(const Dims&)>& visit) {
  ForEachIndex(Dims(dims.size(), 0), dims, visit);
}

Array Entries(const Array& x, int64_t dim, int64_t start, int64_t limit) {
  Dims dims = x.dims;
  dims[dim] = limit - start;
  Array part = Array::Filled(dims, 0);
  ForEachIndex(dims, [&](const Dims& index) {
    Dims from = index;
    from[dim] += start;
    part.at(index) = x.at(from);
  });
  return part;
}

}  // namespace tacc::interpreter
