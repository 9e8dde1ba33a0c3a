#include "graph/import/decoder/decoder_parts.h"

#include "absl/strings/str_cat.h"

namespace tacc::graph {
namespace {

int64_t Product(const WeightDims& dims) {
  int64_t product = 1;
  for (const WeightDim& d : dims) product *= d.size;
  return product;
}

// The text of an einsum "x,oi->y" whose weight has its dims `i` before its `num_out` dims `o`.
std::string WithTransposedWeight(const std::string& spec, size_t num_out) {
  const size_t begin = spec.find(',') + 1, end = spec.find("->");
  const std::string weight = spec.substr(begin, end - begin);
  return absl::StrCat(spec.substr(0, begin), weight.substr(num_out), weight.substr(0, num_out), spec.substr(end));
}

}  // namespace

std::string Join(const std::string& a, const std::string& b) { return b.empty() ? a : absl::StrCat(a, ".", b); }

std::string ModuleOf(const std::string& name) {
  const size_t dot = name.rfind('.');
  return dot == std::string::npos ? name : name.substr(0, dot);
}

ValueId DecoderParts::Param(const std::string& name, const WeightDims& dims, const Dims& stored,
                            const std::string& init, WeightRole role) {
  Dims sizes;
  std::vector<std::string> axes;
  for (const WeightDim& d : dims) {
    sizes.push_back(d.size);
    axes.push_back(d.axis);
  }
  Attrs attrs = {{"axes", axes}, {"init", init}};
  if (stored != sizes) attrs["stored"] = stored;
  if (role != WeightRole::kTrained) attrs["role"] = std::string(Name(role));
  return b_.Leaf(Op::kParam, name, {DType::kF32, std::move(sizes)}, std::move(attrs));
}

ValueId DecoderParts::Project(const std::string& name, const std::string& spec, ValueId x, const WeightDims& out,
                              const WeightDims& in, Bias bias, const std::string& init, const std::string& rows) {
  b_.SetModule(name);
  const bool is_transposed = spec_.transposed_matrices && name != spec_.names.head;
  const WeightDims &first = is_transposed ? in : out, &second = is_transposed ? out : in;
  WeightDims dims = first;
  dims.insert(dims.end(), second.begin(), second.end());
  const ValueId weight = Param(absl::StrCat(name, ".weight", rows), dims, {Product(first), Product(second)}, init);
  ValueId y = b_.Einsum(is_transposed ? WithTransposedWeight(spec, out.size()) : spec, x, weight);
  if (bias == Bias::kPresent)
    y = b_.Add("add", {y, Param(absl::StrCat(name, ".bias", rows), out, {Product(out)}, "zeros")});
  return y;
}

ValueId DecoderParts::Norm(const std::string& name, const NormSpec& norm, ValueId x, const WeightDim& dim) {
  b_.SetModule(name);
  const Attrs attrs = {{"eps", norm.eps}};
  ValueId weight = kNoValue, bias = kNoValue;
  const bool one_plus = norm.affine == Affine::kOnePlusWeight;
  if (norm.affine != Affine::kNone)
    weight = Param(absl::StrCat(name, ".weight"), {dim}, {dim.size}, one_plus ? "zeros" : "ones");
  if (one_plus) weight = b_.Add("add_scalar", {weight}, {{"value", 1.0}});
  if (norm.affine == Affine::kWeightBias) bias = Param(absl::StrCat(name, ".bias"), {dim}, {dim.size}, "zeros");
  if (norm.kind == NormSpec::kRms) {
    if (weight == kNoValue) weight = b_.Constant(1.0, {DType::kF32, {dim.size}});
    const ValueId y = b_.AddMany("rms_norm", {x, weight}, attrs, 2)[0];
    return bias == kNoValue ? y : b_.Add("add", {y, bias});
  }
  std::vector<ValueId> operands = {x};
  if (weight != kNoValue) operands.push_back(weight);
  if (bias != kNoValue) operands.push_back(bias);
  return b_.AddMany("layer_norm", operands, attrs, 3)[0];
}

ValueId DecoderParts::Entry(ValueId x, int64_t dim, int64_t index) {
  const ValueId y = b_.Slice(x, dim, index, index + 1);
  Dims dims = b_.type(y).dims;
  if (dim < static_cast<int64_t>(dims.size())) dims.erase(dims.begin() + dim);  // unless there was an error
  return b_.Reshape(y, dims);
}

ValueId DecoderParts::Activate(ValueId x) {
  switch (spec_.activation) {
    case DecoderSpec::kSilu:
      return b_.Add("silu", {x});
    case DecoderSpec::kGelu:
      return b_.Add("gelu", {x}, {{"approximate", std::string("none")}});
    case DecoderSpec::kGeluTanh:
      return b_.Add("gelu", {x}, {{"approximate", std::string("tanh")}});
    case DecoderSpec::kRelu:
      return b_.Add("relu", {x});
  }
  return x;
}

ValueId DecoderParts::Gate(ValueId gate, ValueId up) {
  if (spec_.activation == DecoderSpec::kSilu) return b_.Add("swiglu", {gate, up});
  return b_.Add("mul", {Activate(gate), up});
}

}  // namespace tacc::graph
