#include "graph/ops/facts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "graph/ops/builder.h"

namespace tacc::graph {

absl::Status Wanted(absl::string_view name, const TensorType& type, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", type.ToString(), "; wanted ", wanted));
}

absl::Status WantFloating(absl::string_view name, const TensorType& type) {
  return IsFloating(type.dtype) ? absl::OkStatus() : Wanted(name, type, "bf16, f16, f32 or f64 elements");
}

absl::Status WantFloatingScalar(absl::string_view name, const TensorType& type) {
  return IsFloating(type.dtype) && type.rank() == 0 ? absl::OkStatus() : Wanted(name, type, "a floating scalar");
}

absl::Status WantDims(absl::string_view name, const TensorType& type, const Dims& dims) {
  return type.dims == dims ? absl::OkStatus() : Wanted(name, type, absl::StrCat("dims ", DimsToString(dims)));
}

absl::Status WantType(absl::string_view name, const TensorType& type, const TensorType& wanted) {
  return type == wanted ? absl::OkStatus() : Wanted(name, type, wanted.ToString());
}

absl::Status WantLastDims(absl::string_view name, const TensorType& type, absl::string_view of_name, const Dims& of) {
  if (type.dims.size() <= of.size() && std::equal(type.dims.rbegin(), type.dims.rend(), of.rbegin())) {
    return absl::OkStatus();
  }
  return Wanted(name, type, absl::StrCat("the dims of ", of_name, ", ", DimsToString(of), ", or the last of them"));
}

absl::Status WantRank(absl::string_view name, const TensorType& type, int rank) {
  return type.rank() == rank ? absl::OkStatus() : Wanted(name, type, absl::StrCat(rank, " dims"));
}

DType DTypeAttr(const OpCall& call, DType fallback) {
  const std::string name = call.attr<std::string>("dtype");
  return name.empty() ? fallback : ParseDType(name).value_or(fallback);
}

DType Promote(DType a, DType b) {
  if (a == DType::kF64 || b == DType::kF64) return DType::kF64;
  if (a == DType::kF32 || b == DType::kF32) return DType::kF32;
  return a;
}

Rule PointwiseRule(const OpCall& call, std::vector<std::vector<int>> linear_in) {
  Rule rule;
  const std::vector<int> all = AddFactors(rule, call.out(0).dims);
  auto trailing = [&](const TensorType& type) { return std::vector<int>(all.end() - type.rank(), all.end()); };
  for (const TensorType& type : call.operands) rule.in.push_back(trailing(type));
  for (const TensorType& type : call.results) rule.out.push_back(trailing(type));
  rule.linear_in = std::move(linear_in);
  return rule;
}

std::vector<int> AddFactors(Rule& rule, const Dims& dims) {
  std::vector<int> factors;
  for (int64_t d : dims) factors.push_back(rule.AddFactor(d));
  return factors;
}

std::vector<int> Leading(std::vector<int> list) {
  list.pop_back();
  return list;
}

std::function<std::vector<int>(const OpCall&)> ReuseIfSameType(int operand) {
  return [operand](const OpCall& call) { return std::vector<int>{call.in(operand) == call.out(0) ? operand : -1}; };
}

absl::Status NoCotangent(const VjpCall& call, int result, absl::string_view name) {
  if (call.cotangents[result] == kNoValue) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(call.node.op.name(), " at ",
                                               call.node.module.empty() ? "the top level" : call.node.module,
                                               ": the loss depends on its result ", name, ", which has no derivative"));
}

absl::Status CheckZigzag(const OpCall& call, int64_t length) {
  const int64_t n = call.attr<int64_t>("zigzag");
  if (n >= 0 && (n <= 1 || length % (2 * n) == 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("zigzag=", n, "; wanted a number of blocks whose double divides the ", length, " positions"));
}

}  // namespace tacc::graph
