#include <cmath>
#include <string>
#include <vector>

#include "graph/interpreter/evaluate.h"
#include "graph/ops/einsum_spec.h"

namespace tacc::interpreter {
namespace {

// How far apart in a dense array, whose dims have these letters, neighbours along `letter` lie; 0: it has no such dim.
int64_t StrideOf(char letter, const std::string& letters, const Dims& dims) {
  const size_t at = letters.find(letter);
  if (at == std::string::npos) return 0;
  int64_t stride = 1;
  for (size_t i = at + 1; i < dims.size(); ++i) stride *= dims[i];
  return stride;
}

// y += einsum(a, b). The last of the letters that are summed over is the innermost loop.
void AddProduct(const std::string& text, const Array& a, const Array& b, Array& y) {
  struct Loop {
    int64_t extent, a, b, y;  // and strides
  };
  const graph::EinsumSpec spec = *graph::ParseEinsum(text);
  std::vector<Loop> loops;
  const auto add = [&](char letter, int64_t extent) {
    loops.push_back(
        {extent, StrideOf(letter, spec.a, a.dims), StrideOf(letter, spec.b, b.dims), StrideOf(letter, spec.y, y.dims)});
  };
  for (size_t i = 0; i < spec.y.size(); ++i) add(spec.y[i], y.dims[i]);
  for (size_t i = 0; i < spec.a.size(); ++i) {
    if (spec.y.find(spec.a[i]) == std::string::npos) add(spec.a[i], a.dims[i]);
  }
  if (loops.empty() || loops.back().y != 0) loops.push_back({1, 0, 0, 0});
  const Loop inner = loops.back();
  Dims outer;
  for (size_t i = 0; i + 1 < loops.size(); ++i) outer.push_back(loops[i].extent);
  ForEachIndex(outer, [&](const Dims& index) {
    int64_t at_a = 0, at_b = 0, at_y = 0;
    for (size_t i = 0; i < index.size(); ++i) {
      at_a += index[i] * loops[i].a;
      at_b += index[i] * loops[i].b;
      at_y += index[i] * loops[i].y;
    }
    double sum = 0;
    for (int64_t k = 0; k < inner.extent; ++k) sum += a.values[at_a + k * inner.a] * b.values[at_b + k * inner.b];
    y.values[at_y] += sum;
  });
}

// A product's first factor.
Array PartOf(const Request& r, const Array& a) {
  const int64_t parts = r.attr<int64_t>("parts"), dim = r.attr<int64_t>("dim");
  if (parts == 0) return a;
  const int64_t extent = a.dims[dim] / parts;
  return Entries(a, dim, r.attr<int64_t>("start") * extent, r.attr<int64_t>("limit") * extent);
}

Results Einsum(const Request& r) {
  Array y = r.NewResult(0);
  AddProduct(r.attr<std::string>("spec"), PartOf(r, *r.in[0]), *r.in[1], y);
  return {std::move(y)};
}

Results EinsumAccumulate(const Request& r) {
  Array y = r.NewResult(0);
  const Array& acc = *r.in[0];
  for (int64_t i = 0; i < y.size(); ++i) y.values[i] = acc.values[i % acc.size()];
  AddProduct(r.attr<std::string>("spec"), PartOf(r, *r.in[1]), *r.in[2], y);
  return {std::move(y)};
}

Results EinsumJoined(const Request& r) {
  Array y = r.NewResult(0), whole = *r.in[1];
  for (size_t i = 2; i < r.in.size(); ++i) {
    whole.dims[0] += r.in[i]->dims[0];
    whole.values.insert(whole.values.end(), r.in[i]->values.begin(), r.in[i]->values.end());
  }
  AddProduct(r.attr<std::string>("spec"), *r.in[0], whole, y);
  return {std::move(y)};
}

int64_t Rows(const Array& x) { return x.dims.back() == 0 ? 0 : x.size() / x.dims.back(); }

Results RmsNorm(const Request& r) {
  const Array &x = *r.in[0], &w = *r.in[1];
  const int64_t n = x.dims.back();
  Array y = r.NewResult(0), rstd = r.NewResult(1);
  for (int64_t i = 0; i < Rows(x); ++i) {
    double sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += x.values[i * n + j] * x.values[i * n + j];
    rstd.values[i] = 1 / std::sqrt(sum / n + r.attr<double>("eps"));
    for (int64_t j = 0; j < n; ++j) y.values[i * n + j] = x.values[i * n + j] * rstd.values[i] * w.values[j];
  }
  return {std::move(y), std::move(rstd)};
}

Results RmsNormGrad(const Request& r) {
  const Array &dy = *r.in[0], &x = *r.in[1], &w = *r.in[2], &rstd = *r.in[3];
  const int64_t n = x.dims.back();
  Array dx = r.NewResult(0), dw = r.NewResult(1);
  for (int64_t i = 0; i < Rows(x); ++i) {
    double dot = 0;  // mean of (dy w) * xhat
    for (int64_t j = 0; j < n; ++j)
      dot += dy.values[i * n + j] * w.values[j] * x.values[i * n + j] * rstd.values[i] / n;
    for (int64_t j = 0; j < n; ++j) {
      const double xhat = x.values[i * n + j] * rstd.values[i];
      dx.values[i * n + j] = rstd.values[i] * (dy.values[i * n + j] * w.values[j] - xhat * dot);
      dw.values[j] += dy.values[i * n + j] * xhat;
    }
  }
  return {std::move(dx), std::move(dw)};
}

Results LayerNorm(const Request& r) {
  const Array& x = *r.in[0];
  const int64_t n = x.dims.back();
  Array y = r.NewResult(0), mean = r.NewResult(1), rstd = r.NewResult(2);
  for (int64_t i = 0; i < Rows(x); ++i) {
    double sum = 0, squares = 0;
    for (int64_t j = 0; j < n; ++j) sum += x.values[i * n + j];
    mean.values[i] = sum / n;
    for (int64_t j = 0; j < n; ++j) squares += std::pow(x.values[i * n + j] - mean.values[i], 2);
    rstd.values[i] = 1 / std::sqrt(squares / n + r.attr<double>("eps"));
    for (int64_t j = 0; j < n; ++j) {
      const double xhat = (x.values[i * n + j] - mean.values[i]) * rstd.values[i];
      const double w = r.in.size() > 1 ? r.in[1]->values[j] : 1, b = r.in.size() > 2 ? r.in[2]->values[j] : 0;
      y.values[i * n + j] = xhat * w + b;
    }
  }
  return {std::move(y), std::move(mean), std::move(rstd)};
}

Results LayerNormGrad(const Request& r) {
  const Array &dy = *r.in[0], &x = *r.in[1], &mean = *r.in[2], &rstd = *r.in[3];
  const int64_t n = x.dims.back();
  Results results;
  for (size_t i = 0; i < r.out_types.size(); ++i) results.push_back(r.NewResult(static_cast<int>(i)));
  for (int64_t i = 0; i < Rows(x); ++i) {
    auto xhat = [&](int64_t j) { return (x.values[i * n + j] - mean.values[i]) * rstd.values[i]; };
    auto dxhat = [&](int64_t j) { return dy.values[i * n + j] * (r.in.size() > 4 ? r.in[4]->values[j] : 1); };
    double sum = 0, dot = 0;
    for (int64_t j = 0; j < n; ++j) {
      sum += dxhat(j) / n;
      dot += dxhat(j) * xhat(j) / n;
    }
    for (int64_t j = 0; j < n; ++j) {
      results[0].values[i * n + j] = rstd.values[i] * (dxhat(j) - sum - xhat(j) * dot);
      if (results.size() > 1) results[1].values[j] += dy.values[i * n + j] * xhat(j);
      if (results.size() > 2) results[2].values[j] += dy.values[i * n + j];
    }
  }
  return results;
}

// add_NORM(a, b, ...) -> NORM(a + b, ...), a + b
template <Results (*kNorm)(const Request&)>
Results WithAddBefore(const Request& r) {
  Array sum = *r.in[0];
  for (int64_t i = 0; i < sum.size(); ++i) sum.values[i] += r.in[1]->values[i];
  Request norm = r;
  norm.in.erase(norm.in.begin());
  norm.in[0] = &sum;
  Results results = kNorm(norm);
  results.push_back(std::move(sum));
  return results;
}

// NORM_grad_accumulate(acc, ...) -> acc + dx, ... with dx, ... = NORM_grad(...)
template <Results (*kGrad)(const Request&)>
Results WithAddAfter(const Request& r) {
  Request grad = r;
  grad.in.erase(grad.in.begin());
  Results results = kGrad(grad);
  for (int64_t i = 0; i < results[0].size(); ++i) results[0].values[i] += r.in[0]->values[i];
  return results;
}

// GRAD that may be asked for a copy of its first result.
template <Results (*kGrad)(const Request&)>
Results WithCopy(const Request& r) {
  if (r.attr<std::string>("copy").empty()) return kGrad(r);
  Request grad = r;
  grad.out_types.pop_back();
  Results results = kGrad(grad);
  results.push_back(results[0]);
  return results;
}

Results L2Normalize(const Request& r) {
  const Array& x = *r.in[0];
  const int64_t n = x.dims.back();
  Array y = r.NewResult(0), rnorm = r.NewResult(1);
  for (int64_t i = 0; i < Rows(x); ++i) {
    double sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += x.values[i * n + j] * x.values[i * n + j];
    rnorm.values[i] = 1 / std::max(std::sqrt(sum), r.attr<double>("eps"));
    for (int64_t j = 0; j < n; ++j) y.values[i * n + j] = x.values[i * n + j] * rnorm.values[i];
  }
  return {std::move(y), std::move(rnorm)};
}

Results L2NormalizeGrad(const Request& r) {
  const Array &dy = *r.in[0], &x = *r.in[1], &rnorm = *r.in[2];
  const int64_t n = x.dims.back();
  Array dx = r.NewResult(0);
  for (int64_t i = 0; i < Rows(x); ++i) {
    // At or below eps the divisor is a constant.
    const bool constant = rnorm.values[i] >= 1 / r.attr<double>("eps");
    double dot = 0;
    for (int64_t j = 0; j < n && !constant; ++j) dot += dy.values[i * n + j] * x.values[i * n + j] * rnorm.values[i];
    for (int64_t j = 0; j < n; ++j) {
      dx.values[i * n + j] = rnorm.values[i] * (dy.values[i * n + j] - x.values[i * n + j] * rnorm.values[i] * dot);
    }
  }
  return {std::move(dx)};
}

// The position at an index of a result whose dim `dim` is the sequence, counted from the start of its document.
double PositionAt(const Request& r, const Dims& index, size_t dim) {
  const int64_t position = r.Position(r.out_ranges[0][dim], r.out_logical[0][dim], index[dim]);
  return static_cast<double>(position) - (r.in.empty() ? 0.0 : r.in[0]->at({index[0], index[1]}));
}

Results Positions(const Request& r) {
  Array y = r.NewResult(0);
  ForEachIndex(y.dims, [&](const Dims& index) { y.at(index) = PositionAt(r, index, index.size() - 1); });
  return {std::move(y)};
}

Results RopeTable(const Request& r) {
  const std::vector<double> inv_freq = r.attr<std::vector<double>>("inv_freq");
  Array cos = r.NewResult(0), sin = r.NewResult(1);
  ForEachIndex(cos.dims, [&](const Dims& index) {
    const double angle = PositionAt(r, index, index.size() - 2) * inv_freq[index.back()];
    cos.at(index) = std::cos(angle) * r.attr<double>("attention_scale", 1.0);
    sin.at(index) = std::sin(angle) * r.attr<double>("attention_scale", 1.0);
  });
  return {std::move(cos), std::move(sin)};
}

Results Rotary(const Request& r) {
  const Array &x = *r.in[0], &cos = *r.in[1], &sin = *r.in[2];
  const int64_t half = cos.dims.back();
  const bool interleaved = r.attr<std::string>("style") == "interleaved";
  Array y = x;
  const int64_t parts = r.attr<int64_t>("parts", 1), heads = x.dims[2] / parts * r.attr<int64_t>("limit", 1);
  ForEachIndex({x.dims[0], x.dims[1], heads, half}, [&](const Dims& index) {
    const int64_t j = index[3];
    Dims first = index, second = index;
    first[3] = interleaved ? 2 * j : j;
    second[3] = interleaved ? 2 * j + 1 : j + half;
    const Dims at = cos.dims.size() == 3 ? Dims{index[0], index[1], j} : Dims{index[1], j};
    const double c = cos.at(at), s = sin.at(at) * (r.attr<bool>("inverse") ? -1 : 1);
    y.at(first) = x.at(first) * c - x.at(second) * s;
    y.at(second) = x.at(second) * c + x.at(first) * s;
  });
  return {std::move(y)};
}

}  // namespace

void AddModelEvaluators(EvaluatorTable& table) {
  table.Add("einsum", Einsum);
  table.Add("einsum_accumulate", EinsumAccumulate);
  table.Add("einsum_joined", EinsumJoined);
  table.Add("rms_norm", RmsNorm);
  table.Add("add_rms_norm", WithAddBefore<RmsNorm>);
  table.Add("rms_norm_grad", WithCopy<RmsNormGrad>);
  table.Add("rms_norm_grad_accumulate", WithCopy<WithAddAfter<RmsNormGrad>>);
  table.Add("layer_norm", LayerNorm);
  table.Add("add_layer_norm", WithAddBefore<LayerNorm>);
  table.Add("layer_norm_grad", WithCopy<LayerNormGrad>);
  table.Add("layer_norm_grad_accumulate", WithCopy<WithAddAfter<LayerNormGrad>>);
  table.Add("l2_normalize", L2Normalize);
  table.Add("l2_normalize_grad", L2NormalizeGrad);
  table.Add("positions", Positions);
  table.Add("rope_table", RopeTable);
  table.Add("rotary", Rotary);
}

}  // namespace tacc::interpreter
