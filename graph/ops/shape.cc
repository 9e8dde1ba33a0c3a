// Ops that move elements, and reductions: reshape stop_gradient transpose slice concat pad broadcast reduce_sum
// reduce_max.
#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"
#include "graph/ops/target.h"

namespace tacc::graph {
namespace {

using Ints = std::vector<int64_t>;

absl::Status CheckDim(absl::string_view name, int64_t dim, const TensorType& x) {
  if (dim >= 0 && dim < x.rank()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, "=", dim, " of ", x.ToString(), "; wanted 0 to ", x.rank() - 1));
}

// Ascending, each a dim of `type`.
absl::Status CheckDimList(const Ints& dims, const TensorType& type) {
  for (size_t i = 0; i < dims.size(); ++i) {
    TACC_RETURN_IF_ERROR(CheckDim(absl::StrCat("dims[", i, "]"), dims[i], type));
    if (i > 0 && dims[i] <= dims[i - 1])
      return absl::InvalidArgumentError(absl::StrCat("dims=", DimsToString(dims), " must ascend"));
  }
  return absl::OkStatus();
}

Ints DimsNotIn(const Ints& dims, int rank) {
  Ints rest;
  for (int64_t i = 0; i < rank; ++i) {
    if (std::find(dims.begin(), dims.end(), i) == dims.end()) rest.push_back(i);
  }
  return rest;
}

// One factor per dim, except that `whole` may not be split.
Rule AllButOneRule(const OpCall& call, int64_t whole, std::vector<std::vector<int>> linear_in) {
  Rule rule = PointwiseRule(call, std::move(linear_in));
  for (auto* side : {&rule.in, &rule.out}) {
    for (std::vector<int>& dims : *side) dims[whole] = Rule::kNone;
  }
  return rule;
}

void AddReshape(OpTable& table) {
  OpDef op;
  op.name = "reshape";
  op.min_operands = op.max_operands = 1;
  op.attrs = {{"shape", AttrKind::kInts}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TensorType y{call.in(0).dtype, call.attr<Ints>("shape")};
    const bool negative = std::any_of(y.dims.begin(), y.dims.end(), [](int64_t d) { return d < 0; });
    if (negative || y.num_elements() != call.in(0).num_elements()) {
      return absl::InvalidArgumentError(absl::StrCat("shape=", DimsToString(y.dims), " of x, ", call.in(0).ToString(),
                                                     ": the numbers of elements differ"));
    }
    return Types{y};
  };
  // Dims pair up in groups of equal products. A dim alone in its group keeps its sharding; where dims merge or split
  // the leading one does, if it is cut evenly.
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    const Dims& x = call.in(0).dims;
    const Dims& y = call.out(0).dims;
    Rule rule;
    rule.in = {std::vector<int>(x.size(), Rule::kNone)};
    rule.out = {std::vector<int>(y.size(), Rule::kNone)};
    rule.linear_in = {{0}};
    if (call.in(0).num_elements() == 0) return rule;
    size_t i = 0, j = 0;
    while (true) {
      while (i < x.size() && x[i] == 1) ++i;
      while (j < y.size() && y[j] == 1) ++j;
      if (i == x.size() || j == y.size()) return rule;
      const size_t first_i = i, first_j = j;
      int64_t product_x = x[i++], product_y = y[j++];
      while (product_x != product_y) {
        if (product_x < product_y) {
          product_x *= x[i++];
        } else {
          product_y *= y[j++];
        }
      }
      const bool alone = x[first_i] == y[first_j];
      const int64_t size = std::gcd(x[first_i], y[first_j]);
      if (size == 1) continue;
      const int factor = rule.AddFactor(size);
      rule.factors[factor].even = !alone;
      rule.in[0][first_i] = factor;
      rule.out[0][first_j] = factor;
    }
  };
  op.aliases = [](const OpCall&) { return std::vector<int>{0}; };
  op.derive = [](VjpCall& call) {
    call.gradients[0] = call.builder.Reshape(call.cotangents[0], call.builder.type(call.node.operands[0]).dims);
    return absl::OkStatus();
  };
  table.Add(op);
}

// Its operand, to which no gradient goes.
void AddStopGradient(OpTable& table) {
  OpDef op;
  op.name = "stop_gradient";
  op.min_operands = op.max_operands = 1;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> { return Types{call.in(0)}; };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return PointwiseRule(call, {{0}}); };
  op.aliases = [](const OpCall&) { return std::vector<int>{0}; };
  op.no_gradient = true;
  table.Add(op);
}

void AddTranspose(OpTable& table) {
  OpDef op;
  op.name = "transpose";
  op.min_operands = op.max_operands = 1;
  op.attrs = {{"perm", AttrKind::kInts}};  // perm[i]: the dim of x that becomes dim i
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const Ints perm = call.attr<Ints>("perm");
    Ints sorted = perm;
    std::sort(sorted.begin(), sorted.end());
    Ints all(call.in(0).rank());
    std::iota(all.begin(), all.end(), 0);
    if (sorted != all) {
      return absl::InvalidArgumentError(
          absl::StrCat("perm=", DimsToString(perm), " is no permutation of the ", all.size(), " dims of x"));
    }
    TensorType y{call.in(0).dtype, {}};
    for (int64_t p : perm) y.dims.push_back(call.in(0).dims[p]);
    return Types{y};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    const std::vector<int> factors = AddFactors(rule, call.in(0).dims);
    rule.in = {factors};
    rule.out = {{}};
    for (int64_t p : call.attr<Ints>("perm")) rule.out[0].push_back(factors[p]);
    rule.linear_in = {{0}};
    return rule;
  };
  op.derive = [](VjpCall& call) {
    const Ints perm = GetAttr<Ints>(call.node.attrs, "perm");
    Ints inverse(perm.size());
    for (size_t i = 0; i < perm.size(); ++i) inverse[perm[i]] = static_cast<int64_t>(i);
    call.gradients[0] = call.builder.Add("transpose", {call.cotangents[0]}, {{"perm", inverse}});
    return absl::OkStatus();
  };
  table.Add(op);
}

void AddSlice(OpTable& table) {
  OpDef op;
  op.name = "slice";
  op.min_operands = op.max_operands = 1;
  op.attrs = {{"dim", AttrKind::kInt}, {"start", AttrKind::kInt}, {"limit", AttrKind::kInt}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const int64_t dim = call.attr<int64_t>("dim"), start = call.attr<int64_t>("start"),
                  limit = call.attr<int64_t>("limit");
    TensorType y = call.in(0);
    TACC_RETURN_IF_ERROR(CheckDim("dim", dim, y));
    if (start < 0 || limit < start || limit > y.dims[dim]) {
      return absl::InvalidArgumentError(
          absl::StrCat("start=", start, " limit=", limit, " of dim ", dim, ", which has ", y.dims[dim], " elements"));
    }
    y.dims[dim] = limit - start;
    return Types{y};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    return AllButOneRule(call, call.attr<int64_t>("dim"), {{0}});
  };
  // Contiguous when nothing before the dim is larger than 1.
  op.aliases = [](const OpCall& call) {
    const auto begin = call.in(0).dims.begin();
    const bool contiguous = std::all_of(begin, begin + call.attr<int64_t>("dim"), [](int64_t d) { return d == 1; });
    return contiguous ? std::vector<int>{0} : std::vector<int>{};
  };
  op.alias_offset_bytes = [](const OpCall& call) {
    const int64_t dim = call.attr<int64_t>("dim");
    int64_t row = ByteSize(call.in(0).dtype);
    for (int i = static_cast<int>(dim) + 1; i < call.in(0).rank(); ++i) row *= call.in(0).dims[i];
    return row * call.attr<int64_t>("start");
  };
  op.derive = [](VjpCall& call) {
    const Attrs& attrs = call.node.attrs;
    const int64_t dim = GetAttr<int64_t>(attrs, "dim");
    const int64_t extent = call.builder.type(call.node.operands[0]).dims[dim];
    call.gradients[0] = call.builder.Add(
        "pad", {call.cotangents[0]},
        {{"dim", dim}, {"low", GetAttr<int64_t>(attrs, "start")}, {"high", extent - GetAttr<int64_t>(attrs, "limit")}});
    return absl::OkStatus();
  };
  table.Add(op);
}

void AddPad(OpTable& table) {
  OpDef op;
  op.name = "pad";
  op.min_operands = op.max_operands = 1;
  op.attrs = {{"dim", AttrKind::kInt}, {"low", AttrKind::kInt}, {"high", AttrKind::kInt}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const int64_t dim = call.attr<int64_t>("dim"), low = call.attr<int64_t>("low"), high = call.attr<int64_t>("high");
    TensorType y = call.in(0);
    TACC_RETURN_IF_ERROR(CheckDim("dim", dim, y));
    if (low < 0 || high < 0)
      return absl::InvalidArgumentError(absl::StrCat("low=", low, " high=", high, "; wanted 0 or more"));
    constexpr int64_t kMax = int64_t{1} << 50;
    if (low > kMax || high > kMax) {
      return absl::InvalidArgumentError(absl::StrCat("low=", low, " high=", high, " is too large"));
    }
    y.dims[dim] += low + high;
    return Types{y};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    return AllButOneRule(call, call.attr<int64_t>("dim"), {{0}});
  };
  op.derive = [](VjpCall& call) {
    const int64_t dim = GetAttr<int64_t>(call.node.attrs, "dim"), low = GetAttr<int64_t>(call.node.attrs, "low");
    const int64_t extent = call.builder.type(call.node.operands[0]).dims[dim];
    call.gradients[0] = call.builder.Slice(call.cotangents[0], dim, low, low + extent);
    return absl::OkStatus();
  };
  table.Add(op);
}

void AddConcat(OpTable& table) {
  OpDef op;
  op.name = "concat";
  op.min_operands = 1;
  op.max_operands = -1;
  op.attrs = {{"dim", AttrKind::kInt}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const int64_t dim = call.attr<int64_t>("dim");
    TensorType y = call.in(0);
    TACC_RETURN_IF_ERROR(CheckDim("dim", dim, y));
    for (size_t i = 1; i < call.operands.size(); ++i) {
      const TensorType& x = call.operands[i];
      TensorType wanted = call.in(0);
      if (x.rank() == wanted.rank()) wanted.dims[dim] = x.dims[dim];
      TACC_RETURN_IF_ERROR(WantType(absl::StrCat("operand ", i), x, wanted));
      y.dims[dim] += x.dims[dim];
    }
    return Types{y};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    std::vector<int> all(call.operands.size());
    std::iota(all.begin(), all.end(), 0);
    return AllButOneRule(call, call.attr<int64_t>("dim"), {all});
  };
  op.derive = [](VjpCall& call) {
    const int64_t dim = GetAttr<int64_t>(call.node.attrs, "dim");
    int64_t start = 0;
    for (size_t i = 0; i < call.node.operands.size(); ++i) {
      const int64_t limit = start + call.builder.type(call.node.operands[i]).dims[dim];
      if (call.needs(static_cast<int>(i)))
        call.gradients[i] = call.builder.Slice(call.cotangents[0], dim, start, limit);
      start = limit;
    }
    return absl::OkStatus();
  };
  table.Add(op);
}

void AddBroadcast(OpTable& table) {
  OpDef op;
  op.name = "broadcast";
  op.min_operands = op.max_operands = 1;
  op.attrs = {{"shape", AttrKind::kInts}, {"dims", AttrKind::kInts}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType y{call.in(0).dtype, call.attr<Ints>("shape")};
    const Ints dims = call.attr<Ints>("dims");
    TACC_RETURN_IF_ERROR(CheckDimList(dims, y));
    Dims kept;
    for (int64_t d : dims) kept.push_back(y.dims[d]);
    TACC_RETURN_IF_ERROR(WantDims("x", call.in(0), kept));
    return Types{y};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    rule.out = {AddFactors(rule, call.out(0).dims)};
    rule.in = {{}};
    for (int64_t d : call.attr<Ints>("dims")) rule.in[0].push_back(rule.out[0][d]);
    rule.linear_in = {{0}};
    return rule;
  };
  op.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    const Ints dims = DimsNotIn(GetAttr<Ints>(call.node.attrs, "dims"), b.type(call.node.results[0]).rank());
    call.gradients[0] = dims.empty() ? call.cotangents[0] : b.Add("reduce_sum", {call.cotangents[0]}, {{"dims", dims}});
    return absl::OkStatus();
  };
  table.Add(op);
}

OpDef Reduction(const char* name) {
  OpDef op;
  op.name = name;
  op.min_operands = op.max_operands = 1;
  op.attrs = {{"dims", AttrKind::kInts}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType& x = call.in(0);
    TACC_RETURN_IF_ERROR(WantFloating("x", x));
    const Ints dims = call.attr<Ints>("dims");
    TACC_RETURN_IF_ERROR(CheckDimList(dims, x));
    TensorType y{DTypeAttr(call, x.dtype), {}};
    for (int64_t d : DimsNotIn(dims, x.rank())) y.dims.push_back(x.dims[d]);
    TACC_RETURN_IF_ERROR(WantFloating("y", y));
    return Types{y};
  };
  return op;
}

Rule ReductionRule(const OpCall& call) {
  Rule rule;
  rule.in = {AddFactors(rule, call.in(0).dims)};
  rule.out = {{}};
  for (int64_t d : DimsNotIn(call.attr<Ints>("dims"), call.in(0).rank())) rule.out[0].push_back(rule.in[0][d]);
  return rule;
}

// dy [kept dims] repeated to the dims of the reduction's operand.
ValueId Repeat(Builder& b, const Node& node, ValueId dy) {
  const TensorType& x = b.type(node.operands[0]);
  const Ints kept = DimsNotIn(GetAttr<Ints>(node.attrs, "dims"), x.rank());
  return b.Add("broadcast", {dy}, {{"shape", x.dims}, {"dims", kept}});
}

void AddReductions(OpTable& table) {
  OpDef sum = Reduction("reduce_sum");
  sum.attrs.push_back({"dtype", AttrKind::kString, AttrSpec::kOptional});
  sum.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule = ReductionRule(call);
    if (ByteSize(call.out(0).dtype) >= ByteSize(call.in(0).dtype)) rule.linear_in = {{0}};
    return rule;
  };
  sum.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    call.gradients[0] = Repeat(b, call.node, b.Cast(call.cotangents[0], b.type(call.node.operands[0]).dtype));
    return absl::OkStatus();
  };
  sum.workspace_bytes = [](const OpCall&, const Target& target) { return target.ReduceBytes(); };
  table.Add(sum);

  OpDef max = Reduction("reduce_max");
  max.infer = [infer = max.infer](const OpCall& call) -> absl::StatusOr<Types> {
    for (int64_t d : call.attr<Ints>("dims")) {
      if (d >= 0 && d < call.in(0).rank() && call.in(0).dims[d] == 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("dim ", d, " of x, ", call.in(0).ToString(), ", is empty: it has no maximum"));
      }
    }
    return infer(call);
  };
  max.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule = ReductionRule(call);
    for (int64_t d : call.attr<Ints>("dims")) rule.factors[rule.in[0][d]].replicate = true;
    return rule;
  };
  // Elements that tie share the gradient, as torch.amax. `at` is 1 where x is the maximum: 1 - relu'(max - x).
  max.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    const ValueId x = call.node.operands[0], y = call.node.results[0];
    const ValueId below = b.Add("relu_grad", {b.Add("sub", {Repeat(b, call.node, y), x}), b.Constant(1.0, b.type(x))});
    const ValueId at = b.Add("add_scalar", {b.Add("neg", {below})}, {{"value", 1.0}});
    const ValueId share =
        b.Add("div", {b.Cast(call.cotangents[0], b.type(y).dtype), b.Add("reduce_sum", {at}, call.node.attrs)});
    call.gradients[0] = b.Add("mul", {at, Repeat(b, call.node, share)});
    return absl::OkStatus();
  };
  max.workspace_bytes = [](const OpCall&, const Target& target) { return target.ReduceBytes(); };
  table.Add(max);
}

}  // namespace

void AddShapeOps(OpTable& table) {
  AddReshape(table);
  AddStopGradient(table);
  AddTranspose(table);
  AddSlice(table);
  AddPad(table);
  AddConcat(table);
  AddBroadcast(table);
  AddReductions(table);
}

}  // namespace tacc::graph
