// What normalizations by channel consist of. Batch norm is channel_sums, whose sums over the whole batch partition
// makes of those of all ranks; batch_moments; numbers of channels; and channel_affine. A group norm is layer_norm of a
// reshaped image and channel_affine. Shapes: x [N,C,...], with anything behind the channels; numbers of channels [C],
// or [G,C]: of each of G groups of samples that follow one another, equally many.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/facts.h"
#include "graph/ops/target.h"

namespace tacc::graph {
namespace {

constexpr char kSumDType[] = "sum_dtype", kGroups[] = "groups";

absl::Status WantChannels(absl::string_view name, const TensorType& x) {
  TACC_RETURN_IF_ERROR(WantFloating(name, x));
  return x.rank() >= 2 ? absl::OkStatus() : Wanted(name, x, "samples and channels");
}

absl::Status WantGroups(absl::string_view name, int64_t groups, const TensorType& x) {
  if (groups > 0 && x.dims[0] % groups == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, "=", groups, "; wanted a divisor of ", x.dims[0], " samples"));
}

// One number a channel, or one a group of samples and channel.
absl::Status WantNumbers(absl::string_view name, const TensorType& numbers, const TensorType& x) {
  TACC_RETURN_IF_ERROR(WantFloating(name, numbers));
  if (numbers.rank() != 2) return WantDims(name, numbers, {x.dims[1]});
  TACC_RETURN_IF_ERROR(WantDims(name, numbers, {numbers.dims[0], x.dims[1]}));
  return WantGroups(absl::StrCat("the groups of ", name), numbers.dims[0], x);
}

// The same, of as many groups as `like`.
absl::Status WantNumbersLike(absl::string_view name, const TensorType& numbers, const TensorType& like) {
  TACC_RETURN_IF_ERROR(WantFloating(name, numbers));
  return WantDims(name, numbers, like.dims);
}

// A factor a dim of x. `is_numbers`: of each operand, whether it is numbers of channels; all results are, or none.
// Groups of samples are split as samples are, and none of them is cut.
Rule ChannelRule(const OpCall& call, const std::vector<bool>& is_numbers, bool makes_numbers,
                 std::vector<std::vector<int>> linear_in) {
  Rule rule;
  const std::vector<int> all = AddFactors(rule, call.in(0).dims);
  const auto dims = [&](const TensorType& type, bool numbers) {
    if (!numbers) return all;
    if (type.rank() == 1) return std::vector<int>{all[1]};
    rule.factors[all[0]].size = type.dims[0];
    rule.factors[all[0]].even = true;
    return std::vector<int>{all[0], all[1]};
  };
  for (size_t i = 0; i < call.operands.size(); ++i) rule.in.push_back(dims(call.operands[i], is_numbers[i]));
  for (const TensorType& type : call.results) rule.out.push_back(dims(type, makes_numbers));
  rule.linear_in = std::move(linear_in);
  return rule;
}

// Of each channel the sums of x and of x z; of x alone those of x and x^2. In f64 unless asked otherwise: what is left
// of the squares without the mean may be small.
void AddChannelSums(OpTable& table) {
  OpDef op;
  op.name = "channel_sums";
  op.min_operands = 1;
  op.max_operands = 2;
  op.num_results = 2;
  // Not `dtype`, which passes change for the first result alone.
  op.attrs = {{kSumDType, AttrKind::kString, AttrSpec::kOptional}, {kGroups, AttrKind::kInt, AttrSpec::kOptional}};
  op.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    const TensorType& x = call.in(0);
    TACC_RETURN_IF_ERROR(WantChannels("x", x));
    if (call.operands.size() > 1) {
      TACC_RETURN_IF_ERROR(WantFloating("z", call.in(1)));
      TACC_RETURN_IF_ERROR(WantDims("z", call.in(1), x.dims));
    }
    TensorType sums{DType::kF64, {x.dims[1]}};
    if (call.attrs->count(kGroups) > 0) {
      TACC_RETURN_IF_ERROR(WantGroups(kGroups, call.attr<int64_t>(kGroups), x));
      sums.dims = {call.attr<int64_t>(kGroups), x.dims[1]};
    }
    if (call.attrs->count(kSumDType) > 0) {
      TACC_ASSIGN_OR_RETURN(sums.dtype, ParseDType(call.attr<std::string>(kSumDType)));
    }
    TACC_RETURN_IF_ERROR(WantFloating("the result", sums));
    return Types{sums, sums};
  };
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    const bool is_linear = call.operands.size() > 1 && ByteSize(call.out(0).dtype) >= ByteSize(call.in(0).dtype);
    return ChannelRule(call, {false, false}, true,
                       is_linear ? std::vector<std::vector<int>>{{0}} : std::vector<std::vector<int>>{});
  };
  op.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    const Node& node = call.node;
    const ValueId x = node.operands[0];
    ValueId sums = call.cotangents[0], products = call.cotangents[1];
    if (products == kNoValue) products = b.Constant(0, b.type(node.results[1]));
    const bool is_square = node.operands.size() == 1;
    // d products / dx is z, or 2x.
    if (call.needs(0)) {
      std::vector<ValueId> operands = {is_square ? x : node.operands[1], is_square ? b.Scale(products, 2) : products};
      if (sums != kNoValue) operands.push_back(sums);
      call.gradients[0] = b.Cast(b.Add("channel_affine", operands), b.type(x).dtype);
    }
    if (!is_square && call.needs(1))
      call.gradients[1] = b.Cast(b.Add("channel_affine", {x, products}), b.type(node.operands[1]).dtype);
    return absl::OkStatus();
  };
  op.workspace_bytes = [](const OpCall& call, const Target& target) { return target.ChannelSumsBytes(call.in(0)); };
  table.Add(op);
}

// y = a x + b, with a and b of each channel.
absl::StatusOr<Types> InferAffine(const OpCall& call) {
  TACC_RETURN_IF_ERROR(WantChannels("x", call.in(0)));
  TACC_RETURN_IF_ERROR(WantNumbers("a", call.in(1), call.in(0)));
  if (call.operands.size() > 2) TACC_RETURN_IF_ERROR(WantNumbersLike("b", call.in(2), call.in(1)));
  return Types{call.in(0)};
}

void AddChannelAffine(OpTable& table) {
  OpDef op;
  op.name = "channel_affine";
  op.min_operands = 2;
  op.max_operands = 3;
  op.infer = InferAffine;
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    const std::vector<std::vector<int>> with_b = {{0, 2}, {1, 2}}, without = {{0}, {1}};
    return ChannelRule(call, {false, true, true}, false, call.operands.size() > 2 ? with_b : without);
  };
  op.reuses = ReuseIfSameType(0);
  op.derive = [](VjpCall& call) {
    Builder& b = call.builder;
    const Node& node = call.node;
    const ValueId x = node.operands[0], a = node.operands[1];
    const ValueId dy = b.Cast(call.cotangents[0], b.type(x).dtype);
    if (call.needs(0)) call.gradients[0] = b.Add("channel_affine", {dy, a});
    const bool has_b = node.operands.size() > 2;
    if (!call.needs(1) && !(has_b && call.needs(2))) return absl::OkStatus();
    Attrs attrs;
    const DType dtype = AccumulationType(b.type(a).dtype);
    if (dtype != DType::kF64) attrs[kSumDType] = std::string(Name(dtype));
    if (b.type(a).rank() == 2) attrs[kGroups] = b.type(a).dims[0];
    const std::vector<ValueId> sums = b.AddMany("channel_sums", {dy, x}, std::move(attrs), 2);
    call.gradients[1] = sums[1];
    if (has_b) call.gradients[2] = b.Cast(sums[0], AccumulationType(b.type(node.operands[2]).dtype));
    return absl::OkStatus();
  };
  table.Add(op);

  // y = a x + b z + c: the gradient of a batch norm, of which passes make it.
  OpDef pair = op;
  pair.name = "channel_affine_pair";
  pair.min_operands = 4;
  pair.max_operands = 5;
  pair.derive = nullptr;
  pair.infer = [](const OpCall& call) -> absl::StatusOr<Types> {
    TACC_RETURN_IF_ERROR(WantChannels("x", call.in(0)));
    TACC_RETURN_IF_ERROR(WantNumbers("a", call.in(1), call.in(0)));
    TACC_RETURN_IF_ERROR(WantType("z", call.in(2), call.in(0)));
    TACC_RETURN_IF_ERROR(WantNumbersLike("b", call.in(3), call.in(1)));
    if (call.operands.size() > 4) TACC_RETURN_IF_ERROR(WantNumbersLike("c", call.in(4), call.in(1)));
    return Types{call.in(0)};
  };
  pair.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    return ChannelRule(call, {false, true, false, true, true}, false, {});
  };
  table.Add(pair);
}

// Means and variances (biased) of as many numbers a channel, from their sums and those of their squares; with running
// ones also how these go on: by `momentum` of the batch's mean and of its variance, unbiased. Evaluation reads the
// running ones instead. `sync`: always of all samples that are computed together, where others are of a rank's own.
absl::StatusOr<Types> InferMoments(const OpCall& call) {
  const TensorType& sums = call.in(0);
  TACC_RETURN_IF_ERROR(WantFloating("sums", sums));
  if (sums.rank() != 2) TACC_RETURN_IF_ERROR(WantRank("sums", sums, 1));
  TACC_RETURN_IF_ERROR(WantType("products", call.in(1), sums));
  const auto extents = call.attr<Dims>("extents");
  if (std::any_of(extents.begin(), extents.end(), [](int64_t d) { return d < 1; })) {
    return absl::InvalidArgumentError(
        absl::StrCat("extents=", DimsToString(extents), "; wanted at least one number a channel"));
  }
  Types results = {sums, sums};
  if (call.operands.size() == 2) return results;
  if (call.operands.size() == 3) return absl::InvalidArgumentError("wanted the running variance beside the mean");
  for (int i : {2, 3}) {
    TACC_RETURN_IF_ERROR(WantFloating(i == 2 ? "running_mean" : "running_variance", call.in(i)));
    TACC_RETURN_IF_ERROR(WantDims(i == 2 ? "running_mean" : "running_variance", call.in(i), sums.dims));
    results.push_back(call.in(i));
  }
  const auto momentum = call.attr<double>("momentum");
  if (call.attrs->count("momentum") == 0 || !(momentum >= 0 && momentum <= 1))
    return absl::InvalidArgumentError(absl::StrCat("momentum=", momentum, "; wanted a number from 0 to 1"));
  return results;
}

void AddBatchMoments(OpTable& table) {
  OpDef op;
  op.name = "batch_moments";
  op.min_operands = 2;
  op.max_operands = 4;
  op.num_results = -1;
  op.attrs = {{"extents", AttrKind::kInts},
              {"momentum", AttrKind::kFloat, AttrSpec::kOptional},
              {"sync", AttrKind::kBool, AttrSpec::kOptional}};
  op.infer = InferMoments;
  op.rule = [](const OpCall& call) -> absl::StatusOr<Rule> {
    Rule rule;
    const std::vector<int> all = AddFactors(rule, call.in(0).dims);
    rule.in.assign(call.operands.size(), all);
    rule.out.assign(call.results.size(), all);
    return rule;
  };
  op.reuses = [](const OpCall& call) {
    return call.results.size() == 2 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2, 3};
  };
  // mean = s / M, variance = q / M - mean^2.
  op.derive = [](VjpCall& call) {
    for (size_t i = 2; i < call.node.results.size(); ++i)
      TACC_RETURN_IF_ERROR(NoCotangent(call, static_cast<int>(i), i == 2 ? "new_mean" : "new_variance"));
    Builder& b = call.builder;
    double count = 1;
    for (int64_t d : GetAttr<Dims>(call.node.attrs, "extents")) count *= static_cast<double>(d);
    const ValueId of_mean = call.cotangents[0], of_variance = call.cotangents[1];
    ValueId sums = of_mean == kNoValue ? kNoValue : b.Scale(of_mean, 1 / count);
    if (of_variance != kNoValue) {
      call.gradients[1] = b.Scale(of_variance, 1 / count);
      const ValueId by_mean = b.Scale(b.Add("mul", {of_variance, call.node.results[0]}), -2 / count);
      sums = sums == kNoValue ? by_mean : b.Add("add", {sums, by_mean});
    } else {
      call.gradients[1] = b.Constant(0, b.type(call.node.operands[1]));
    }
    call.gradients[0] = sums;
    return absl::OkStatus();
  };
  table.Add(op);
}

}  // namespace

void AddChannelOps(OpTable& table) {
  AddChannelSums(table);
  AddChannelAffine(table);
  AddBatchMoments(table);
}

}  // namespace tacc::graph
