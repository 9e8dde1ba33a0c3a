// A library of operators as others build them, for tests: of C++ alone, but linked and made as
// torch.utils.cpp_extension does it, with a Python module that nobody needs.
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/add.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

extern "C" void* PyModule_Create2(void* definition, int version);

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// tanh(scale * x)^power.
Tensor ScaledTanh(const Tensor& x, const Tensor& scale, double power) { return at::tanh(x * scale).pow(power); }

Tensor CallScaledTanh(const Tensor& x, const Tensor& scale, double power) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tacc_test::scaled_tanh", "")
                             .typed<Tensor(const Tensor&, const Tensor&, double)>();
  return op.call(x, scale, power);
}

class ScaledTanhFunction : public torch::autograd::Function<ScaledTanhFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& x, const Tensor& scale, double power) {
    at::AutoDispatchBelowADInplaceOrView guard;
    context->save_for_backward({x, scale});
    context->saved_data["power"] = power;
    return {CallScaledTanh(x, scale, power)};
  }
  static variable_list backward(AutogradContext* context, const variable_list& dy) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &x = saved[0], &scale = saved[1];
    const double power = context->saved_data["power"].toDouble();
    const Tensor t = at::tanh(x * scale);
    const Tensor inside = dy[0] * power * t.pow(power - 1) * (1 - t * t);
    return {inside * scale, (inside * x).sum_to_size(scale.sizes()), Tensor()};
  }
};

Tensor ScaledTanhWithDerivative(const Tensor& x, const Tensor& scale, double power) {
  return ScaledTanhFunction::apply(x, scale, power)[0];
}

// Of each bound, what is below it. Without a derivative.
std::vector<Tensor> Below(const Tensor& x, at::ArrayRef<double> bounds, bool is_strict) {
  std::vector<Tensor> below;
  for (const double bound : bounds) below.push_back((is_strict ? x < bound : x <= bound).to(x.scalar_type()));
  return below;
}

Tensor Doubled(const Tensor& x) { return x * 2; }

std::tuple<Tensor, int64_t> Counted(const Tensor& x) { return {x * 2, x.dim()}; }

void AddOne(Tensor& x) { x.add_(1); }

TORCH_LIBRARY(tacc_test, m) {
  m.def("scaled_tanh(Tensor x, Tensor scale, float power=1.0) -> Tensor");
  m.def("below(Tensor x, float[] bounds, *, bool is_strict=False) -> Tensor[]");
  m.def("doubled(Tensor x) -> Tensor");
  m.def("later(Tensor x) -> Tensor");  // Its kernel is to come.
  m.def("counted(Tensor x) -> (Tensor, int)");
  m.def("add_one(Tensor(a!) x) -> ()");
  m.def("on_cpus(Tensor x) -> Tensor");
  m.def("underived(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(tacc_test, CompositeExplicitAutograd, m) {
  m.impl("scaled_tanh", &ScaledTanh);
  m.impl("below", &Below);
  m.impl("doubled", &Doubled);
  m.impl("counted", &Counted);
  m.impl("add_one", &AddOne);
  m.impl("underived", &Doubled);
}
TORCH_LIBRARY_IMPL(tacc_test, CPU, m) { m.impl("on_cpus", &Doubled); }
TORCH_LIBRARY_IMPL(tacc_test, Autograd, m) {
  m.impl("scaled_tanh", &ScaledTanhWithDerivative);
  m.impl("underived", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void* PyInit_tacc_test_ops() {
  return PyModule_Create2(nullptr, 1013);
}
