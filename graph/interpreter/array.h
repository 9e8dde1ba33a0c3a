#ifndef TACC_GRAPH_INTERPRETER_ARRAY_H_
#define TACC_GRAPH_INTERPRETER_ARRAY_H_

#include <functional>
#include <vector>

#include "graph/ir/type.h"

namespace tacc::interpreter {

using graph::Dims;

// A dense row-major array. Every dtype is computed in double: floats without rounding, integers exactly up to 2^53.
struct Array {
  Dims dims;
  std::vector<double> values;

  static Array Filled(Dims dims, double value);
  int64_t size() const { return static_cast<int64_t>(values.size()); }
  double& at(const Dims& index) { return values[Offset(index)]; }
  double at(const Dims& index) const { return values[Offset(index)]; }

 private:
  size_t Offset(const Dims& index) const;
};

// Calls `visit` for each index of a box [begin, end), last dim fastest.
void ForEachIndex(const Dims& begin, const Dims& end, const std::function<void(const Dims&)>& visit);
void ForEachIndex(const Dims& dims, const std::function<void(const Dims&)>& visit);

// Entries [start, limit) of dim `dim` of x.
Array Entries(const Array& x, int64_t dim, int64_t start, int64_t limit);

}  // namespace tacc::interpreter

#endif  // TACC_GRAPH_INTERPRETER_ARRAY_H_
