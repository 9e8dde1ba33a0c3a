// The one file that includes LibTorch's dispatcher and autograd, which take long to compile.
#include "kernels/cpu/aten_call.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/aten.h"

namespace tacc::kernels::cpu {
namespace {

using c10::IValue;

c10::IntArrayRef DimsOf(const TensorView& view) { return {view.dims.begin(), static_cast<size_t>(view.dims.rank())}; }

at::Tensor TensorOf(const TensorView& view, c10::DeviceType type) {
  const c10::Device device = c10::impl::VirtualGuardImpl(type).getDevice();
  return at::for_blob(view.data, DimsOf(view))
      .options(AtenOptions(view.dtype).device(type))
      .target_device(device)
      .make_tensor();
}

std::optional<int64_t> ScalarTypeOf(const std::string& word) {
  // 16 bits: a graph's floats are f32
  static const std::map<std::string, at::ScalarType> kTypes = {{"bool", at::kBool},
                                                               {"uint8", at::kByte},
                                                               {"int8", at::kChar},
                                                               {"int16", at::kShort},
                                                               {"int32", at::kInt},
                                                               {"int64", at::kLong},
                                                               {"bfloat16", at::kFloat},
                                                               {"float16", at::kFloat},
                                                               {"float32", at::kFloat},
                                                               {"float64", at::kDouble},
                                                               {"complex32", at::kComplexFloat},
                                                               {"complex64", at::kComplexFloat},
                                                               {"complex128", at::kComplexDouble}};
  const auto it = kTypes.find(word);
  return it == kTypes.end() ? std::nullopt : std::optional<int64_t>(static_cast<int64_t>(it->second));
}

std::optional<int64_t> WordAsInt(const std::string& word) {
  static const std::map<std::string, int64_t> kWords = {
      {"strided", static_cast<int64_t>(at::Layout::Strided)},
      {"contiguous_format", static_cast<int64_t>(at::MemoryFormat::Contiguous)},
      {"preserve_format", static_cast<int64_t>(at::MemoryFormat::Preserve)},
      {"channels_last", static_cast<int64_t>(at::MemoryFormat::ChannelsLast)}};
  const auto it = kWords.find(word);
  return it != kWords.end() ? std::optional<int64_t>(it->second) : ScalarTypeOf(word);
}

// The items of "[a,[b,c]]": "a", "[b,c]".
std::vector<std::string> ItemsOf(const std::string& list) {
  std::vector<std::string> items;
  int depth = 0;
  for (size_t i = 1; i + 1 < list.size(); ++i) {
    depth += list[i] == '[' ? 1 : list[i] == ']' ? -1 : 0;
    if (items.empty()) items.emplace_back();
    if (list[i] == ',' && depth == 0) {
      items.emplace_back();
    } else {
      items.back() += list[i];
    }
  }
  return items;
}

// Complex numbers are pairs of real ones in a graph, in a last dim that LibTorch's tensors have not.
at::Tensor ComplexOf(const at::Tensor& pairs) { return pairs.defined() ? at::view_as_complex(pairs) : pairs; }
at::Tensor PairsOf(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.resolve_conj()) : tensor;
}

struct Tensors {
  std::vector<at::Tensor> operands, results;  // results: of a call that writes them itself
};

// Arguments in text as values of the schema's types. Errors: a std::runtime_error that says which.
class Arguments {
 public:
  Arguments(const AtenCall& call, c10::DeviceType device) : call_(call), device_(device) {}

  IValue Value(const std::string& text, const c10::TypePtr& type, const Tensors& tensors) const {
    using Kind = c10::TypeKind;
    switch (type->kind()) {
      case Kind::OptionalType:
        return text == "none" ? IValue() : Value(text, type->castRaw<c10::OptionalType>()->getElementType(), tensors);
      case Kind::ListType:
        return List(text, type->castRaw<c10::ListType>()->getElementType(), tensors);
      case Kind::TensorType:
        if (text[0] == '%') return tensors.operands.at(IndexOf(text));
        if (absl::StartsWith(text, "i%")) return ComplexOf(tensors.operands.at(IndexOf(text.substr(1))));
        if (text[0] == '@') return tensors.results.at(IndexOf(text));
        break;
      case Kind::NumberType:
        if (text == "true" || text == "false") return text == "true";
        if (text[0] == '#') return Int(text);
        return Float(text);
      case Kind::IntType:
      case Kind::SymIntType:
      case Kind::ScalarTypeType:
      case Kind::LayoutType:
      case Kind::MemoryFormatType:
        return Int(text);
      case Kind::FloatType:
        return text[0] == '#' ? static_cast<double>(Int(text)) : Float(text);
      case Kind::BoolType:
        if (text == "true" || text == "false") return text == "true";
        if (text[0] == '#') return Int(text) != 0;
        break;
      case Kind::StringType:
        return text;
      case Kind::DeviceObjType:
        return c10::impl::VirtualGuardImpl(device_).getDevice();
      default:
        break;
    }
    throw std::runtime_error(absl::StrCat("argument \"", text, "\"; wanted ", type->str()));
  }

 private:
  size_t IndexOf(const std::string& text) const {
    size_t index = 0;
    if (!absl::SimpleAtoi(text.substr(1), &index))
      throw std::runtime_error(absl::StrCat("argument \"", text, "\"; wanted a number behind ", text.substr(0, 1)));
    return index;
  }
  int64_t Int(const std::string& text) const {
    if (text[0] == '#') return call_.ints.at(IndexOf(text));
    const std::optional<int64_t> named = WordAsInt(text);
    if (named.has_value()) return *named;
    throw std::runtime_error(absl::StrCat("argument \"", text, "\"; wanted #N, or the name of a dtype or a format"));
  }
  static double Float(const std::string& text) {
    double value = 0;
    if (absl::SimpleAtod(text, &value)) return value;
    throw std::runtime_error(absl::StrCat("argument \"", text, "\"; wanted a number"));
  }
  IValue List(const std::string& text, const c10::TypePtr& element, const Tensors& tensors) const {
    if (text.size() < 2 || text[0] != '[') {
      throw std::runtime_error(absl::StrCat("argument \"", text, "\"; wanted a list in brackets"));
    }
    c10::impl::GenericList list(element);
    for (const std::string& item : ItemsOf(text)) list.push_back(Value(item, element, tensors));
    return list;
  }

  const AtenCall& call_;
  c10::DeviceType device_;
};

// While it lives, LibTorch takes deterministic algorithms where it has them; and no others where it was told so before.
class Deterministic {
 public:
  Deterministic() : was_set_(at::globalContext().deterministicAlgorithms()) {
    if (!was_set_) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
  ~Deterministic() {
    if (!was_set_) at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
  }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;

 private:
  const bool was_set_;
};

class Kernel : public AtenKernel {
 public:
  Kernel(AtenCall call, c10::OperatorHandle op, c10::DeviceType device)
      : call_(std::move(call)), op_(std::move(op)), device_(device) {}

  // Whether the arguments are the schema's. Throws what is wrong.
  void Check(size_t num_operands, size_t num_results) const {
    const auto& wanted = op_.schema().arguments();
    if (call_.args.size() > wanted.size()) {
      throw std::runtime_error(absl::StrCat(call_.args.size(), " arguments; its schema has ", wanted.size()));
    }
    for (size_t i = call_.args.size(); i < wanted.size(); ++i) {
      if (!wanted[i].default_value().has_value())
        throw std::runtime_error(absl::StrCat("the argument ", wanted[i].name(), " is missing"));
    }
    Stack({std::vector<at::Tensor>(num_operands), std::vector<at::Tensor>(num_results)});
  }

  void Run(const std::vector<TensorView>& in, const std::vector<TensorView>& out) const override {
    const at::NoGradGuard no_grad;
    if (op_.schema().is_mutable()) {
      Tensors tensors;
      for (const TensorView& view : in) tensors.operands.push_back(TensorOf(view, device_));
      for (const TensorView& view : out) tensors.results.push_back(TensorOf(view, device_));
      std::vector<IValue> stack = Stack(tensors);
      return op_.callBoxed(&stack);
    }
    const Deterministic deterministic;
    const std::vector<at::Tensor> made = Call({Operands(in), {}});
    if (made.size() != out.size())
      throw std::runtime_error(absl::StrCat(call_.schema, " has ", made.size(), " results, not ", out.size()));
    for (size_t i = 0; i < out.size(); ++i) Put(made[i], out[i]);
  }

  void RunDerivative(const AtenDerivative& derivative, const std::vector<TensorView>& in,
                     const std::vector<TensorView>& cotangents, const std::vector<TensorView>& out) const override {
    const Deterministic deterministic;
    const at::AutoGradMode with_grad(true);
    std::vector<at::Tensor> operands = Operands(in);
    std::vector<at::Tensor> sources, results, seeds;
    for (const int64_t i : derivative.needed) {
      operands[i] = operands[i].detach().requires_grad_();
      sources.push_back(operands[i]);
    }
    const std::vector<at::Tensor> made = Call({operands, {}});
    for (size_t i = 0; i < derivative.given.size(); ++i) {
      const at::Tensor& result = made.at(derivative.given[i]);
      if (!result.requires_grad()) continue;
      results.push_back(result);
      seeds.push_back(TensorOf(cotangents[i], device_).to(result.scalar_type()));
    }
    std::vector<at::Tensor> gradients(sources.size());
    if (!results.empty()) {
      gradients = torch::autograd::grad(results, sources, seeds, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                                        /*allow_unused=*/true);
    }
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < out.size(); ++i) {
      Put(gradients[i].defined() ? gradients[i] : at::zeros_like(sources[i].detach()), out[i]);
    }
  }

 private:
  std::vector<at::Tensor> Operands(const std::vector<TensorView>& in) const {
    std::vector<at::Tensor> tensors;
    for (const TensorView& view : in) {
      at::Tensor tensor = TensorOf(view, device_);
      const bool is_half = view.dtype == DType::kBF16 || view.dtype == DType::kF16;
      tensors.push_back(is_half ? tensor.to(at::kFloat) : std::move(tensor));
    }
    return tensors;
  }

  std::vector<IValue> Stack(const Tensors& tensors) const {
    const auto& wanted = op_.schema().arguments();
    const Arguments arguments(call_, device_);
    std::vector<IValue> stack;
    for (size_t i = 0; i < wanted.size(); ++i) {
      stack.push_back(i < call_.args.size() ? arguments.Value(call_.args[i], wanted[i].real_type(), tensors)
                                            : *wanted[i].default_value());
    }
    return stack;
  }

  // Its results, complex ones as pairs; of a list, its items.
  std::vector<at::Tensor> Call(const Tensors& tensors) const {
    std::vector<IValue> stack = Stack(tensors);
    op_.callBoxed(&stack);
    std::vector<at::Tensor> results;
    for (const IValue& value : stack) {
      if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) results.push_back(PairsOf(tensor));
      } else {
        results.push_back(PairsOf(value.toTensor()));
      }
    }
    return results;
  }

  void Put(const at::Tensor& from, const TensorView& to) const {
    if (from.sizes() != DimsOf(to)) {
      throw std::runtime_error(absl::StrCat(call_.schema, " made a tensor of ", from.dim(), " dims and ", from.numel(),
                                            " elements; the graph says ", to.dims.rank(), " dims and ", to.size(),
                                            " elements"));
    }
    TensorOf(to, device_).copy_(from);
  }

  AtenCall call_;
  c10::OperatorHandle op_;
  c10::DeviceType device_;
};

// One more than the largest number behind the mark.
size_t NumNamed(const AtenCall& call, char mark) {
  size_t number = 0;
  for (const std::string& arg : call.args) {
    for (size_t at = arg.find(mark); at != std::string::npos; at = arg.find(mark, at + 1)) {
      size_t index = 0;
      if (absl::SimpleAtoi(arg.substr(at + 1, arg.find_first_of(",]", at) - at - 1), &index))
        number = std::max(number, index + 1);
    }
  }
  return number;
}

absl::StatusOr<std::shared_ptr<const AtenKernel>> PrepareAten(const AtenCall& call) {
  return PrepareAtenOn(c10::DeviceType::CPU, call);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const AtenKernel>> PrepareAtenOn(c10::DeviceType device, const AtenCall& call) {
  const size_t dot = call.schema.find('.', call.schema.find("::"));
  const std::string overload = dot == std::string::npos ? "" : call.schema.substr(dot + 1);
  const auto op = c10::Dispatcher::singleton().findSchema(
      {call.schema.substr(0, dot), overload == "default" ? std::string() : overload});
  if (!op.has_value()) {
    return absl::NotFoundError(absl::StrCat("LibTorch has no operator ", call.schema));
  }
  if (op->schema().is_mutable() && NumNamed(call, '@') == 0)
    return absl::InvalidArgumentError(absl::StrCat(call.schema, " changes its operands, which no node may do"));
  if (op->hasTag(at::Tag::nondeterministic_seeded))
    return absl::InvalidArgumentError(
        absl::StrCat(call.schema, " draws random numbers; use the ops random and dropout"));
  auto kernel = std::make_shared<const Kernel>(call, *op, device);
  try {
    kernel->Check(NumNamed(call, '%'), NumNamed(call, '@'));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(call.schema, ": ", error.what()));
  }
  return kernel;
}

std::vector<std::string> OperatorNames() {
  std::set<std::string> names;  // Without overloads.
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) names.insert(op.name);
  return {names.begin(), names.end()};
}

const AtenKernels kAten = {
    .PrepareAten = PrepareAten,
};

}  // namespace tacc::kernels::cpu
