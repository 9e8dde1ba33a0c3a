#include <algorithm>
#include <limits>

#include "graph/interpreter/evaluate.h"

namespace tacc::interpreter {
namespace {

using Ints = std::vector<int64_t>;

Results Reshape(const Request& r) { return {Array{r.out_dims(0), r.in[0]->values}}; }

Results Transpose(const Request& r) {
  const Ints perm = r.attr<Ints>("perm");
  Array y = r.NewResult(0);
  ForEachIndex(y.dims, [&](const Dims& index) {
    Dims from(index.size());
    for (size_t i = 0; i < index.size(); ++i) from[perm[i]] = index[i];
    y.at(index) = r.in[0]->at(from);
  });
  return {std::move(y)};
}

Results Slice(const Request& r) {
  Array y = r.NewResult(0);
  ForEachIndex(y.dims, [&](const Dims& index) {
    Dims from = index;
    from[r.attr<int64_t>("dim")] += r.attr<int64_t>("start");
    y.at(index) = r.in[0]->at(from);
  });
  return {std::move(y)};
}

Results Pad(const Request& r) {
  Array y = r.NewResult(0);
  ForEachIndex(r.in[0]->dims, [&](const Dims& index) {
    Dims to = index;
    to[r.attr<int64_t>("dim")] += r.attr<int64_t>("low");
    y.at(to) = r.in[0]->at(index);
  });
  return {std::move(y)};
}

Results Concat(const Request& r) {
  const int64_t dim = r.attr<int64_t>("dim");
  Array y = r.NewResult(0);
  int64_t start = 0;
  for (const Array* x : r.in) {
    ForEachIndex(x->dims, [&](const Dims& index) {
      Dims to = index;
      to[dim] += start;
      y.at(to) = x->at(index);
    });
    start += x->dims[dim];
  }
  return {std::move(y)};
}

Results Broadcast(const Request& r) {
  const Ints dims = r.attr<Ints>("dims");
  Array y = r.NewResult(0);
  ForEachIndex(y.dims, [&](const Dims& index) {
    Dims from;
    for (int64_t d : dims) from.push_back(index[d]);
    y.at(index) = r.in[0]->at(from);
  });
  return {std::move(y)};
}

Results Reduce(const Request& r, double initial, double (*combine)(double, double)) {
  const Ints dims = r.attr<Ints>("dims");
  Array y = r.NewResult(0, initial);
  ForEachIndex(r.in[0]->dims, [&](const Dims& index) {
    Dims to;
    for (size_t i = 0; i < index.size(); ++i) {
      if (std::find(dims.begin(), dims.end(), static_cast<int64_t>(i)) == dims.end()) to.push_back(index[i]);
    }
    y.at(to) = combine(y.at(to), r.in[0]->at(index));
  });
  return {std::move(y)};
}

Results Constant(const Request& r) { return {r.NewResult(0, r.attr<double>("value"))}; }

Results Iota(const Request& r) {
  const int64_t dim = r.attr<int64_t>("dim");
  Array y = r.NewResult(0);
  ForEachIndex(y.dims,
               [&](const Dims& index) { y.at(index) = static_cast<double>(r.out_ranges[0][dim].begin + index[dim]); });
  return {std::move(y)};
}

}  // namespace

void AddShapeEvaluators(EvaluatorTable& table) {
  table.Add("reshape", Reshape);
  table.Add("stop_gradient", Reshape);  // the same elements
  table.Add("transpose", Transpose);
  table.Add("slice", Slice);
  table.Add("pad", Pad);
  table.Add("concat", Concat);
  table.Add("broadcast", Broadcast);
  table.Add("reduce_sum", [](const Request& r) { return Reduce(r, 0, [](double a, double b) { return a + b; }); });
  table.Add("reduce_max", [](const Request& r) {
    return Reduce(r, -std::numeric_limits<double>::infinity(), [](double a, double b) { return a > b ? a : b; });
  });
  table.Add("constant", Constant);
  table.Add("iota", Iota);
}

}  // namespace tacc::interpreter
