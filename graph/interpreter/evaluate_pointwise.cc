#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>

#include "graph/interpreter/evaluate.h"

namespace tacc::interpreter {
namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Silu(double x) { return x * Sigmoid(x); }
double SiluGrad(double x) { return Sigmoid(x) * (1 + x * (1 - Sigmoid(x))); }

constexpr double kSqrt2OverPi = 0.79788456080286535588;
double GeluTanhArgument(double x) { return kSqrt2OverPi * (x + 0.044715 * x * x * x); }

double Gelu(double x, bool tanh) {
  if (tanh) return 0.5 * x * (1 + std::tanh(GeluTanhArgument(x)));
  return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
}

double GeluGrad(double x, bool tanh) {
  if (tanh) {
    const double t = std::tanh(GeluTanhArgument(x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kSqrt2OverPi * (1 + 3 * 0.044715 * x * x);
  }
  return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
}

// f(operand values at one element) -> result. An operand of fewer dims is aligned at the trailing ones, so its index is
// the remainder.
Evaluator Pointwise(std::function<double(const Request&, const std::vector<double>&)> f) {
  return [f](const Request& request) {
    Array y = request.NewResult(0);
    std::vector<double> x(request.in.size());
    for (int64_t i = 0; i < y.size(); ++i) {
      for (size_t k = 0; k < x.size(); ++k) x[k] = request.in[k]->values[i % request.in[k]->size()];
      y.values[i] = f(request, x);
    }
    return Results{std::move(y)};
  };
}

Evaluator Unary(double (*f)(double)) {
  return Pointwise([f](const Request&, const std::vector<double>& x) { return f(x[0]); });
}

// x, dy -> f'(x) * dy
Evaluator Grad(double (*derivative)(double)) {
  return Pointwise([derivative](const Request&, const std::vector<double>& x) { return derivative(x[0]) * x[1]; });
}

Evaluator Binary(double (*f)(double, double)) {
  return Pointwise([f](const Request&, const std::vector<double>& x) { return f(x[0], x[1]); });
}

double Cast(graph::DType to, double x) {
  if (graph::IsFloating(to)) return x;
  return to == graph::DType::kBool ? (x != 0 ? 1 : 0) : std::trunc(x);
}

Results SwigluGrad(const Request& request) {
  Array dgate = request.NewResult(0), dup = request.NewResult(1);
  for (int64_t i = 0; i < dgate.size(); ++i) {
    const double gate = request.in[0]->values[i], up = request.in[1]->values[i], dy = request.in[2]->values[i];
    dgate.values[i] = dy * up * SiluGrad(gate);
    dup.values[i] = dy * Silu(gate);
  }
  return {std::move(dgate), std::move(dup)};
}

// Calls f(index of gate, of up, of the element of the half) for x of gates and ups.
void ForEachGate(const Array& x, const std::function<void(int64_t, int64_t, int64_t)>& f) {
  const int64_t width = x.dims.back() / 2;
  for (int64_t i = 0; i < x.size() / 2; ++i) {
    const int64_t gate = i / width * 2 * width + i % width;
    f(gate, gate + width, i);
  }
}

Results SwigluJoined(const Request& request) {
  const Array& x = *request.in[0];
  Array y = request.NewResult(0);
  ForEachGate(x, [&](int64_t gate, int64_t up, int64_t i) { y.values[i] = Silu(x.values[gate]) * x.values[up]; });
  return {std::move(y)};
}

Results SwigluJoinedGrad(const Request& request) {
  const Array &x = *request.in[0], &dy = *request.in[1];
  Array dx = request.NewResult(0);
  ForEachGate(x, [&](int64_t gate, int64_t up, int64_t i) {
    dx.values[gate] = dy.values[i] * x.values[up] * SiluGrad(x.values[gate]);
    dx.values[up] = dy.values[i] * Silu(x.values[gate]);
  });
  return {std::move(dx)};
}

}  // namespace

void AddPointwiseEvaluators(EvaluatorTable& table) {
  table.Add("add", Binary([](double a, double b) { return a + b; }));
  table.Add("sub", Binary([](double a, double b) { return a - b; }));
  table.Add("mul", Binary([](double a, double b) { return a * b; }));
  table.Add("div", Binary([](double a, double b) { return a / b; }));
  table.Add("maximum", Binary([](double a, double b) { return a > b || std::isnan(a) ? a : b; }));
  table.Add("minimum", Binary([](double a, double b) { return a < b || std::isnan(a) ? a : b; }));
  table.Add("neg", Unary([](double x) { return -x; }));
  table.Add("exp", Unary([](double x) { return std::exp(x); }));
  table.Add("log", Unary([](double x) { return std::log(x); }));
  table.Add("sin", Unary([](double x) { return std::sin(x); }));
  table.Add("cos", Unary([](double x) { return std::cos(x); }));
  table.Add("sqrt", Unary([](double x) { return std::sqrt(x); }));
  table.Add("rsqrt", Unary([](double x) { return 1 / std::sqrt(x); }));
  table.Add("reciprocal", Unary([](double x) { return 1 / x; }));
  table.Add("log1p", Unary([](double x) { return std::log1p(x); }));
  table.Add("pow", Pointwise([](const Request& r, const std::vector<double>& x) {
              return std::pow(x[0], r.attr<double>("exponent"));
            }));
  table.Add("square", Unary([](double x) { return x * x; }));
  table.Add("tanh", Unary([](double x) { return std::tanh(x); }));
  table.Add("sigmoid", Unary(Sigmoid));
  table.Add("relu", Unary([](double x) { return x > 0 || std::isnan(x) ? x : 0.0; }));
  table.Add("silu", Unary(Silu));
  table.Add("tanh_grad", Grad([](double x) { return 1 - std::tanh(x) * std::tanh(x); }));
  table.Add("sigmoid_grad", Grad([](double x) { return Sigmoid(x) * (1 - Sigmoid(x)); }));
  table.Add("relu_grad", Grad([](double x) { return x > 0 ? 1.0 : 0.0; }));
  table.Add("silu_grad", Grad(SiluGrad));
  auto tanh = [](const Request& r) { return r.attr<std::string>("approximate") == "tanh"; };
  table.Add("gelu", Pointwise([tanh](const Request& r, const std::vector<double>& x) { return Gelu(x[0], tanh(r)); }));
  table.Add("gelu_grad", Pointwise([tanh](const Request& r, const std::vector<double>& x) {
              return GeluGrad(x[0], tanh(r)) * x[1];
            }));
  table.Add("scale",
            Pointwise([](const Request& r, const std::vector<double>& x) { return x[0] * r.attr<double>("factor"); }));
  table.Add("add_scalar",
            Pointwise([](const Request& r, const std::vector<double>& x) { return x[0] + r.attr<double>("value"); }));
  table.Add("clamp", Pointwise([](const Request& r, const std::vector<double>& x) {
              return std::min(std::max(x[0], r.attr<double>("min")), r.attr<double>("max"));
            }));
  table.Add("clamp_grad", Pointwise([](const Request& r, const std::vector<double>& x) {
              return x[0] >= r.attr<double>("min") && x[0] <= r.attr<double>("max") ? x[1] : 0.0;
            }));
  table.Add("cast",
            Pointwise([](const Request& r, const std::vector<double>& x) { return Cast(r.out_types[0].dtype, x[0]); }));
  table.Add("swiglu", Binary([](double gate, double up) { return Silu(gate) * up; }));
  table.Add("swiglu_grad", SwigluGrad);
  table.Add("swiglu_joined", SwigluJoined);
  table.Add("swiglu_joined_grad", SwigluJoinedGrad);
  table.Add("select", Pointwise([](const Request&, const std::vector<double>& x) { return x[0] != 0 ? x[1] : x[2]; }));
}

}  // namespace tacc::interpreter
