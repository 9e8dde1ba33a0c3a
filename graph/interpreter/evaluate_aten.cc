// Of the ops `aten` and `aten_vjp`, the schemas that may be split over ranks. What other schemas compute, LibTorch
// says: tests of kernels compare with PyTorch.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "graph/interpreter/evaluate.h"
#include "graph/ops/torch/aten_call.h"

namespace tacc::interpreter {
namespace {

using Row = std::vector<double>;
using Words = std::vector<std::string>;

// Rows of a dense array along `dim`.
class Rows {
 public:
  Rows(const Dims& dims, int64_t dim) : extent_(dims[dim]) {
    for (size_t d = dim + 1; d < dims.size(); ++d) stride_ *= dims[d];
  }
  Row Get(const Array& x, int64_t row) const {
    Row values(extent_);
    for (int64_t i = 0; i < extent_; ++i) values[i] = x.values[At(row, i)];
    return values;
  }
  void Set(Array& x, int64_t row, const Row& values) const {
    for (int64_t i = 0; i < extent_; ++i) x.values[At(row, i)] = values[i];
  }
  int64_t count(const Array& x) const { return extent_ == 0 ? 0 : x.size() / extent_; }

 private:
  int64_t At(int64_t row, int64_t i) const { return (row / stride_ * extent_ + i) * stride_ + row % stride_; }

  int64_t extent_, stride_ = 1;
};

int64_t RowDim(const Request& r) {
  graph::OpCall call{&r.node->attrs, {{graph::DType::kF64, r.in[0]->dims}}, {}};
  return graph::AtenRowDim(call);
}

// results = f(row of x), one row for each result.
Evaluator Forward(std::function<std::vector<Row>(const Request&, const Row& x)> f) {
  return [f](const Request& r) {
    const int64_t dim = RowDim(r);
    const Rows from(r.in[0]->dims, dim);
    Results results;
    for (size_t i = 0; i < r.out_types.size(); ++i) results.push_back(r.NewResult(static_cast<int>(i)));
    for (int64_t row = 0; row < from.count(*r.in[0]); ++row) {
      const std::vector<Row> made = f(r, from.Get(*r.in[0], row));
      for (size_t i = 0; i < results.size(); ++i) Rows(results[i].dims, dim).Set(results[i], row, made[i]);
    }
    return results;
  };
}

// dx = f(row of x, row of dy), of the first result's cotangent.
Evaluator Vjp(std::function<Row(const Request&, const Row& x, const Row& dy)> f) {
  return [f](const Request& r) {
    const int64_t dim = RowDim(r);
    const Rows x(r.in[0]->dims, dim), dy(r.in[1]->dims, dim);
    Array dx = r.NewResult(0);
    for (int64_t row = 0; row < x.count(dx); ++row) x.Set(dx, row, f(r, x.Get(*r.in[0], row), dy.Get(*r.in[1], row)));
    return Results{std::move(dx)};
  };
}

std::vector<Row> CumulativeSum(const Request&, const Row& x) {
  Row y(x.size());
  std::partial_sum(x.begin(), x.end(), y.begin());
  return {y};
}

Row CumulativeSumVjp(const Request&, const Row& x, const Row& dy) {
  Row dx(x.size());
  std::partial_sum(dy.rbegin(), dy.rend(), dx.rbegin());
  return dx;
}

std::vector<Row> CumulativeProduct(const Request&, const Row& x) {
  Row y(x.size());
  std::partial_sum(x.begin(), x.end(), y.begin(), std::multiplies<double>());
  return {y};
}

Row CumulativeProductVjp(const Request&, const Row& x, const Row& dy) {
  Row dx(x.size(), 0);
  for (size_t i = 0; i < x.size(); ++i) {
    double others = 1;  // the product of [0, j] without x[i]
    for (size_t j = 0; j < x.size(); ++j) {
      if (j != i) others *= x[j];
      if (j >= i) dx[i] += dy[j] * others;
    }
  }
  return dx;
}

std::vector<Row> LogCumulativeSumExp(const Request&, const Row& x) {
  Row y(x.size());
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) y[i] = std::log(sum += std::exp(x[i]));
  return {y};
}

Row LogCumulativeSumExpVjp(const Request& r, const Row& x, const Row& dy) {
  const Row y = LogCumulativeSumExp(r, x)[0];
  Row dx(x.size(), 0);
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = i; j < x.size(); ++j) dx[i] += dy[j] * std::exp(x[i] - y[j]);
  }
  return dx;
}

// The largest, or smallest, of a row's values up to each, and its place; of equal ones the last.
template <bool kLargest>
std::vector<Row> CumulativeExtreme(const Request&, const Row& x) {
  Row y(x.size()), places(x.size());
  size_t best = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (kLargest ? x[i] >= x[best] : x[i] <= x[best]) best = i;
    y[i] = x[best];
    places[i] = static_cast<double>(best);
  }
  return {y, places};
}

template <bool kLargest>
Row CumulativeExtremeVjp(const Request& r, const Row& x, const Row& dy) {
  const Row places = CumulativeExtreme<kLargest>(r, x)[1];
  Row dx(x.size(), 0);
  for (size_t i = 0; i < x.size(); ++i) dx[static_cast<size_t>(places[i])] += dy[i];
  return dx;
}

// The places of a row's values as sort and topk order them; equal ones by place.
std::vector<size_t> Order(const Request& r, const Row& x) {
  const Words args = r.attr<Words>("args");
  const bool is_topk = r.attr<std::string>("schema") == "aten::topk.default";
  const bool descends = is_topk ? args.size() <= 3 || args[3] == "true" : args.size() > 2 && args[2] == "true";
  std::vector<size_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return descends ? x[a] > x[b] : x[a] < x[b]; });
  if (is_topk) order.resize(r.attr<std::vector<int64_t>>("ints")[0]);
  return order;
}

std::vector<Row> Ordered(const Request& r, const Row& x) {
  std::vector<Row> results(2);
  for (size_t place : Order(r, x)) {
    results[0].push_back(x[place]);
    results[1].push_back(static_cast<double>(place));
  }
  return results;
}

Row OrderedVjp(const Request& r, const Row& x, const Row& dy) {
  Row dx(x.size(), 0);
  const std::vector<size_t> order = Order(r, x);
  for (size_t i = 0; i < order.size(); ++i) dx[order[i]] = dy[i];
  return dx;
}

}  // namespace

void AddAtenEvaluators(EvaluatorTable& table) {
  table.Add("aten aten::cumsum.default", Forward(CumulativeSum));
  table.Add("aten_vjp aten::cumsum.default", Vjp(CumulativeSumVjp));
  table.Add("aten aten::cumprod.default", Forward(CumulativeProduct));
  table.Add("aten_vjp aten::cumprod.default", Vjp(CumulativeProductVjp));
  table.Add("aten aten::logcumsumexp.default", Forward(LogCumulativeSumExp));
  table.Add("aten_vjp aten::logcumsumexp.default", Vjp(LogCumulativeSumExpVjp));
  table.Add("aten aten::cummax.default", Forward(CumulativeExtreme<true>));
  table.Add("aten_vjp aten::cummax.default", Vjp(CumulativeExtremeVjp<true>));
  table.Add("aten aten::cummin.default", Forward(CumulativeExtreme<false>));
  table.Add("aten_vjp aten::cummin.default", Vjp(CumulativeExtremeVjp<false>));
  for (const char* schema : {"aten::sort.default", "aten::topk.default"}) {
    table.Add(std::string("aten ") + schema, Forward(Ordered));
    table.Add(std::string("aten_vjp ") + schema, Vjp(OrderedVjp));
  }
}

}  // namespace tacc::interpreter
