// softmax top_k expert_counts expert_matmul mul_rows dot_rows and their gradients: mixtures of experts. Dims: [T...]
// any token dims, K slots of a token (the experts it goes to), E experts, N and M features.
//
// Tokens stay where they are: a product of every slot with its expert's matrix has the slots' own dims, so its sharding
// follows from its dims as any other op's, and no expert has a capacity. Kernels sort slots by expert inside.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"
#include "graph/ops/target.h"

namespace tacc::graph {
namespace {

// What kernels take: a warp of a GPU ranks the groups.
constexpr int64_t kMaxTopKGroups = 32, kMaxTopKSummed = 4;

Dims With(Dims dims, int64_t last) {
  dims.push_back(last);
  return dims;
}
std::vector<int> With(std::vector<int> factors, int last) {
  factors.push_back(last);
  return factors;
}
Dims WithoutLast(Dims dims) {
  dims.pop_back();
  return dims;
}

absl::Status WantIds(const TensorType& ids) {
  return ids.dtype == DType::kI32 && ids.rank() > 0 ? absl::OkStatus()
                                                    : Wanted("ids", ids, "i32 elements, one a slot of a token");
}

absl::Status WantVector(absl::string_view name, const TensorType& x) {
  TACC_RETURN_IF_ERROR(WantFloating(name, x));
  return x.rank() > 0 ? absl::OkStatus() : Wanted(name, x, "at least one dim");
}

absl::Status WantProbabilities(const TensorType& p) {
  TACC_RETURN_IF_ERROR(WantVector("p", p));
  return AccumulationType(p.dtype) == p.dtype ? absl::OkStatus() : Wanted("p", p, "f32 or f64 elements");
}

absl::Status WantPositive(absl::string_view name, int64_t value) {
  return value > 0 ? absl::OkStatus()
                   : absl::InvalidArgumentError(absl::StrCat(name, "=", value, "; wanted 1 or more"));
}

// One factor a dim of x, the last of them whole.
Rule RowRule(const OpCall& call, std::vector<std::vector<int>> linear_in) {
  Rule rule;
  const std::vector<int> x = AddFactors(rule, call.in(0).dims);
  rule.factors[x.back()].replicate = true;
  for (size_t i = 0; i < call.operands.size(); ++i) rule.in.push_back(x);
  rule.out = {x};
  rule.linear_in = std::move(linear_in);
  return rule;
}

// y = exp(x) / sum of exp(x), over the last dim.
void AddSoftmax(OpTable& table) {
  OpDef op;
  op.name = "softmax";
  op.min_operands = op.max_operands = 1;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantVector("x", call.in(0)));
    return Types{{AccumulationType(call.in(0).dtype), call.in(0).dims}};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return RowRule(call, {}); };
  op.reuses = ReuseIfSameType(0);
  op.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    const ValueId y = call.node.results[0];
    call.gradients[0] = b.Add("softmax_grad", {b.Cast(call.cotangents[0], b.type(y).dtype), y});
    return absl::OkStatus();
  };
  table.Add(op);

  OpDef grad;  // dx = y (dy - sum of dy y)
  grad.name = "softmax_grad";
  grad.min_operands = grad.max_operands = 2;
  grad.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantVector("dy", call.in(0)));
    if (AccumulationType(call.in(0).dtype) != call.in(0).dtype) return Wanted("dy", call.in(0), "f32 or f64 elements");
    TACC_RETURN_IF_ERROR(WantType("y", call.in(1), call.in(0)));
    return Types{call.in(0)};
  };
  grad.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return RowRule(call, {{0}}); };
  grad.reuses = ReuseIfSameType(0);
  table.Add(grad);
}

// Checks the attributes groups, kept_groups and summed of a choice among n numbers.
absl::Status CheckGroups(const OpCall& call, int64_t n) {
  const int64_t groups = call.attr<int64_t>("groups", 1), kept = call.attr<int64_t>("kept_groups", groups);
  const int64_t summed = call.attr<int64_t>("summed", 1);
  if (groups < 1 || groups > kMaxTopKGroups || n % groups != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("groups=", groups, "; wanted a divisor of ", n, ", at most ", kMaxTopKGroups));
  }
  if (kept < 1 || kept > groups)
    return absl::InvalidArgumentError(absl::StrCat("kept_groups=", kept, "; wanted 1 to ", groups));
  const int64_t most = std::min(kMaxTopKSummed, n / groups);
  if (summed < 1 || summed > most)
    return absl::InvalidArgumentError(absl::StrCat("summed=", summed, "; wanted 1 to ", most));
  return absl::OkStatus();
}

// The k largest of each row of p [T..., E], largest first, of equal ones the lower index; with normalize divided by
// their sum. With `choice`, of p's type, those of p where choice is largest, in choice's order. With groups they come
// from the kept_groups groups of so many (equally large ones of neighbours) whose `summed` largest numbers have the
// largest sums.
void AddTopK(OpTable& table) {
  OpDef op;
  op.name = "top_k";
  op.min_operands = 1;
  op.max_operands = 2;
  op.num_results = 2;
  op.attrs = {{"k", AttrKind::kInt},
              {"normalize", AttrKind::kBool, AttrSpec::kOptional},
              {"groups", AttrKind::kInt, AttrSpec::kOptional},
              {"kept_groups", AttrKind::kInt, AttrSpec::kOptional},
              {"summed", AttrKind::kInt, AttrSpec::kOptional}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType& p = call.in(0);
    TACC_RETURN_IF_ERROR(WantProbabilities(p));
    if (call.operands.size() > 1) TACC_RETURN_IF_ERROR(WantType("choice", call.in(1), p));
    const int64_t n = p.dims.back();
    TACC_RETURN_IF_ERROR(CheckGroups(call, n));
    const int64_t groups = call.attr<int64_t>("groups", 1), kept = call.attr<int64_t>("kept_groups", groups);
    const int64_t k = call.attr<int64_t>("k"), most = n / groups * kept;
    if (k < 1 || k > most) {
      return absl::InvalidArgumentError(absl::StrCat(
          "k=", k, "; wanted 1 to ", most, groups == 1 ? ", the last dim of p" : ", what the kept groups hold"));
    }
    const Dims slots = With(WithoutLast(p.dims), k);
    return Types{{p.dtype, slots}, {DType::kI32, slots}};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule = RowRule(call, {});
    const std::vector<int> slots = With(Leading(rule.in[0]), Rule::kNone);
    rule.out = {slots, slots};
    return rule;
  };
  op.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    const Node& node = call.node;
    Attrs attrs;
    if (GetAttr<bool>(node.attrs, "normalize")) attrs["normalize"] = true;
    call.gradients[0] = b.Add(
        "top_k_grad", {b.Cast(call.cotangents[0], b.type(node.operands[0]).dtype), node.operands[0], node.results[1]},
        std::move(attrs));
    return absl::OkStatus();
  };
  table.Add(op);

  OpDef grad;  // dw, p, ids -> dp, zero where nothing was chosen
  grad.name = "top_k_grad";
  grad.min_operands = grad.max_operands = 3;
  grad.attrs = {{"normalize", AttrKind::kBool, AttrSpec::kOptional}};
  grad.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType &dw = call.in(0), &p = call.in(1);
    TACC_RETURN_IF_ERROR(WantProbabilities(p));
    TACC_RETURN_IF_ERROR(WantIds(call.in(2)));
    TACC_RETURN_IF_ERROR(WantDims("ids", call.in(2), With(WithoutLast(p.dims), call.in(2).dims.back())));
    TACC_RETURN_IF_ERROR(WantType("dw", dw, {p.dtype, call.in(2).dims}));
    return Types{p};
  };
  grad.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    const std::vector<int> p = AddFactors(rule, call.in(1).dims);
    rule.factors[p.back()].replicate = true;
    const std::vector<int> slots = With(Leading(p), Rule::kNone);
    rule.in = {slots, p, slots};
    rule.out = {p};
    rule.linear_in = {{0}};
    return rule;
  };
  table.Add(grad);
}

// How many slots go to each expert, [E], as numbers of dtype f32 (or `dtype`); with per_sample how many of each entry
// of the first dim, [B, E].
void AddExpertCounts(OpTable& table) {
  OpDef op;
  op.name = "expert_counts";
  op.min_operands = op.max_operands = 1;
  op.attrs = {{"num_experts", AttrKind::kInt},
              {"per_sample", AttrKind::kBool, AttrSpec::kOptional},
              {"dtype", AttrKind::kString, AttrSpec::kOptional}};
  op.no_gradient = true;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantIds(call.in(0)));
    TACC_RETURN_IF_ERROR(WantPositive("num_experts", call.attr<int64_t>("num_experts")));
    TensorType counts{DTypeAttr(call, DType::kF32), {call.attr<int64_t>("num_experts")}};
    if (call.attr<bool>("per_sample")) counts.dims.insert(counts.dims.begin(), call.in(0).dims[0]);
    if (AccumulationType(counts.dtype) != counts.dtype) return Wanted("the result", counts, "f32 or f64 elements");
    return Types{counts};
  };
  // A slot of padding would count: only even cuts.
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    rule.in = {AddFactors(rule, call.in(0).dims)};
    for (Factor& factor : rule.factors) factor.even = true;
    rule.out = {{Rule::kNone}};
    if (call.attr<bool>("per_sample")) rule.out[0].insert(rule.out[0].begin(), rule.in[0][0]);
    return rule;
  };
  table.Add(op);
}

// The dims of an operand that has one row of features for each token, [T..., N], or for each slot, [T..., K, N].
enum class Rows { kToken, kSlot };

absl::StatusOr<Rows> RowsOf(absl::string_view name, const TensorType& x, const TensorType& ids) {
  TACC_RETURN_IF_ERROR(WantVector(name, x));
  const Dims rows = WithoutLast(x.dims);
  if (rows == ids.dims) return Rows::kSlot;
  if (rows == WithoutLast(ids.dims)) return Rows::kToken;
  return Wanted(name, x, absl::StrCat("a row for each slot or token of ids, ", ids.ToString()));
}

// Factors of the slots' dims: [T..., K]. Tokens are padded with rows of zeros where they are summed over; a padded slot
// would be one more of its token's.
std::vector<int> AddSlotFactors(Rule& rule, const TensorType& ids) {
  const std::vector<int> slots = AddFactors(rule, ids.dims);
  rule.factors[slots.back()].even = true;
  return slots;
}
std::vector<int> RowFactors(Rows rows, const std::vector<int>& slots, int features) {
  return With(rows == Rows::kSlot ? slots : Leading(slots), features);
}

// With the attribute ranges_dim, entry d of that dim of ids has slots of the d-th of equally large ranges of experts
// only (or of none), so experts and that dim may be split alike.
absl::Status CheckRanges(const OpCall& call, const TensorType& ids, int64_t num_experts) {
  if (call.attrs->count("ranges_dim") == 0) return absl::OkStatus();
  const int64_t dim = call.attr<int64_t>("ranges_dim");
  if (dim >= 0 && dim < ids.rank() - 1 && ids.dims[dim] > 0 && num_experts % ids.dims[dim] == 0)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("ranges_dim=", dim, " of ids, ", ids.ToString(),
                                                 "; wanted a dim before the last that divides the ", num_experts,
                                                 " experts"));
}

// Experts are cut at whole experts. Without ranges, a rank that holds some of them sums what these give.
int ExpertFactor(Rule& rule, const OpCall& call, const std::vector<int>& slots, int64_t num_experts) {
  const bool ranges = call.attrs->count("ranges_dim") > 0;
  const int experts = ranges ? slots[call.attr<int64_t>("ranges_dim")] : rule.AddFactor(num_experts);
  rule.factors[experts].even = true;
  return experts;
}

// Of products with the matrices w [., M, N], for the slots that are theirs.
double ExpertFlops(const OpCall& call, const TensorType& ids, const TensorType& w) {
  double slots = static_cast<double>(ids.num_elements()) * call.attr<double>("fill", 1.0);
  if (call.attrs->count("ranges_dim") == 0)
    slots *= static_cast<double>(w.dims[0]) / static_cast<double>(call.attr<int64_t>("num_experts"));
  return 2.0 * slots * static_cast<double>(w.dims[1] * w.dims[2]);
}

// What both products have. fill: the share of slots that is expected to have an expert, for costs.
std::vector<AttrSpec> ExpertAttrs() {
  return {{"num_experts", AttrKind::kInt},
          {"ranges_dim", AttrKind::kInt, AttrSpec::kOptional},
          {"fill", AttrKind::kFloat, AttrSpec::kOptional}};
}

// y of a slot = its expert's matrix times its row: w [E, M, N] over N, or with transposed over M. x has a row a token
// (which all its slots take) or a slot; y a row a slot, or with sum_slots a token: the sum over its slots, in the
// accumulation type. Slots of ids outside the experts give zero.
void AddExpertMatmul(OpTable& table) {
  OpDef op;
  op.name = "expert_matmul";
  op.min_operands = op.max_operands = 3;
  op.attrs = ExpertAttrs();
  op.attrs.push_back({"transposed", AttrKind::kBool, AttrSpec::kOptional});
  op.attrs.push_back({"sum_slots", AttrKind::kBool, AttrSpec::kOptional});
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType &x = call.in(0), &ids = call.in(1), &w = call.in(2);
    TACC_RETURN_IF_ERROR(WantIds(ids));
    TACC_RETURN_IF_ERROR(RowsOf("x", x, ids).status());
    TACC_RETURN_IF_ERROR(WantPositive("num_experts", call.attr<int64_t>("num_experts")));
    TACC_RETURN_IF_ERROR(CheckRanges(call, ids, call.attr<int64_t>("num_experts")));
    TACC_RETURN_IF_ERROR(WantRank("w", w, 3));
    const bool transposed = call.attr<bool>("transposed");
    const int64_t n = x.dims.back(), m = w.dims[transposed ? 2 : 1];
    const Dims dims =
        transposed ? Dims{call.attr<int64_t>("num_experts"), n, m} : Dims{call.attr<int64_t>("num_experts"), m, n};
    TACC_RETURN_IF_ERROR(WantType("w", w, {x.dtype, dims}));
    if (call.attr<bool>("sum_slots")) return Types{{AccumulationType(x.dtype), With(WithoutLast(ids.dims), m)}};
    return Types{{x.dtype, With(ids.dims, m)}};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    const bool transposed = call.attr<bool>("transposed");
    TACC_ASSIGN_OR_RETURN(const Rows rows, RowsOf("x", call.in(0), call.in(1)));
    Rule rule;
    const std::vector<int> slots = AddSlotFactors(rule, call.in(1));
    const int experts = ExpertFactor(rule, call, slots, call.in(2).dims[0]);
    const int n = rule.AddFactor(call.in(0).dims.back()), m = rule.AddFactor(call.out(0).dims.back());
    rule.in = {RowFactors(rows, slots, n), slots,
               transposed ? std::vector<int>{experts, n, m} : std::vector<int>{experts, m, n}};
    rule.out = {RowFactors(call.attr<bool>("sum_slots") ? Rows::kToken : Rows::kSlot, slots, m)};
    rule.linear_in = {{0}, {2}};
    return rule;
  };
  op.flops = [](const OpCall& call) { return ExpertFlops(call, call.in(1), call.in(2)); };
  op.is_matmul = true;
  op.workspace_bytes = [](const OpCall& call, const Target& target) {
    return target.ExpertMatmulBytes(call.in(0), call.in(1), call.in(2), call.out(0));
  };
  op.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    const Node& node = call.node;
    const ValueId x = node.operands[0], ids = node.operands[1], w = node.operands[2];
    const bool transposed = GetAttr<bool>(node.attrs, "transposed");
    const bool token_rows = b.type(x).rank() == b.type(ids).rank();
    const ValueId dy = b.Cast(call.cotangents[0], b.type(x).dtype);
    Attrs attrs = node.attrs;
    attrs.erase("transposed");
    attrs.erase("sum_slots");
    if (call.needs(2))
      call.gradients[2] = b.Add("expert_matmul_grad", {transposed ? x : dy, transposed ? dy : x, ids}, attrs);
    if (!call.needs(0)) return absl::OkStatus();
    if (!transposed) attrs["transposed"] = true;
    if (token_rows) attrs["sum_slots"] = true;
    call.gradients[0] = b.Add("expert_matmul", {dy, ids, w}, std::move(attrs));
    return absl::OkStatus();
  };
  table.Add(op);

  // a, b, ids -> [E, M, N] in the accumulation type: of each expert, the sum over its slots of a's row times b's.
  OpDef grad;
  grad.name = "expert_matmul_grad";
  grad.min_operands = grad.max_operands = 3;
  grad.attrs = ExpertAttrs();
  grad.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType &a = call.in(0), &b = call.in(1), &ids = call.in(2);
    TACC_RETURN_IF_ERROR(WantIds(ids));
    TACC_RETURN_IF_ERROR(RowsOf("a", a, ids).status());
    TACC_RETURN_IF_ERROR(RowsOf("b", b, ids).status());
    if (a.dtype != b.dtype) return Wanted("b", b, absl::StrCat("elements of a's type, ", Name(a.dtype)));
    TACC_RETURN_IF_ERROR(WantPositive("num_experts", call.attr<int64_t>("num_experts")));
    TACC_RETURN_IF_ERROR(CheckRanges(call, ids, call.attr<int64_t>("num_experts")));
    return Types{{AccumulationType(a.dtype), {call.attr<int64_t>("num_experts"), a.dims.back(), b.dims.back()}}};
  };
  grad.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    TACC_ASSIGN_OR_RETURN(const Rows a_rows, RowsOf("a", call.in(0), call.in(2)));
    TACC_ASSIGN_OR_RETURN(const Rows b_rows, RowsOf("b", call.in(1), call.in(2)));
    Rule rule;
    const std::vector<int> slots = AddSlotFactors(rule, call.in(2));
    const int experts = ExpertFactor(rule, call, slots, call.out(0).dims[0]);
    const int m = rule.AddFactor(call.in(0).dims.back()), n = rule.AddFactor(call.in(1).dims.back());
    rule.in = {RowFactors(a_rows, slots, m), RowFactors(b_rows, slots, n), slots};
    rule.out = {{experts, m, n}};
    rule.linear_in = {{0}, {1}};
    return rule;
  };
  grad.flops = [](const OpCall& call) { return ExpertFlops(call, call.in(2), call.out(0)); };
  grad.is_matmul = true;
  grad.workspace_bytes = [](const OpCall& call, const Target& target) {
    return target.ExpertMatmulGradBytes(call.in(0), call.in(1), call.in(2), call.out(0));
  };
  table.Add(grad);
}

// y = x times a number for each row: w has x's dims but the last. And its gradient of w, dot_rows: the product of two
// rows, in the accumulation type.
void AddRowScaling(OpTable& table) {
  OpDef op;
  op.name = "mul_rows";
  op.min_operands = op.max_operands = 2;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType &x = call.in(0), &w = call.in(1);
    TACC_RETURN_IF_ERROR(WantVector("x", x));
    TACC_RETURN_IF_ERROR(WantFloating("w", w));
    TACC_RETURN_IF_ERROR(WantDims("w", w, WithoutLast(x.dims)));
    return Types{x};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    const std::vector<int> x = AddFactors(rule, call.in(0).dims);
    rule.in = {x, Leading(x)};
    rule.out = {x};
    rule.linear_in = {{0}, {1}};
    return rule;
  };
  op.reuses = ReuseIfSameType(0);
  op.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    const ValueId x = call.node.operands[0], w = call.node.operands[1];
    const ValueId dy = b.Cast(call.cotangents[0], b.type(x).dtype);
    if (call.needs(0)) call.gradients[0] = b.Add("mul_rows", {dy, w});
    if (call.needs(1)) call.gradients[1] = b.Add("dot_rows", {dy, x});
    return absl::OkStatus();
  };
  table.Add(op);

  OpDef dot;
  dot.name = "dot_rows";
  dot.min_operands = dot.max_operands = 2;
  dot.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantVector("a", call.in(0)));
    TACC_RETURN_IF_ERROR(WantType("b", call.in(1), call.in(0)));
    return Types{{AccumulationType(call.in(0).dtype), WithoutLast(call.in(0).dims)}};
  };
  dot.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    const std::vector<int> a = AddFactors(rule, call.in(0).dims);
    rule.in = {a, a};
    rule.out = {Leading(a)};
    rule.linear_in = {{0}, {1}};
    return rule;
  };
  dot.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    for (int i = 0; i < 2; ++i) {
      if (call.needs(i)) call.gradients[i] = b.Add("mul_rows", {call.node.operands[1 - i], call.cotangents[0]});
    }
    return absl::OkStatus();
  };
  table.Add(dot);
}

}  // namespace

void AddExpertOps(OpTable& table) {
  AddSoftmax(table);
  AddTopK(table);
  AddExpertCounts(table);
  AddExpertMatmul(table);
  AddRowScaling(table);
}

}  // namespace tacc::graph
