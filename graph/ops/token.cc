// embedding cross_entropy dropout random. Dims: [...] any token dims, V vocabulary, N features.
#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"
#include "graph/ops/target.h"

namespace tacc::graph {
namespace {

absl::Status WantIds(absl::string_view name, const TensorType& ids) {
  return ids.dtype == DType::kI32 ? absl::OkStatus() : Wanted(name, ids, "i32 elements");
}

Dims With(Dims dims, int64_t last) {
  dims.push_back(last);
  return dims;
}

void AddEmbedding(OpTable& table) {
  OpDef op;
  op.name = "embedding";
  op.min_operands = op.max_operands = 2;
  op.attrs = {{"dtype", AttrKind::kString, AttrSpec::kOptional}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType &rows = call.in(0), &ids = call.in(1);
    TACC_RETURN_IF_ERROR(WantFloating("table", rows));
    TACC_RETURN_IF_ERROR(WantRank("table", rows, 2));
    TACC_RETURN_IF_ERROR(WantIds("ids", ids));
    const TensorType y{DTypeAttr(call, rows.dtype), With(ids.dims, rows.dims[1])};
    TACC_RETURN_IF_ERROR(WantFloating("y", y));
    return Types{y};
  };
  // A vocabulary shard gives zero for ids outside its rows, so the vocabulary is a summed factor.
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    const std::vector<int> y = AddFactors(rule, call.out(0).dims);
    const int vocabulary = rule.AddFactor(call.in(0).dims[0]);
    rule.in = {{vocabulary, y.back()}, Leading(y)};
    rule.out = {y};
    rule.linear_in = {{0}};
    rule.self_masking = true;
    return rule;
  };
  op.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    call.gradients[0] = b.Add("embedding_grad", {call.cotangents[0], call.node.operands[1]},
                              {{"vocab_size", b.type(call.node.operands[0]).dims[0]}});
    return absl::OkStatus();
  };
  table.Add(op);

  OpDef grad;
  grad.name = "embedding_grad";
  grad.min_operands = grad.max_operands = 2;
  grad.attrs = {{"vocab_size", AttrKind::kInt}};
  grad.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType &dy = call.in(0), &ids = call.in(1);
    TACC_RETURN_IF_ERROR(WantFloating("dy", dy));
    TACC_RETURN_IF_ERROR(WantIds("ids", ids));
    if (dy.rank() == 0) return Wanted("dy", dy, "at least one dim");
    TACC_RETURN_IF_ERROR(WantDims("ids", ids, Dims(dy.dims.begin(), dy.dims.end() - 1)));
    const int64_t vocab_size = call.attr<int64_t>("vocab_size");
    if (vocab_size < 0)
      return absl::InvalidArgumentError(absl::StrCat("vocab_size=", vocab_size, "; wanted 0 or more"));
    return Types{{AccumulationType(dy.dtype), {vocab_size, dy.dims.back()}}};
  };
  grad.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    const std::vector<int> dy = AddFactors(rule, call.in(0).dims);
    const int vocabulary = rule.AddFactor(call.out(0).dims[0]);
    rule.in = {dy, Leading(dy)};
    rule.out = {{vocabulary, dy.back()}};
    rule.linear_in = {{0}};
    return rule;
  };
  grad.workspace_bytes = [](const OpCall& call, const Target& target) {
    return target.EmbeddingGradBytes(call.in(1), call.out(0));
  };
  table.Add(grad);
}

void AddCrossEntropy(OpTable& table) {
  OpDef op;
  op.name = "cross_entropy";
  op.min_operands = op.max_operands = 2;
  op.num_results = 3;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType &logits = call.in(0), &targets = call.in(1);
    TACC_RETURN_IF_ERROR(WantFloating("logits", logits));
    if (logits.rank() == 0) return Wanted("logits", logits, "at least one dim");
    TACC_RETURN_IF_ERROR(WantIds("targets", targets));
    const Dims tokens(logits.dims.begin(), logits.dims.end() - 1);
    TACC_RETURN_IF_ERROR(WantDims("targets", targets, tokens));
    const DType dtype = AccumulationType(logits.dtype);
    return Types{{dtype, {}}, {dtype, {}}, {dtype, tokens}};
  };
  // A token of padding would count, and zero is a target as any other: only even cuts.
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    const std::vector<int> logits = AddFactors(rule, call.in(0).dims);
    for (Factor& factor : rule.factors) factor.even = true;
    rule.factors[logits.back()].replicate = true;
    rule.factors[logits.back()].expandable = true;
    rule.in = {logits, Leading(logits)};
    rule.out = {{}, {}, Leading(logits)};
    return rule;
  };
  // With a split vocabulary: a logsumexp for each shard, these combined, and the loss by the shard that has the target.
  op.expand = [](ExpandCall& call) {
    Builder& b = call.builder;
    const ValueId logits = call.node.operands[0], targets = call.node.operands[1];
    const ValueId parts = b.Add("logsumexp", {logits}, {{"parts", call.shards.back()}});
    const ValueId lse = b.Reshape(b.Add("logsumexp", {parts}, {{"parts", int64_t{1}}}), b.type(targets).dims);
    call.results = b.AddMany("cross_entropy_sum", {logits, targets, lse}, {}, 2);
    call.results.push_back(lse);
    return absl::OkStatus();
  };
  op.derive = [](VjpCall& call) {
    TACC_RETURN_IF_ERROR(NoCotangent(call, 2, "lse"));
    if (call.cotangents[0] == kNoValue) return absl::OkStatus();  // the count depends on no parameter
    Builder& b = call.builder;
    const ValueId dloss = b.Cast(call.cotangents[0], b.type(call.node.results[0]).dtype);
    call.gradients[0] =
        b.Add("cross_entropy_grad", {call.node.operands[0], call.node.operands[1], call.node.results[2], dloss});
    return absl::OkStatus();
  };
  table.Add(op);

  OpDef grad;
  grad.name = "cross_entropy_grad";
  grad.min_operands = grad.max_operands = 4;
  grad.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType& logits = call.in(0);
    TACC_RETURN_IF_ERROR(WantFloating("logits", logits));
    if (logits.rank() == 0) return Wanted("logits", logits, "at least one dim");
    const Dims tokens(logits.dims.begin(), logits.dims.end() - 1);
    TACC_RETURN_IF_ERROR(WantIds("targets", call.in(1)));
    TACC_RETURN_IF_ERROR(WantDims("targets", call.in(1), tokens));
    TACC_RETURN_IF_ERROR(WantType("lse", call.in(2), {AccumulationType(logits.dtype), tokens}));
    TACC_RETURN_IF_ERROR(WantType("dloss", call.in(3), {AccumulationType(logits.dtype), {}}));
    return Types{logits};
  };
  grad.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    const std::vector<int> logits = AddFactors(rule, call.in(0).dims);
    rule.in = {logits, Leading(logits), Leading(logits), {}};
    rule.out = {logits};
    rule.linear_in = {{3}};
    return rule;
  };
  grad.reuses = ReuseIfSameType(0);
  table.Add(grad);
}

// The pieces of a cross-entropy whose vocabulary is split.
void AddSplitCrossEntropy(OpTable& table) {
  // y[..., i] = log(sum(exp(x))) over the i-th of `parts` pieces of the last dim, each of ceil(V / parts).
  OpDef lse;
  lse.name = "logsumexp";
  lse.min_operands = lse.max_operands = 1;
  lse.attrs = {{"parts", AttrKind::kInt}};
  lse.no_gradient = true;
  lse.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType& x = call.in(0);
    TACC_RETURN_IF_ERROR(WantFloating("x", x));
    if (x.rank() == 0) return Wanted("x", x, "at least one dim");
    const int64_t parts = call.attr<int64_t>("parts");
    if (parts < 1) return absl::InvalidArgumentError(absl::StrCat("parts=", parts, "; wanted 1 or more"));
    return Types{{AccumulationType(x.dtype), With(Dims(x.dims.begin(), x.dims.end() - 1), parts)}};
  };
  lse.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    const std::vector<int> x = AddFactors(rule, call.in(0).dims);
    const int parts = rule.AddFactor(call.out(0).dims.back());
    rule.factors[parts].one_per_shard_of = x.back();
    std::vector<int> y = Leading(x);
    y.push_back(parts);
    rule.in = {x};
    rule.out = {y};
    rule.self_masking = true;
    return rule;
  };
  table.Add(lse);

  // loss = sum over counted targets within the logits' vocabulary of lse - logits[target]; how many they are.
  OpDef sum;
  sum.name = "cross_entropy_sum";
  sum.min_operands = sum.max_operands = 3;
  sum.num_results = 2;
  sum.no_gradient = true;
  sum.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType &logits = call.in(0), &targets = call.in(1);
    TACC_RETURN_IF_ERROR(WantFloating("logits", logits));
    if (logits.rank() == 0) return Wanted("logits", logits, "at least one dim");
    TACC_RETURN_IF_ERROR(WantIds("targets", targets));
    const Dims tokens(logits.dims.begin(), logits.dims.end() - 1);
    TACC_RETURN_IF_ERROR(WantDims("targets", targets, tokens));
    const DType dtype = AccumulationType(logits.dtype);
    TACC_RETURN_IF_ERROR(WantType("lse", call.in(2), {dtype, tokens}));
    return Types{{dtype, {}}, {dtype, {}}};
  };
  sum.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    const std::vector<int> logits = AddFactors(rule, call.in(0).dims);
    for (int token : Leading(logits)) rule.factors[token].even = true;
    rule.in = {logits, Leading(logits), Leading(logits)};
    rule.out = {{}, {}};
    rule.self_masking = true;
    return rule;
  };
  table.Add(sum);
}

// The keep mask of an element is a function of (seed, step, key, sample[b], index within the row, by positions), so any
// split gives the same.
void AddDropout(OpTable& table) {
  OpDef op;
  op.name = "dropout";
  op.min_operands = op.max_operands = 3;
  op.attrs = {{"rate", AttrKind::kFloat},
              {"key", AttrKind::kInt},
              {"seed", AttrKind::kInt},
              {"zigzag", AttrKind::kInt, AttrSpec::kOptional}};  // of dim 1
  op.positional = true;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType& x = call.in(0);
    TACC_RETURN_IF_ERROR(WantFloating("x", x));
    if (x.rank() == 0) return Wanted("x", x, "at least the batch dim");
    TACC_RETURN_IF_ERROR(WantType("step", call.in(1), {DType::kI64, {}}));
    TACC_RETURN_IF_ERROR(WantType("sample", call.in(2), {DType::kI64, {x.dims[0]}}));
    const double rate = call.attr<double>("rate");
    if (!(rate >= 0 && rate < 1))
      return absl::InvalidArgumentError(absl::StrCat("rate=", rate, "; wanted at least 0 and below 1"));
    return Types{x};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    const std::vector<int> x = AddFactors(rule, call.in(0).dims);
    rule.in = {x, {}, {x[0]}};
    rule.out = {x};
    rule.linear_in = {{0}};
    return rule;
  };
  op.reuses = ReuseIfSameType(0);
  op.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    const Node& node = call.node;
    const ValueId dy = b.Cast(call.cotangents[0], b.type(node.operands[0]).dtype);
    call.gradients[0] = b.Add("dropout", {dy, node.operands[1], node.operands[2]}, node.attrs);
    return absl::OkStatus();
  };
  table.Add(op);
}

// Random numbers of [samples, ...], a function of the same as a dropout's mask. With `sequence`, dim 1 is the sequence.
void AddRandom(OpTable& table) {
  OpDef op;
  op.name = "random";
  op.min_operands = op.max_operands = 2;
  op.attrs = {{"distribution", AttrKind::kString},  // uniform: in [0, 1); normal: of mean 0 and variance 1
              {"dtype", AttrKind::kString},
              {"shape", AttrKind::kInts},
              {"key", AttrKind::kInt},
              {"seed", AttrKind::kInt},
              {"sequence", AttrKind::kBool, AttrSpec::kOptional},
              {"zigzag", AttrKind::kInt, AttrSpec::kOptional}};  // of dim 1
  op.positional = true;
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType y{DTypeAttr(call, DType::kF32), call.attr<std::vector<int64_t>>("shape")};
    if (y.dtype != DType::kF32 && y.dtype != DType::kF64) return Wanted("y", y, "f32 or f64 elements");
    if (y.rank() == 0) return Wanted("y", y, "at least the batch dim");
    for (int64_t d : y.dims) {
      if (d < 0) return Wanted("y", y, "no negative dim");
    }
    TACC_RETURN_IF_ERROR(WantType("step", call.in(0), {DType::kI64, {}}));
    TACC_RETURN_IF_ERROR(WantType("sample", call.in(1), {DType::kI64, {y.dims[0]}}));
    const std::string distribution = call.attr<std::string>("distribution");
    if (distribution != "uniform" && distribution != "normal") {
      return absl::InvalidArgumentError(absl::StrCat("distribution=", distribution, "; wanted uniform or normal"));
    }
    return Types{y};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    const std::vector<int> y = AddFactors(rule, call.out(0).dims);
    rule.in = {{}, {y[0]}};
    rule.out = {y};
    return rule;
  };
  op.no_gradient = true;
  op.flops = [](const OpCall& call) { return static_cast<double>(call.out(0).num_elements()); };
  table.Add(op);
}

}  // namespace

void AddTokenOps(OpTable& table) {
  AddEmbedding(table);
  AddCrossEntropy(table);
  AddSplitCrossEntropy(table);
  AddDropout(table);
  AddRandom(table);
}

}  // namespace tacc::graph
