#include "graph/ops/builder.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tacc::graph {
namespace {

// A short value name for a node: the last component of a symbol, or the op.
std::string Hint(absl::string_view op, absl::string_view symbol) {
  if (symbol.empty()) return std::string(op);
  std::string hint;
  for (char c : symbol) hint += absl::ascii_isalnum(c) || c == '_' || c == '.' ? c : '_';
  return hint;
}

}  // namespace

void Builder::Fail(absl::Status status) {
  if (status_.ok()) status_ = std::move(status);
}

std::vector<ValueId> Builder::AddMany(absl::string_view op, std::vector<ValueId> operands, Attrs attrs, int expected) {
  const std::vector<ValueId> none(expected, kNoValue);
  if (!status_.ok()) return none;
  const OpDef* def = ops_.Find(op);
  if (def == nullptr) {
    Fail(absl::InternalError(absl::StrCat("the builder was asked for an unknown op '", op, "'")));
    return none;
  }
  std::vector<TensorType> types;
  for (ValueId v : operands) {
    if (v == kNoValue) {
      Fail(absl::InternalError(absl::StrCat(op, " at ", module_, ": an operand is missing")));
      return none;
    }
    types.push_back(graph_.type(v));
  }
  auto results = InferTypes(*def, attrs, types);
  if (!results.ok()) {
    Fail(absl::Status(results.status().code(),
                      absl::StrCat(module_.empty() ? "graph" : module_, ": ", results.status().message())));
    return none;
  }
  if (static_cast<int>(results->size()) != expected) {
    Fail(absl::InternalError(absl::StrCat(op, " at ", module_, " has ", results->size(), " results, not ", expected)));
    return none;
  }
  Node node;
  node.op = Op(op);
  node.operands = std::move(operands);
  node.attrs = std::move(attrs);
  node.module = module_;
  node.recompute = recompute_;
  for (TensorType& type : *results) node.results.push_back(graph_.AddValue(op, std::move(type)));
  std::vector<ValueId> ids = node.results;
  graph_.nodes.push_back(std::move(node));
  return ids;
}

ValueId Builder::Add(absl::string_view op, std::vector<ValueId> operands, Attrs attrs) {
  return AddMany(op, std::move(operands), std::move(attrs), 1)[0];
}

ValueId Builder::Leaf(const Op& op, absl::string_view symbol, TensorType type, Attrs attrs) {
  if (!status_.ok()) return kNoValue;
  Node node;
  node.op = op;
  node.symbol = std::string(symbol);
  node.attrs = std::move(attrs);
  node.module = module_;
  node.recompute = recompute_;
  node.results = {graph_.AddValue(Hint(op, symbol), std::move(type))};
  const ValueId id = node.results[0];
  graph_.nodes.push_back(std::move(node));
  return id;
}

void Builder::End(const Op& op, absl::string_view symbol, ValueId value, Attrs attrs) {
  if (!status_.ok()) return;
  if (value == kNoValue) {
    Fail(absl::InternalError(absl::StrCat(op.name(), " \"", symbol, "\": the value is missing")));
    return;
  }
  Node node;
  node.op = op;
  node.symbol = std::string(symbol);
  node.operands = {value};
  node.attrs = std::move(attrs);
  node.module = module_;
  node.recompute = recompute_;
  graph_.nodes.push_back(std::move(node));
}

ValueId Builder::Cast(ValueId x, DType dtype) {
  if (!status_.ok() || type(x).dtype == dtype) return x;
  return Add("cast", {x}, {{"dtype", std::string(Name(dtype))}});
}

ValueId Builder::Reshape(ValueId x, Dims shape) {
  if (!status_.ok() || type(x).dims == shape) return x;
  return Add("reshape", {x}, {{"shape", std::move(shape)}});
}

ValueId Builder::Slice(ValueId x, int64_t dim, int64_t start, int64_t limit) {
  return Add("slice", {x}, {{"dim", dim}, {"start", start}, {"limit", limit}});
}

ValueId Builder::Constant(double value, TensorType type) {
  return Add("constant", {}, {{"value", value}, {"dtype", std::string(Name(type.dtype))}, {"shape", type.dims}});
}

const TensorType& Builder::type(ValueId v) const {
  static const TensorType kUnknown;
  return v == kNoValue ? kUnknown : graph_.type(v);
}

}  // namespace tacc::graph
