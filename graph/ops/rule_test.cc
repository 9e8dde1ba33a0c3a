// The rule check: each op with each factor split, padding filled with NaN, and random summands for each set of operands
// that a pending value may pass through, recombined, equals the whole.
#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "graph/ir/text.h"
#include "graph/ops/op_cases.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using interpreter::Array;
using interpreter::Arrays;

bool Contains(const std::vector<int>& list, int x) { return std::find(list.begin(), list.end(), x) != list.end(); }

// What is done to each mesh axis: a factor is split over it, or the operands of a set are pending on it.
struct AxisUse {
  int factor = -1;
  std::vector<int> pending;
};

// The case's graph as partitioned by hand from its rule.
Graph PartitionByRule(const OpCase& c, const Rule& rule, const Mesh& mesh, const std::vector<AxisUse>& uses) {
  Graph graph = c.graph;
  const Node node = c.op_node();
  auto place = [&](ValueId v, const std::vector<int>& factors, const AxisList& pending) {
    Value& value = graph.values[v];
    Placement placement{c.graph.type(v), Sharding::Replicated(c.graph.type(v).rank())};
    placement.sharding.pending = pending;
    for (size_t d = 0; d < factors.size(); ++d) {
      for (size_t axis = 0; axis < uses.size(); ++axis) {
        const int f = factors[d];
        if (f < 0 || uses[axis].factor < 0) continue;
        if (uses[axis].factor == f || uses[axis].factor == rule.factors[f].one_per_shard_of)
          placement.sharding.dims[d].push_back(static_cast<int>(axis));
      }
      if (factors[d] >= 0) {
        AxisList& axes = placement.sharding.dims[d];
        axes = DimAxes(rule.factors[factors[d]], placement.global.dims[d], axes, mesh);
      }
    }
    value.type.dims = LocalDims(placement.global.dims, placement.sharding, mesh);
    value.placement = placement;
  };
  auto reduced = [&](int factor, size_t result) { return !Contains(rule.out[result], factor); };
  auto splits = [&](size_t axis, size_t result) {
    for (size_t d = 0; d < rule.out[result].size(); ++d) {
      const int f = rule.out[result][d];
      if (f < 0) continue;
      AxisList axes;
      for (size_t a = 0; a < uses.size(); ++a) {
        if (uses[a].factor == f || (uses[a].factor >= 0 && uses[a].factor == rule.factors[f].one_per_shard_of))
          axes.push_back(static_cast<int>(a));
      }
      const AxisList taken = DimAxes(rule.factors[f], c.graph.type(node.results[result]).dims[d], axes, mesh);
      if (Contains(taken, static_cast<int>(axis))) return true;
    }
    return false;
  };
  std::vector<Node> masks;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    AxisList pending;
    bool mask = false;
    for (size_t axis = 0; axis < uses.size(); ++axis) {
      const int f = uses[axis].factor;
      const bool addend = f >= 0 && Contains(rule.addends, static_cast<int>(i)) && reduced(f, 0);
      if (addend || Contains(uses[axis].pending, static_cast<int>(i))) pending.push_back(static_cast<int>(axis));
      if (f < 0 || !Contains(rule.in[i], f) || rule.self_masking) continue;
      for (size_t r = 0; r < rule.out.size(); ++r) mask |= reduced(f, r);
    }
    place(node.operands[i], rule.in[i], pending);
    if (!mask) continue;
    Node masked;
    masked.op = Op::kMaskPadding;
    masked.operands = {node.operands[i]};
    const ValueId v = graph.AddValue("masked", graph.type(node.operands[i]));
    graph.values[v].placement = graph.values[node.operands[i]].placement;
    masked.results = {v};
    masks.push_back(masked);
    graph.nodes[c.node].operands[i] = v;
  }
  for (size_t r = 0; r < node.results.size(); ++r) {
    AxisList pending;
    for (size_t axis = 0; axis < uses.size(); ++axis) {
      const int f = uses[axis].factor;
      const bool in_operand =
          std::any_of(rule.in.begin(), rule.in.end(), [f](const std::vector<int>& in) { return Contains(in, f); });
      if (!uses[axis].pending.empty() || (f >= 0 && in_operand && !splits(axis, r)))
        pending.push_back(static_cast<int>(axis));
    }
    place(node.results[r], rule.out[r], pending);
  }
  graph.nodes.insert(graph.nodes.begin() + c.node, masks.begin(), masks.end());
  return graph;
}

class RuleCheck {
 public:
  explicit RuleCheck(const OpTable& ops) : ops_(ops) {}

  void Check(const std::string& text) {
    auto parsed = ParseOpCase(ops_, text);
    ASSERT_TRUE(parsed.ok()) << text << ": " << parsed.status();
    const OpCase& c = *parsed;
    const OpDef& op = *ops_.Find(c.op_node().op);
    ASSERT_TRUE(op.rule) << text;
    auto rule = op.rule(CallOf(c.graph, c.op_node()));
    ASSERT_TRUE(rule.ok()) << text << ": " << rule.status();
    interpreter::Random random(3);
    const Arrays leaves = RandomLeaves(c, random);
    const auto whole = interpreter::RunGraph(c.graph, Mesh(), leaves);
    ASSERT_TRUE(whole.ok()) << text << ": " << whole.status();

    std::vector<AxisUse> uses;
    for (size_t f = 0; f < rule->factors.size(); ++f) {
      if (!rule->factors[f].replicate && rule->factors[f].one_per_shard_of < 0)
        uses.push_back({static_cast<int>(f), {}});
    }
    for (const std::vector<int>& set : rule->linear_in) uses.push_back({-1, set});
    for (const AxisUse& use : uses) {
      for (int64_t n : {2, 4}) Compare(c, *rule, Mesh{{{"x", n}}}, {use}, leaves, *whole);
      for (const AxisUse& other : uses) {
        // A product of two pending operands is no sum of products; a factor may be split over both axes.
        if (use.factor < 0 && other.factor < 0) continue;
        Compare(c, *rule, Mesh{{{"x", 2}, {"y", 2}}}, {use, other}, leaves, *whole);
      }
    }
  }
  int num_comparisons() const { return num_comparisons_; }

 private:
  void Compare(const OpCase& c, const Rule& rule, const Mesh& mesh, const std::vector<AxisUse>& uses,
               const Arrays& leaves, const Arrays& whole) {
    for (size_t f = 0; f < rule.factors.size(); ++f) {
      AxisList axes;
      for (size_t axis = 0; axis < uses.size(); ++axis) {
        if (uses[axis].factor == static_cast<int>(f)) axes.push_back(static_cast<int>(axis));
      }
      if (rule.factors[f].even && IsPadded(rule.factors[f].size, axes, mesh)) return;
      const int64_t groups = rule.factors[f].groups;
      const AxisList of_groups = DimAxes(rule.factors[f], groups, axes, mesh);
      if (groups > 0 && of_groups.size() != axes.size() && NumShards(mesh, of_groups) != groups) return;
      for (const Factor& other : rule.factors) {
        if (other.one_per_shard_of == static_cast<int>(f) && other.size != NumShards(mesh, axes)) return;
      }
    }
    const Graph graph = PartitionByRule(c, rule, mesh, uses);
    const auto parts = interpreter::RunGraph(graph, mesh, leaves);
    ASSERT_TRUE(parts.ok()) << c.text << "\n" << Print(graph, graph.nodes[c.node], mesh) << "\n" << parts.status();
    for (const auto& [name, array] : whole) {
      const Array& got = parts->at(name);
      for (int64_t i = 0; i < array.size(); ++i) {
        // Summands are random, of size 1 each, so sums lose a few digits at most.
        ASSERT_NEAR(got.values[i], array.values[i], 1e-9 * (1 + std::abs(array.values[i])))
            << c.text << "\n"
            << Print(graph, graph.nodes[c.node], mesh) << "\n"
            << name << " element " << i;
      }
    }
    ++num_comparisons_;
  }

  const OpTable& ops_;
  int num_comparisons_ = 0;
};

TEST(Rule, PartsRecombineToTheWhole) {
  const OpTable ops;
  RuleCheck check(ops);
  std::set<std::string> checked;
  std::vector<std::string> texts = OpCaseTexts();
  for (const char* text : {"rotate_blocks f64[2,8,3,2] dim=1 block=2", "rotate_blocks f32[2,8] dim=1 block=2"})
    texts.push_back(text);
  for (const std::string& text : texts) {
    checked.insert(text.substr(0, text.find(' ')));
    check.Check(text);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(check.num_comparisons(), 1000);
  for (const auto& [name, op] : ops.ops()) {
    if (op.rule) {
      EXPECT_TRUE(checked.count(name)) << name << " has a rule but no case";
    }
  }
}

std::string RuleText(const OpTable& ops, const std::string& text) {
  auto c = ParseOpCase(ops, text);
  if (!c.ok()) return std::string(c.status().message());
  auto rule = ops.Find(c->op_node().op)->rule(CallOf(c->graph, c->op_node()));
  if (!rule.ok()) return std::string(rule.status().message());
  std::string out;
  for (const auto* side : {&rule->in, &rule->out}) {
    for (const std::vector<int>& dims : *side) absl::StrAppend(&out, DimsToString(Dims(dims.begin(), dims.end())));
    if (side == &rule->in) out += "->";
  }
  for (size_t f = 0; f < rule->factors.size(); ++f) {
    if (rule->factors[f].replicate) absl::StrAppend(&out, " whole ", f);
    if (rule->factors[f].even) absl::StrAppend(&out, " even ", f, " of ", rule->factors[f].size);
    if (rule->factors[f].groups > 0) absl::StrAppend(&out, " groups ", rule->factors[f].groups);
  }
  for (const std::vector<int>& set : rule->linear_in)
    absl::StrAppend(&out, " linear ", DimsToString(Dims(set.begin(), set.end())));
  return out;
}

// What the check above cannot see: that a rule allows as much as it should.
TEST(Rule, AllowsWhatLayoutsNeed) {
  const OpTable ops;
  EXPECT_EQ(RuleText(ops, "einsum f32[2,3,5] f32[7,5] spec=\"bsk,nk->bsn\""),
            "[0,1,2][3,2]->[0,1,3] linear [0] linear [1]");
  EXPECT_EQ(RuleText(ops, "einsum_accumulate f32[7] f32[2,3,5] f32[7,5] spec=\"bsk,nk->bsn\""),
            "[3][0,1,2][3,2]->[0,1,3] linear [0,1] linear [0,2]");
  EXPECT_EQ(RuleText(ops, "add f32[3,5] f32[5]"), "[0,1][1]->[0,1] linear [0,1]");
  EXPECT_EQ(RuleText(ops, "cast bf16[3] dtype=f32"), "[0]->[0] linear [0]");
  EXPECT_EQ(RuleText(ops, "cast f32[3] dtype=bf16"), "[0]->[0]");
  EXPECT_EQ(RuleText(ops, "silu f32[3]"), "[0]->[0]");
  EXPECT_EQ(RuleText(ops, "reshape f32[3,8] shape=[3,2,4]"), "[0,1]->[0,1,-1] even 1 of 2 linear [0]");
  EXPECT_EQ(RuleText(ops, "slice f32[3,8] dim=1 start=0 limit=2"), "[0,-1]->[0,-1] linear [0]");
  EXPECT_EQ(RuleText(ops, "rms_norm f32[2,3,5] f32[5] eps=1e-5"), "[0,1,2][2]->[0,1,2][0,1] whole 2");
  EXPECT_EQ(RuleText(ops, "rms_norm_grad f32[2,5] f32[2,5] f32[5] f32[2]"),
            "[0,1][0,1][1][0]->[0,1][1] whole 1 linear [0]");
  EXPECT_EQ(RuleText(ops, "add_rms_norm f32[2,5] f32[2,5] f32[5] eps=1e-5"), "[0,1][0,1][1]->[0,1][0][0,1] whole 1");
  EXPECT_EQ(RuleText(ops, "rms_norm_grad_accumulate f32[2,5] f32[2,5] f32[2,5] f32[5] f32[2]"),
            "[0,1][0,1][0,1][1][0]->[0,1][1] whole 1 linear [0,1]");
  // What is rounded is no summand.
  EXPECT_EQ(RuleText(ops, "rms_norm_grad_accumulate f32[2,5] f32[2,5] f32[2,5] f32[5] f32[2] copy=bf16"),
            "[0,1][0,1][0,1][1][0]->[0,1][1][0,1] whole 1");
  EXPECT_EQ(RuleText(ops, "attention f32[2,5,6,4] f32[2,5,3,4] f32[2,5,3,4] causal=true scale=0.5"),
            "[0,2,1,4][0,3,1,4][0,3,1,4]->[0,2,1,4][0,1,2] even 1 of 6 groups 3 whole 3 whole 4");
  EXPECT_EQ(RuleText(ops, "attention f32[2,8,6,4] f32[2,8,3,4] f32[2,8,3,4] causal=true scale=0.5 block=2"),
            "[0,2,1,3][0,2,1,3][0,2,1,3]->[0,2,1,3][0,1,2] even 1 of 6 groups 3 even 2 of 4 whole 3");
  EXPECT_EQ(
      RuleText(ops, "attention f32[2,5,6,4] f32[2,3,6,4] f32[2,3,6,4] f32[2,3] causal=false scale=0.5 key_bias=true"),
      "[0,2,1,4][0,3,1,4][0,3,1,4][0,3]->[0,2,1,4][0,1,2] whole 3 whole 4");
  // A bias with a dim of 1 is the same for all; its gradient is a sum over them then.
  EXPECT_EQ(RuleText(ops,
                     "attention f32[2,8,6,4] f32[2,8,6,4] f32[2,8,6,4] f32[1,6,8,8] causal=true scale=0.5 bias=true "
                     "zigzag=2"),
            "[0,2,1,4][0,3,1,4][0,3,1,4][-1,1,2,3]->[0,2,1,4][0,1,2] whole 2 whole 3 whole 4");
  EXPECT_EQ(
      RuleText(ops,
               "attention_bias_grad f32[2,5,6,4] f32[2,5,6,4] f32[2,3,6,4] f32[2,3,6,4] f32[2,5,6,4] "
               "f32[2,6,5] f32[2,1,5,3] causal=false scale=0.5 bias=true"),
      "[0,2,1,4][0,2,1,4][0,3,1,4][0,3,1,4][0,2,1,4][0,1,2][0,-1,2,3]->[0,-1,2,3] whole 2 whole 3 whole 4 linear [0]");
  EXPECT_EQ(RuleText(ops, "embedding f32[7,5] i32[2,3]"), "[3,2][0,1]->[0,1,2] linear [0]");
  // Samples, output channels, and input channels, which a bias keeps whole; or groups.
  EXPECT_EQ(RuleText(ops, "convolution f32[2,4,5,5] f32[6,4,3,3]"),
            "[0,2,-1,-1][1,2,-1,-1]->[0,1,-1,-1] linear [0] linear [1]");
  EXPECT_EQ(RuleText(ops, "convolution f32[2,4,5] f32[6,4,3] f32[6]"),
            "[0,2,-1][1,2,-1][1]->[0,1,-1] whole 2 linear [0,2] linear [1,2]");
  EXPECT_EQ(RuleText(ops, "convolution f32[2,4,5] f32[8,1,3] groups=4"),
            "[0,1,-1][1,-1,-1]->[0,1,-1] even 1 of 4 linear [0] linear [1]");
  EXPECT_EQ(RuleText(ops, "convolution_transposed f32[2,6,3] f32[6,4,3] size=[5]"),
            "[0,1,-1][1,2,-1]->[0,2,-1] linear [0] linear [1]");
  EXPECT_EQ(RuleText(ops, "convolution_grad_weight f32[2,6,3] f32[2,4,5] kernel=[3]"),
            "[0,1,-1][0,2,-1]->[1,2,-1] linear [0] linear [1]");
  EXPECT_EQ(RuleText(ops, "max_pool f32[2,4,5,5] kernel=[2,2]"), "[0,1,-1,-1]->[0,1,-1,-1][0,1,-1,-1]");
  EXPECT_EQ(RuleText(ops, "avg_pool f32[2,4,5] kernel=[2]"), "[0,1,-1]->[0,1,-1] linear [0]");
  // The sums of a batch are those of all ranks.
  EXPECT_EQ(RuleText(ops, "channel_sums f32[2,4,5]"), "[0,1,2]->[1][1]");
  EXPECT_EQ(RuleText(ops, "channel_sums f32[2,4,5] f32[2,4,5]"), "[0,1,2][0,1,2]->[1][1] linear [0]");
  EXPECT_EQ(RuleText(ops, "channel_affine f32[2,4,5] f32[4] f32[4]"),
            "[0,1,2][1][1]->[0,1,2] linear [0,2] linear [1,2]");
  // But those of a group of samples are its own.
  EXPECT_EQ(RuleText(ops, "channel_sums f32[4,3,5] groups=2"), "[0,1,2]->[0,1][0,1] even 0 of 2");
  EXPECT_EQ(RuleText(ops, "channel_affine f32[4,3,5] f32[2,3]"),
            "[0,1,2][0,1]->[0,1,2] even 0 of 2 linear [0] linear [1]");
  // Experts are a reduced factor that no slot has: where they are split, each rank sums what its own give.
  EXPECT_EQ(RuleText(ops, "expert_matmul f32[3,9,5] i32[3,9,2] f32[4,6,5] num_experts=4"),
            "[0,1,4][0,1,2][3,5,4]->[0,1,2,5] even 2 of 2 even 3 of 4 linear [0] linear [2]");
  EXPECT_EQ(RuleText(ops, "expert_matmul f32[3,2,6] i32[3,2] f32[4,6,5] num_experts=4 transposed=true sum_slots=true"),
            "[0,1,3][0,1][2,3,4]->[0,4] even 1 of 2 even 2 of 4 linear [0] linear [2]");
  EXPECT_EQ(RuleText(ops, "expert_matmul_grad f32[3,2,6] f32[3,5] i32[3,2] num_experts=4"),
            "[0,1,3][0,4][0,1]->[2,3,4] even 1 of 2 even 2 of 4 linear [0] linear [1]");
  // With ranges the experts lie as the dim of ids that is theirs: nothing to sum.
  EXPECT_EQ(RuleText(ops, "expert_matmul f32[3,1,2,4,5] i32[3,1,2,4] f32[6,7,5] num_experts=6 ranges_dim=2"),
            "[0,1,2,3,4][0,1,2,3][2,5,4]->[0,1,2,3,5] even 2 of 2 even 3 of 4 linear [0] linear [2]");
  EXPECT_EQ(RuleText(ops, "dispatch f32[4,6,5] i32[4,6,2] groups=2 destinations=2 capacity=3"),
            "[0,1,2][0,1,-1]->[0,1,-1,-1,2] even 0 of 4 even 1 of 2 linear [0]");
  EXPECT_EQ(RuleText(ops, "combine f32[4,2,2,3,5] i32[4,6,2] sum_slots=true"),
            "[0,1,-1,-1,2][0,1,-1]->[0,1,2] even 0 of 4 even 1 of 2 linear [0]");
  EXPECT_EQ(RuleText(ops, "mul_rows f32[3,5] f32[3]"), "[0,1][0]->[0,1] linear [0] linear [1]");
  EXPECT_EQ(RuleText(ops, "cross_entropy f32[2,3,7] i32[2,3]"),
            "[0,1,2][0,1]->[][][0,1] even 0 of 2 even 1 of 3 whole 2 even 2 of 7");
}

}  // namespace
}  // namespace tacc::graph
