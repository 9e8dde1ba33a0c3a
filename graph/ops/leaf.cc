// Leaves and ends: input param read store output constant iota.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/facts.h"

namespace tacc::graph {
namespace {

absl::StatusOr<Types> InferFromShape(const OpCall& call) {
  TensorType type{DTypeAttr(call, DType::kF32), call.attr<std::vector<int64_t>>("shape")};
  for (int64_t d : type.dims) {
    if (d < 0)
      return absl::InvalidArgumentError(absl::StrCat("shape=", DimsToString(type.dims), " has a negative dim"));
  }
  return Types{type};
}

// Every dim is a factor that only the result has: any shard is made on the spot.
absl::StatusOr<Rule> OutputOnlyRule(const OpCall& call) { return PointwiseRule(call, {}); }

OpDef Leaf(const char* name, std::vector<AttrSpec> attrs) {
  OpDef op;
  op.name = name;
  op.attrs = std::move(attrs);
  op.no_gradient = true;
  return op;
}

OpDef End(const char* name) {
  OpDef op;
  op.name = name;
  op.min_operands = op.max_operands = 1;
  op.num_results = 0;
  op.has_side_effect = true;
  op.infer = [](const OpCall&) -> absl::StatusOr<Types> { return Types{}; };
  return op;
}

}  // namespace

void AddLeafOps(OpTable& table) {
  OpDef input =
      Leaf("input", {{"zigzag", AttrKind::kInt, AttrSpec::kOptional},
                     {"axes", AttrKind::kStrings, AttrSpec::kOptional},
                     {"limit", AttrKind::kInt, AttrSpec::kOptional},        // its numbers are below, and not negative
                     {"ignored", AttrKind::kInt, AttrSpec::kOptional},      // but for this one
                     {"default", AttrKind::kFloat, AttrSpec::kOptional}});  // of a scalar that may be left out
  input.positional = true;
  table.Add(input);
  table.Add(Leaf("param", {{"init", AttrKind::kString, AttrSpec::kOptional},
                           {"stored", AttrKind::kInts, AttrSpec::kOptional},
                           {"axes", AttrKind::kStrings, AttrSpec::kOptional},
                           {"learning_rate", AttrKind::kFloat, AttrSpec::kOptional},
                           {"weight_decay", AttrKind::kFloat, AttrSpec::kOptional},
                           {"optim", AttrKind::kString, AttrSpec::kOptional},
                           {"role", AttrKind::kString, AttrSpec::kOptional}}));
  table.Add(Leaf("read", {}));
  OpDef output = End("output");
  output.attrs = {
      {"returned", AttrKind::kBool, AttrSpec::kOptional},     // the model's forward returns it
      {"splittable", AttrKind::kBool, AttrSpec::kOptional}};  // false: a loss of all samples of a step together
  table.Add(output);
  table.Add(End("store"));

  OpDef constant;
  constant.name = "constant";
  constant.attrs = {{"value", AttrKind::kFloat}, {"dtype", AttrKind::kString}, {"shape", AttrKind::kInts}};
  constant.infer = InferFromShape;
  constant.rule = OutputOnlyRule;
  constant.no_gradient = true;
  table.Add(constant);

  OpDef iota;  // the index along `dim`
  iota.name = "iota";
  iota.attrs = {{"dim", AttrKind::kInt}, {"dtype", AttrKind::kString}, {"shape", AttrKind::kInts}};
  iota.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_ASSIGN_OR_RETURN(Types types, InferFromShape(call));
    const int64_t dim = call.attr<int64_t>("dim");
    if (dim < 0 || dim >= types[0].rank())
      return absl::InvalidArgumentError(absl::StrCat("dim=", dim, " of a shape of ", types[0].rank(), " dims"));
    return types;
  };
  iota.rule = OutputOnlyRule;
  iota.no_gradient = true;
  table.Add(iota);
}

}  // namespace tacc::graph
