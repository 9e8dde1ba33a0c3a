#include <functional>
#include <map>
#include <string>

#include "graph/interpreter/evaluate.h"

namespace tacc::interpreter {
namespace {

Results Compare(const Request& r) {
  static const std::map<std::string, std::function<bool(double, double)>> kComparisons = {
      {"eq", std::equal_to<double>()},   {"ne", std::not_equal_to<double>()}, {"lt", std::less<double>()},
      {"le", std::less_equal<double>()}, {"gt", std::greater<double>()},      {"ge", std::greater_equal<double>()}};
  const auto& holds = kComparisons.at(r.attr<std::string>("comparison"));
  Array y = r.NewResult(0);
  for (int64_t i = 0; i < y.size(); ++i)
    y.values[i] = holds(r.in[0]->values[i], r.in[1]->values[i % r.in[1]->size()]) ? 1 : 0;
  return {std::move(y)};
}

// The index of an operand that `ids` names for the element at `index`.
Dims At(const Request& r, Dims index) {
  index[r.attr<int64_t>("dim")] = static_cast<int64_t>(r.in[1]->at(index));
  return index;
}

Results Gather(const Request& r) {
  Array y = r.NewResult(0);
  ForEachIndex(y.dims, [&](const Dims& index) { y.at(index) = r.in[0]->at(At(r, index)); });
  return {std::move(y)};
}

Results ScatterAdd(const Request& r) {
  Array y = r.NewResult(0);
  ForEachIndex(r.in[0]->dims, [&](const Dims& index) { y.at(At(r, index)) += r.in[0]->at(index); });
  return {std::move(y)};
}

Results CumulativeSum(const Request& r) {
  const int64_t dim = r.attr<int64_t>("dim");
  Array y = r.NewResult(0);
  ForEachIndex(y.dims, [&](const Dims& index) {
    Dims before = index;
    before[dim] -= 1;
    y.at(index) = r.in[0]->at(index) + (index[dim] > 0 ? y.at(before) : 0.0);
  });
  return {std::move(y)};
}

Results Flip(const Request& r) {
  Array y = r.NewResult(0);
  ForEachIndex(y.dims, [&](const Dims& index) {
    Dims from = index;
    for (int64_t d : r.attr<std::vector<int64_t>>("dims")) from[d] = y.dims[d] - 1 - index[d];
    y.at(index) = r.in[0]->at(from);
  });
  return {std::move(y)};
}

}  // namespace

void AddIndexingEvaluators(EvaluatorTable& table) {
  table.Add("compare", Compare);
  table.Add("gather", Gather);
  table.Add("scatter_add", ScatterAdd);
  table.Add("cumsum", CumulativeSum);
  table.Add("flip", Flip);
}

}  // namespace tacc::interpreter
