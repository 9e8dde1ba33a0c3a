// Every derivative against central differences of the op itself, in f64.
#include <cmath>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "graph/ir/text.h"
#include "graph/ops/attention_operands.h"
#include "graph/ops/builder.h"
#include "graph/ops/op_cases.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using interpreter::Array;
using interpreter::Arrays;

// Operands of which no gradient exists though they are floating.
bool IsConstantOperand(const Node& node, size_t operand) {
  const Op& op = node.op;
  const auto attention = AttentionOperandsOf(op.name(), node.attrs, node.operands.size());
  if (attention.has_value() && attention->key_bias == static_cast<int>(operand)) return true;
  return (op == "select" && operand == 0) || (op == "rotary" && operand > 0) || (op == "top_k" && operand == 1) ||
         (op == "batch_moments" && operand > 1);
}

// Of how many results an op has a derivative, from the first on. Most others only serve the backward pass.
size_t NumDerived(const Op& op) { return op == "channel_sums" || op == "batch_moments" ? 2 : 1; }

// The case with the derivative's nodes behind it, for the cotangent leaves "dy0", ... of the results that have one;
// outputs "g<operand>".
absl::StatusOr<OpCase> WithDerivative(const OpTable& ops, const std::string& text, DType dy_dtype) {
  auto parsed = ParseOpCase(ops, text);
  if (!parsed.ok()) return parsed.status();
  OpCase c = *std::move(parsed);
  const Node node = c.op_node();
  Builder builder(c.graph, ops);
  builder.SetModule("layer");
  std::vector<ValueId> cotangents(node.results.size(), kNoValue);
  for (size_t r = 0; r < NumDerived(node.op); ++r) {
    cotangents[r] = builder.Leaf(Op::kInput, absl::StrCat("dy", r), {dy_dtype, c.graph.type(node.results[r]).dims});
  }
  std::vector<ValueId> gradients(node.operands.size(), kNoValue);
  std::vector<char> needed;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    needed.push_back(IsFloating(c.graph.type(node.operands[i]).dtype) && !IsConstantOperand(node, i));
  }
  VjpCall call{builder, node, cotangents, gradients, needed};
  if (absl::Status status = ops.Find(node.op)->derive(call); !status.ok()) return status;
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (needed[i] && gradients[i] == kNoValue) return absl::InternalError(absl::StrCat("no gradient of operand ", i));
    if (needed[i]) builder.End(Op::kOutput, absl::StrCat("g", i), gradients[i]);
  }
  if (!builder.status().ok()) return builder.status();
  return c;
}

// Products are of parts of an operand in programs that have been derived only.
bool IsOfPart(const Node& node) { return absl::StartsWith(node.op, "einsum") && node.attrs.count("parts") > 0; }

double Dot(const Array& a, const Array& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i) sum += a.values[i] * b.values[i];
  return sum;
}

TEST(Derive, EqualsFiniteDifferences) {
  const OpTable ops;
  std::set<std::string> checked;
  std::vector<std::string> texts = OpCaseTexts();
  texts.push_back("sum_squares f64[3,5] f64[4]");  // no case: it has no rule as a whole
  for (const std::string& text : texts) {
    const auto plain = ParseOpCase(ops, text);
    ASSERT_TRUE(plain.ok()) << text << ": " << plain.status();
    const std::string op(plain->op_node().op.name());
    if (ops.Find(op)->derive == nullptr || ops.Find(op)->no_gradient || IsOfPart(plain->op_node())) continue;
    const auto c = WithDerivative(ops, text, plain->graph.type(plain->op_node().results[0]).dtype);
    ASSERT_TRUE(c.ok()) << text << ": " << c.status();
    checked.insert(op);
    interpreter::Random random(7);
    Arrays leaves = RandomLeaves(*c, random);
    std::normal_distribution<double> normal;
    for (size_t r = 0; r < NumDerived(c->op_node().op); ++r) {
      Array dy = Array::Filled(c->graph.type(c->op_node().results[r]).dims, 0);
      for (double& x : dy.values) x = normal(random);
      leaves[absl::StrCat("dy", r)] = dy;
    }
    auto gradients = interpreter::RunGraph(c->graph, Mesh(), leaves);
    ASSERT_TRUE(gradients.ok()) << text << ": " << gradients.status();
    auto loss = [&]() {
      const auto results = interpreter::RunGraph(plain->graph, Mesh(), leaves);
      double sum = 0;
      for (size_t r = 0; r < NumDerived(c->op_node().op); ++r)
        sum += Dot(results->at(absl::StrCat("r", r)), leaves.at(absl::StrCat("dy", r)));
      return sum;
    };
    for (size_t i = 0; i < c->op_node().operands.size(); ++i) {
      auto gradient = gradients->find(absl::StrCat("g", i));
      if (gradient == gradients->end()) continue;
      Array& x = leaves[absl::StrCat("a", i)];
      ASSERT_EQ(gradient->second.dims, x.dims) << text;
      for (int64_t k = 0; k < x.size(); ++k) {
        constexpr double kStep = 1e-6;
        const double at = x.values[k];
        x.values[k] = at + kStep;
        const double above = loss();
        x.values[k] = at - kStep;
        const double difference = (above - loss()) / (2 * kStep);
        x.values[k] = at;
        // Truncation (step^2) and cancellation (1e-16 / step) are both well below.
        EXPECT_NEAR(gradient->second.values[k], difference, 1e-6 * (1 + std::abs(difference)))
            << text << ": operand " << i << " element " << k;
      }
    }
  }
  for (const auto& [name, op] : ops.ops()) {
    if (op.derive == nullptr || op.no_gradient) continue;
    EXPECT_TRUE(checked.count(name)) << name << " has a derivative but no case";
  }
}

TEST(Derive, GradientsHaveTheOperandsTypeOrItsAccumulationType) {
  const OpTable ops;
  for (const std::string& wide : OpCaseTexts()) {
    const std::string text = absl::StrReplaceAll(wide, {{"f64[", "bf16["}});
    const auto plain = ParseOpCase(ops, text);
    if (!plain.ok()) continue;  // an operand that is never bf16
    const OpDef& op = *ops.Find(plain->op_node().op);
    if (op.derive == nullptr || op.no_gradient || IsOfPart(plain->op_node())) continue;
    for (DType dy : {plain->graph.type(plain->op_node().results[0]).dtype, DType::kF32}) {
      const auto c = WithDerivative(ops, text, dy);
      ASSERT_TRUE(c.ok()) << text << ": " << c.status();
      for (size_t i = 0; i < c->op_node().operands.size(); ++i) {
        const ValueId gradient = c->graph.Output(absl::StrCat("g", i));
        if (gradient == kNoValue) continue;
        const DType wanted = c->graph.type(c->op_node().operands[i]).dtype, got = c->graph.type(gradient).dtype;
        EXPECT_TRUE(got == wanted || got == AccumulationType(wanted) || got == dy)
            << text << ": gradient of operand " << i << " is " << Name(got);
      }
    }
  }
}

TEST(Derive, ResultsForTheBackwardPassHaveNoDerivative) {
  const OpTable ops;
  auto c = ParseOpCase(ops, "rms_norm f64[2,5] f64[5] eps=1e-05");
  ASSERT_TRUE(c.ok());
  const Node node = c->op_node();
  Builder builder(c->graph, ops);
  std::vector<ValueId> cotangents = {kNoValue, builder.Leaf(Op::kInput, "d", {DType::kF64, {2}})};
  std::vector<ValueId> gradients(2, kNoValue);
  std::vector<char> needed(2, 1);
  VjpCall call{builder, node, cotangents, gradients, needed};
  EXPECT_EQ(ops.Find("rms_norm")->derive(call),
            absl::UnimplementedError(
                "rms_norm at the top level: the loss depends on its result rstd, which has no derivative"));
}

}  // namespace
}  // namespace tacc::graph
