// newton_schulz square_sums adafactor_squares adafactor: what optimizers do to weights as the matrices of the model's
// files, `stored=[..., rows, columns]`. Operands may have other dims with the same elements in the same order.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/facts.h"
#include "graph/ops/target.h"

namespace tacc::graph {
namespace {

Dims StoredOf(const OpCall& call) { return call.attr<std::vector<int64_t>>("stored"); }

absl::Status CheckStored(const OpCall& call, const TensorType& x, int min_rank) {
  const TensorType stored{x.dtype, StoredOf(call)};
  if (stored.rank() >= min_rank && stored.num_elements() == x.num_elements()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("stored=", DimsToString(stored.dims), "; wanted at least ", min_rank,
                                                 " dims with the ", x.num_elements(), " elements of ", x.ToString()));
}

// The products of one step on one matrix.
std::vector<ProductCall> ProductsOf(const OpCall& call) {
  const Dims stored = StoredOf(call);
  const int64_t rows = stored[stored.size() - 2], columns = stored.back(), side = std::min(rows, columns);
  const DType dtype = call.in(0).dtype;
  const TensorType x{dtype, {rows, columns}}, gram{dtype, {side, side}};
  if (rows <= columns)
    return {{{"ik", "jk", "ij"}, x, x, gram}, {{"ij", "jk", "ik"}, gram, gram, gram}, {{"ij", "jk", "ik"}, gram, x, x}};
  return {{{"ki", "kj", "ij"}, x, x, gram}, {{"ij", "jk", "ik"}, gram, gram, gram}, {{"ik", "kj", "ij"}, x, gram, x}};
}

void AddNewtonSchulz(OpTable& table) {
  OpDef op;
  op.name = "newton_schulz";
  op.min_operands = op.max_operands = 1;
  op.attrs = {{"stored", AttrKind::kInts}, {"steps", AttrKind::kInt}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantFloating("x", call.in(0)));
    TACC_RETURN_IF_ERROR(CheckStored(call, call.in(0), 2));
    return Types{call.in(0)};
  };
  // Each matrix is whole; dims that count matrices may be split.
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    rule.in = {AddFactors(rule, call.in(0).dims)};
    rule.out = rule.in;
    const Dims stored = StoredOf(call);
    bool counts_matrices = true;
    for (size_t d = 0; d < rule.factors.size(); ++d) {
      counts_matrices = counts_matrices && d + 2 < stored.size() && call.in(0).dims[d] == stored[d];
      rule.factors[d].replicate = !counts_matrices;
    }
    return rule;
  };
  op.flops = [](const OpCall& call) {
    const Dims stored = StoredOf(call);
    const double rows = static_cast<double>(stored[stored.size() - 2]), columns = static_cast<double>(stored.back());
    const double side = std::min(rows, columns),
                 matrices = static_cast<double>(call.in(0).num_elements()) / (rows * columns);
    return matrices * static_cast<double>(call.attr<int64_t>("steps")) * 2 * side * (2 * rows * columns + side * side);
  };
  op.workspace_bytes = [](const OpCall& call, const Target& target) {
    const auto padded = [](int64_t bytes) {
      return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
    };
    const std::vector<ProductCall> products = ProductsOf(call);
    int64_t product_bytes = target.SumSquaresBytes(1);
    for (const ProductCall& product : products)
      product_bytes = std::max(product_bytes, target.EinsumAccumulateBytes(product));
    // A matrix, two that its products with itself take, and its norm.
    return padded(products[0].a.bytes()) + 2 * padded(products[0].y.bytes()) + kScratchAlignment + product_bytes;
  };
  op.reuses = ReuseIfSameType(0);
  table.Add(op);
}

// The dims of sums by row and by column; of no matrices only one of those like the tensor.
std::vector<Dims> MomentDims(const Dims& stored) {
  if (stored.size() < 2) return {stored};
  const Dims row(stored.begin(), stored.end() - 1);
  Dims column(stored.begin(), stored.end() - 2);
  column.push_back(stored.back());
  return {row, column};
}

// A gradient in the type in which it is summed, as a part of which ranks work on it.
absl::Status CheckGradient(const OpCall& call, int g) {
  TACC_RETURN_IF_ERROR(WantFloating("g", call.in(g)));
  TACC_RETURN_IF_ERROR(WantType("g", call.in(g), {AccumulationType(call.in(g).dtype), call.in(g).dims}));
  return CheckStored(call, call.in(g), 0);
}

absl::Status CheckMoments(const OpCall& call, int first, DType dtype) {
  const std::vector<Dims> wanted = MomentDims(StoredOf(call));
  if (call.operands.size() != first + wanted.size())
    return absl::InvalidArgumentError(absl::StrCat("stored=", DimsToString(StoredOf(call)), " has ", wanted.size(),
                                                   " moments, got ", call.operands.size() - first));
  for (size_t i = 0; i < wanted.size(); ++i)
    TACC_RETURN_IF_ERROR(WantType(i == 0 ? "row" : "column", call.in(first + static_cast<int>(i)), {dtype, wanted[i]}));
  return absl::OkStatus();
}

int64_t NumElements(const std::vector<TensorType>& types, size_t i) {
  return i < types.size() ? types[i].num_elements() : 0;
}

// Tensors like the gradient may be split anyhow; moments and scalars are whole on each rank.
Rule PartRule(const OpCall& call, const std::vector<int>& like_gradient) {
  Rule rule;
  const std::vector<int> dims = AddFactors(rule, call.in(like_gradient[0]).dims);
  for (const TensorType& operand : call.operands) rule.in.push_back(std::vector<int>(operand.dims.size(), Rule::kNone));
  for (int i : like_gradient) rule.in[i] = dims;
  for (const TensorType& result : call.results) rule.out.push_back(std::vector<int>(result.dims.size(), Rule::kNone));
  rule.self_masking = true;
  return rule;
}

void AddSquareSums(OpTable& table) {
  OpDef op;
  op.name = "square_sums";
  op.min_operands = op.max_operands = 2;  // g grad_scale
  op.num_results = -1;
  op.attrs = {{"stored", AttrKind::kInts}, {"epsilon", AttrKind::kFloat}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(CheckGradient(call, 0));
    TACC_RETURN_IF_ERROR(WantFloatingScalar("grad_scale", call.in(1)));
    Types results;
    for (const Dims& dims : MomentDims(StoredOf(call))) results.push_back({call.in(0).dtype, dims});
    return results;
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return PartRule(call, {0}); };
  op.workspace_bytes = [](const OpCall& call, const Target& target) {
    return target.SquareSumsBytes(call.out(0).num_elements(), NumElements(call.results, 1));
  };
  table.Add(op);
}

void AddAdafactorSquares(OpTable& table) {
  OpDef op;
  op.name = "adafactor_squares";
  op.min_operands = 3;  // g grad_scale row column
  op.max_operands = 4;
  op.attrs = {{"stored", AttrKind::kInts}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(CheckGradient(call, 0));
    TACC_RETURN_IF_ERROR(WantFloatingScalar("grad_scale", call.in(1)));
    TACC_RETURN_IF_ERROR(CheckMoments(call, 2, call.in(0).dtype));
    return Types{{call.in(0).dtype, {}}};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> { return PartRule(call, {0}); };
  op.workspace_bytes = [](const OpCall& call, const Target& target) {
    return target.AdafactorBytes(call.in(0).num_elements(), call.in(2).num_elements(), NumElements(call.operands, 3));
  };
  table.Add(op);
}

void AddAdafactor(OpTable& table) {
  OpDef op;
  op.name = "adafactor";
  op.min_operands = 7;  // w g lr grad_scale apply squares row column
  op.max_operands = 8;
  op.num_results = -1;
  op.attrs = {{"stored", AttrKind::kInts},
              {"clip_threshold", AttrKind::kFloat},
              {"weight_decay", AttrKind::kFloat},
              {"copy", AttrKind::kString, AttrSpec::kOptional}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantFloating("w", call.in(0)));
    TACC_RETURN_IF_ERROR(CheckGradient(call, 1));
    TACC_RETURN_IF_ERROR(WantDims("g", call.in(1), call.in(0).dims));
    constexpr const char* kScalars[] = {"lr", "grad_scale", "apply", "squares"};
    for (int i = 0; i < 4; ++i) TACC_RETURN_IF_ERROR(WantFloatingScalar(kScalars[i], call.in(2 + i)));
    TACC_RETURN_IF_ERROR(CheckMoments(call, 6, call.in(1).dtype));
    Types results{call.in(0)};
    if (call.attrs->count("copy") > 0) {
      TACC_ASSIGN_OR_RETURN(const DType copy, ParseDType(call.attr<std::string>("copy")));
      results.push_back({copy, call.in(0).dims});
      TACC_RETURN_IF_ERROR(WantFloating("the copy", results.back()));
    }
    return results;
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule = PartRule(call, {0, 1});
    rule.out.assign(call.results.size(), rule.in[0]);
    return rule;
  };
  op.reuses = [](const OpCall& call) {
    std::vector<int> reuses(call.results.size(), -1);
    reuses[0] = 0;
    return reuses;
  };
  op.workspace_bytes = [](const OpCall& call, const Target& target) {
    return target.AdafactorBytes(call.in(1).num_elements(), call.in(6).num_elements(), NumElements(call.operands, 7));
  };
  table.Add(op);
}

}  // namespace

void AddMatrixOptimizerOps(OpTable& table) {
  AddNewtonSchulz(table);
  AddSquareSums(table);
  AddAdafactorSquares(table);
  AddAdafactor(table);
}

}  // namespace tacc::graph
