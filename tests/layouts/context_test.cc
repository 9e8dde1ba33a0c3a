// Context parallelism against one rank, on simulated ranks in double precision: ring attention in zigzag order,
// Ulysses, both together and with other axes. What differs is the order of sums and the softmax in parts.
#include <cmath>
#include <functional>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "graph/analysis/cost.h"
#include "graph/ir/text.h"
#include "graph/ir/topology.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/partition/order_sequence.h"
#include "graph/passes/partition/pins.h"
#include "graph/passes/partition/separate_documents.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/testing/test_model.h"
#include "gtest/gtest.h"
#include "tests/layouts/training.h"

namespace tacc::graph {
namespace {

using interpreter::Array;
using interpreter::Arrays;

constexpr int64_t kBatch = 4, kSeq = 16, kVocab = 13;
constexpr int kSteps = 2;

struct Layout {
  int64_t cp = 1, sp = 1, tp = 1, dp = 1, fsdp = 1;
  int prefetch_units = 1;
  DType compute_dtype = DType::kF32;
  // Without an order keys and values are gathered instead of going round.
  bool ordered = true;
  // Rows of several documents; with learned positions beside rotary ones.
  bool documents = false;
  int64_t batch = kBatch;
  // Attributes of each attention beside causal and scale; with sinks=true each layer has sinks of its own.
  std::string attention;
  // Lines in place of others of the model, as an exported one has them.
  std::vector<std::pair<std::string, std::string>> lines;
  std::vector<std::string> topology;
  Pins pins;

  int64_t ranks() const { return cp * sp * tp * dp * fsdp; }
};

std::string Name(const Layout& l) {
  return absl::StrCat("cp", l.cp, "_sp", l.sp, "_tp", l.tp, "_dp", l.dp, "_fsdp", l.fsdp, "_prefetch", l.prefetch_units,
                      l.compute_dtype == DType::kBF16 ? "_mixed" : "", l.ordered ? "" : "_gathered",
                      l.topology.empty() ? "" : absl::StrCat("_", absl::StrJoin(l.topology, "_")),
                      l.pins.empty() ? "" : "_pinned");
}

constexpr char kEmbedding[] = "%h0 = embedding %table, %tokens : f32[B,S,8] @embed\n";
constexpr char kEmbeddingWithPositions[] = R"TEXT(%positions = positions length=16 : i32[S]
%ptable = param "positions.weight" init="normal(0.5)" : f32[16,8]
%e0 = embedding %table, %tokens : f32[B,S,8]
%pe = embedding %ptable, %positions : f32[S,8]
%h0 = add %e0, %pe : f32[B,S,8] @embed
)TEXT";

// The test model with the layout's attributes of attention.
std::string ModelText(const Layout& layout) {
  std::string text = absl::StrReplaceAll(
      TestModelText(), {{"length=6", absl::StrCat("length=", kSeq)}, {kEmbedding, kEmbeddingWithPositions}});
  text = absl::StrReplaceAll(text, {{"%targets = ",
                                     "%step = input \"step\" : i64[]\n"
                                     "%sample = input \"sample\" : i64[B]\n%targets = "}});
  const bool key_bias = absl::StrContains(layout.attention, "key_bias=true"),
             has_mask = absl::StrContains(layout.attention, "causal=");
  if (key_bias) {  // Of keys that are there or not, as an exported model has it.
    text = absl::StrReplaceAll(text, {{"%targets = ",
                                       "%there = input \"there\" : f32[B,S]\n"
                                       "%key_bias = log %there : f32[B,S]\n%targets = "}});
  }
  for (const char* layer : {"0", "1"}) {
    const std::string before = absl::StrCat(", %v", layer, " causal=true");
    const bool sinks = absl::StrContains(layout.attention, "sinks=true");
    const bool dropout = absl::StrContains(layout.attention, "dropout=");
    const std::string operand = absl::StrCat(sinks ? absl::StrCat(", %sinks", layer) : "",
                                             dropout ? ", %step, %sample" : "", key_bias ? ", %key_bias" : "");
    text = absl::StrReplaceAll(
        text, {{before, absl::StrCat(", %v", layer, operand, has_mask ? " " : " causal=true ", layout.attention)},
               {absl::StrCat("%a", layer, ", %l"),
                absl::StrCat(sinks ? absl::StrReplaceAll("%sinks$ = param \"layers.$.sinks\" axes=[heads] "
                                                         "init=\"normal(0.5)\" : f32[4] @layers.$.attn\n",
                                                         {{"$", layer}})
                                   : "",
                             "%a", layer, ", %l")}});
  }
  return absl::StrReplaceAll(text, layout.lines);
}

absl::StatusOr<Compiled> CompileLayout(const Layout& layout, const OpTable& ops) {
  ParseOptions parse;
  parse.symbols = {{"B", layout.batch}, {"S", kSeq}};
  auto forward = ParseGraph(ModelText(layout), parse);
  if (!forward.ok()) return forward.status();
  if (layout.documents) {
    forward = SeparateDocuments(*forward, ops);
    if (!forward.ok()) return forward.status();
  }
  CompileOptions options;
  options.training.learning_rate = 1e-2;
  options.training.max_steps = 10;
  options.training.weight_decay = 0.1;
  options.training.max_grad_norm = 0.5;
  options.compute_dtype = layout.compute_dtype;
  options.sequence_blocks = layout.ordered ? layout.cp : 0;
  const auto mesh =
      InTopology({{{"dp", layout.dp}, {"fsdp", layout.fsdp}, {"cp", layout.cp}, {"sp", layout.sp}, {"tp", layout.tp}}},
                 layout.topology);
  if (!mesh.ok()) return mesh.status();
  options.partition = LayoutOf(*mesh, "embed");
  if (auto status = ApplyPins(layout.pins, *forward, options.partition); !status.ok()) return status;
  options.partition.units = options.schedule.units = {"layers.0", "layers.1"};
  options.schedule.prefetch_units = layout.prefetch_units;
  return Compile(*forward, ops, options);
}

// Keys go through the softmax in parts.
constexpr Tolerance kTolerance = {.losses = 1e-11, .weights = 1e-10};

absl::StatusOr<TrainingRun> Train(const Layout& layout, const OpTable& ops,
                                  const std::function<Arrays(int step)>& batch) {
  auto compiled = CompileLayout(layout, ops);
  if (!compiled.ok()) return compiled.status();
  return TrainOnSimulatedRanks(compiled->stages[0], kSteps, 1, [&](int step, int64_t) { return batch(step); });
}

// Of texts that are padded on the right, on the left, not at all, and of padding alone.
Array KeysOfTexts() {
  Array there = Array::Filled({kBatch, kSeq}, 0);
  for (int64_t s = 0; s < kSeq; ++s) {
    there.at({0, s}) = s < 6 ? 1 : 0;
    there.at({1, s}) = s < 5 ? 0 : 1;
    there.at({2, s}) = 1;
  }
  return there;
}

absl::StatusOr<TrainingRun> Train(const Layout& layout, const OpTable& ops) {
  return Train(layout, ops, [](int step) {
    Arrays batch = RandomRows(step, 0, kBatch, kSeq, kVocab);
    batch["there"] = KeysOfTexts();
    return batch;
  });
}

class ContextTest : public testing::TestWithParam<Layout> {};

TEST_P(ContextTest, EqualsOneRank) {
  const OpTable ops;
  const auto one = Train({.ordered = false}, ops);
  ASSERT_TRUE(one.ok()) << one.status();
  ExpectSame(Train(GetParam(), ops), one, kTolerance);
}

// Replicating everything would pass the test above; this one counts. (Gathered keys leave their gradients' products to
// every rank; no plan asks for it.)
TEST_P(ContextTest, SharesTheWork) {
  const Layout layout = GetParam();
  if (!layout.ordered) return;
  const OpTable ops;
  auto one = CompileLayout({.compute_dtype = layout.compute_dtype, .ordered = false}, ops),
       many = CompileLayout(layout, ops);
  ASSERT_TRUE(one.ok() && many.ok()) << one.status() << many.status();
  const DeviceProfile device;
  // Over tp, 7 features and 13 tokens of the vocabulary are padded to 8 and 14.
  const double padding = layout.tp > 1 ? 8.0 / 7 : 1;
  EXPECT_LE(
      StepCostOf(many->stages[0], ops, device).matmul_flops,
      1.05 * padding / static_cast<double>(layout.ranks()) * StepCostOf(one->stages[0], ops, device).matmul_flops);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, ContextTest,
    testing::Values(Layout{.cp = 2}, Layout{.cp = 2, .prefetch_units = 0}, Layout{.cp = 4}, Layout{.sp = 2},
                    Layout{.cp = 2, .sp = 2}, Layout{.cp = 2, .tp = 2}, Layout{.cp = 2, .dp = 2},
                    Layout{.cp = 2, .fsdp = 2}, Layout{.sp = 2, .fsdp = 2}, Layout{.sp = 2, .tp = 2},
                    Layout{.cp = 2, .sp = 2, .tp = 2}, Layout{.cp = 8}, Layout{.cp = 2, .compute_dtype = DType::kBF16},
                    Layout{.cp = 2, .ordered = false}, Layout{.cp = 4, .fsdp = 2, .ordered = false},
                    Layout{.cp = 2, .sp = 2, .tp = 2, .topology = {"tp", "cp"}},
                    Layout{.cp = 2, .dp = 2, .fsdp = 2, .topology = {"cp", "fsdp", "dp"}},
                    // The hidden dim takes what splits the sequence; tokens come whole.
                    Layout{.cp = 2,
                           .sp = 2,
                           .fsdp = 2,
                           .pins = {{"layers.0.mlp", "[fsdp, -, cp]"}, {"layers.1.attn", "[fsdp, -, -]"}}}),
    [](const testing::TestParamInfo<Layout>& info) { return Name(info.param); });

// Whatever attention does beside its mask, it does with keys that go round and with heads for a sequence.
TEST(Context, FeaturesOfAttentionEqualOneRank) {
  const OpTable ops;
  for (const char* attention :
       {"sinks=true", "window=5", "softcap=0.3", "dropout=0.3 dropout_key=2 dropout_seed=9",
        "window=3 softcap=0.5 sinks=true dropout=0.1 dropout_key=0 dropout_seed=42", "key_bias=true",
        "causal=false key_bias=true", "key_bias=true window=3 sinks=true dropout=0.1 dropout_key=0 dropout_seed=42"}) {
    const auto one = Train({.ordered = false, .attention = attention}, ops);
    ASSERT_TRUE(one.ok()) << one.status();
    const auto plain = Train({.ordered = false}, ops);
    ASSERT_TRUE(plain.ok()) << plain.status();
    EXPECT_NE(one->losses, plain->losses) << attention;
    for (const Layout& layout :
         {Layout{.cp = 2, .attention = attention}, Layout{.cp = 4, .attention = attention},
          Layout{.sp = 2, .attention = attention}, Layout{.tp = 2, .fsdp = 2, .attention = attention},
          Layout{.cp = 2, .sp = 2, .tp = 2, .attention = attention},
          Layout{.cp = 2, .ordered = false, .attention = attention},
          Layout{.cp = 2, .fsdp = 2, .compute_dtype = DType::kBF16, .attention = attention}}) {
      SCOPED_TRACE(absl::StrCat(attention, " ", Name(layout)));
      ExpectSame(Train(layout, ops), one, kTolerance);
    }
  }
}

// What whole numbers alone are computed of along the sequence stays in natural order until it meets the sequence:
// labels that a model shifts by itself, and positions that are the running sum of a mask.
TEST(Context, WhatModelsComputeOfWholeNumbersEqualsOneRank) {
  const OpTable ops;
  const std::string targets = "%targets = input \"targets\" : i32[B,S]\n";
  const std::string shifted = R"TEXT(%labels = input "targets" : i32[B,S]
%none = constant dtype=i32 shape=[B,1] value=-1.0 : i32[B,1]
%longer = concat %labels, %none dim=1 : i32[B,S+1]
%targets = slice %longer dim=1 limit=S+1 start=1 : i32[B,S]
)TEXT";
  const std::string tokens = "%tokens = input", mask = "%mask = input \"mask\" : i64[B,S]\n%tokens = input";
  const std::string counted = R"TEXT(%sums = cumsum %mask dim=1 : i64[B,S]
%places = cast %sums dtype=i32 : i32[B,S]
%ptable = param "positions.weight" init="normal(0.5)" : f32[17,8]
%e0 = embedding %table, %tokens : f32[B,S,8]
%pe = embedding %ptable, %places : f32[B,S,8]
%h0 = add %e0, %pe : f32[B,S,8] @embed
)TEXT";
  const std::string there = "%there = input \"there\" : f32[B,S]\n";
  const std::string of_mask = "%there = cast %mask dtype=f32 : f32[B,S]\n";
  const auto batch = [](int step) {
    Arrays batch = RandomRows(step, 0, kBatch, kSeq, kVocab);
    batch["mask"] = KeysOfTexts();
    return batch;
  };
  using Lines = std::vector<std::pair<std::string, std::string>>;
  for (const auto& [name, lines, attention] :
       {std::tuple("shifted labels", Lines{{targets, shifted}}, ""),
        std::tuple("counted positions", Lines{{tokens, mask}, {kEmbedding, counted}}, ""),
        std::tuple("both", Lines{{tokens, mask}, {kEmbedding, counted}, {targets, shifted}}, ""),
        std::tuple("the mask hides keys too", Lines{{tokens, mask}, {kEmbedding, counted}, {there, of_mask}},
                   "causal=true key_bias=true")}) {
    const Layout one{.attention = attention, .lines = lines};
    const auto alone = Train(one, ops, batch);
    ASSERT_TRUE(alone.ok()) << name << ": " << alone.status();
    for (const auto& [cp, sp, fsdp] :
         {std::tuple(2, 1, 1), std::tuple(4, 1, 1), std::tuple(2, 2, 1), std::tuple(2, 1, 2)}) {
      Layout layout = one;
      layout.cp = cp, layout.sp = sp, layout.fsdp = fsdp;
      SCOPED_TRACE(absl::StrCat(name, " ", Name(layout)));
      ExpectSame(Train(layout, ops, batch), alone, kTolerance);
      const auto compiled = CompileLayout(layout, ops);
      ASSERT_TRUE(compiled.ok()) << compiled.status();
      for (const Graph& graph : compiled->stages[0].graphs) {
        for (const Value& value : graph.values) {
          if (!value.placement.has_value() || value.placement->global.dims != Dims{kBatch, kSeq, 8}) continue;
          EXPECT_FALSE(value.placement->sharding.dims[1].empty()) << value.name << ": each rank has all tokens";
        }
      }
    }
  }
}

// The documents of each row, by their lengths.
const std::vector<std::vector<int64_t>> kRows = {{5, 1, 10}, {16}, {3, 7, 6}, {8, 8}};

// Tokens and targets of document `number`: its last token has no target.
void FillDocument(int step, int number, int64_t length, int64_t row, int64_t first, Arrays& batch) {
  std::mt19937 random(static_cast<uint32_t>(step * 100 + number));
  int64_t token = random() % kVocab;
  for (int64_t i = 0; i < length; ++i) {
    const int64_t next = random() % kVocab;
    batch["tokens"].at({row, first + i}) = static_cast<double>(token);
    batch["targets"].at({row, first + i}) = i + 1 < length ? static_cast<double>(next) : -1.0;
    batch["document_start"].at({row, first + i}) = static_cast<double>(first);
    token = next;
  }
}

// `packed`: as kRows has them; else each in a row of its own, padded with tokens that are no targets.
Arrays Documents(int step, bool packed) {
  int64_t num_documents = 0;
  for (const auto& row : kRows) num_documents += static_cast<int64_t>(row.size());
  const Dims dims = {packed ? static_cast<int64_t>(kRows.size()) : num_documents, kSeq};
  Arrays batch;
  batch["tokens"] = batch["document_start"] = Array::Filled(dims, 0);
  batch["targets"] = Array::Filled(dims, -1);
  batch["step"] = Array{{}, {static_cast<double>(step)}};
  int number = 0;
  for (size_t row = 0; row < kRows.size(); ++row) {
    int64_t first = 0;
    for (int64_t length : kRows[row]) {
      FillDocument(step, number, length, packed ? static_cast<int64_t>(row) : number, packed ? first : 0, batch);
      first += length;
      ++number;
    }
  }
  return batch;
}

TEST(Documents, PackedRowsGiveTheSameAsTheDocumentsOneByOne) {
  const OpTable ops;
  const auto alone = Train({.ordered = false, .batch = 9}, ops, [](int step) { return Documents(step, false); });
  ASSERT_TRUE(alone.ok()) << alone.status();
  for (const Layout& layout : {Layout{.ordered = false, .documents = true}, Layout{.cp = 4, .documents = true},
                               Layout{.cp = 2, .sp = 2, .fsdp = 2, .documents = true}}) {
    const auto packed = Train(layout, ops, [](int step) { return Documents(step, true); });
    ExpectSame(packed, alone, kTolerance);
  }
}

// A table of positions in natural order would be added to the wrong tokens.
TEST(Context, RefusesWhatKeepsItsOwnOrder) {
  const OpTable ops;
  Program program;
  auto graph = ParseGraph(R"(tacc.graph 1
%x = input "x" : f32[2,8]
%p = param "positions" : f32[8]
%y = add %x, %p : f32[2,8] @embed
)",
                          {});
  ASSERT_TRUE(graph.ok()) << graph.status();
  program.graphs = {*graph};
  EXPECT_TRUE(OrderSequence(program, ops, 1).ok());
  EXPECT_EQ(OrderSequence(program, ops, 2).status().message(),
            "add at embed: dim 0 of %p meets the sequence, but context parallelism holds the sequence in another order "
            "than it; make what depends on positions from the op `positions`");
}

// A running sum over tokens in the ring's order is another one.
TEST(Context, RefusesWhatWorksAlongTheSequence) {
  const OpTable ops;
  for (const auto& [node, message] : {std::pair{"cumsum %x dim=1 : f32[2,8]",
                                                "cumsum at mixer: dim 1 of %x is the sequence, which context "
                                                "parallelism holds in another order"},
                                      {"slice %x dim=1 start=1 limit=8 : f32[2,7]",
                                       "slice at mixer: dim 1 of %x is the sequence, which context "
                                       "parallelism holds in another order"},
                                      {"cumsum %x dim=0 : f32[2,8]", ""},
                                      {"reshape %x shape=[16] : f32[16]", ""}}) {
    const std::string text = absl::StrCat("tacc.graph 1\n%x = input \"x\" : f32[2,8]\n%y = ", node, " @mixer\n");
    auto graph = ParseGraph(text, {});
    ASSERT_TRUE(graph.ok()) << graph.status();
    Program program;
    program.graphs = {*graph};
    EXPECT_EQ(OrderSequence(program, ops, 2).status().message(), message) << node;
  }
}

// Random numbers of the sequence are those of the tokens' positions; others along it would be of other tokens.
TEST(Context, RandomNumbersOfTheSequenceFollowItsOrder) {
  const OpTable ops;
  const auto order = [&](const std::string& attr, Program& program) {
    auto graph = ParseGraph(absl::StrCat(R"(tacc.graph 1
%step = input "step" : i64[]
%sample = input "sample" : i64[2]
%x = input "x" : f32[2,8]
%r = random %step, %sample distribution=normal dtype=f32 key=0 seed=42 shape=[2,8])",
                                         attr, " : f32[2,8]\n%y = add %x, %r : f32[2,8] @noise\n"),
                            {});
    EXPECT_TRUE(graph.ok()) << graph.status();
    program.graphs = {*graph};
    return std::string(OrderSequence(program, ops, 2).status().message());
  };
  Program program;
  EXPECT_EQ(order(" sequence=true", program), "");
  EXPECT_EQ(GetAttr<int64_t>(program.graphs[0].nodes[3].attrs, "zigzag"), 2);
  EXPECT_EQ(order("", program),
            "add at noise: dim 1 of %r meets the sequence, but context parallelism holds the sequence in another order "
            "than it; make what depends on positions from the op `positions`");
}

// Bytes of keys and values of one layer on one rank: f32 [B, S / ranks, 2 heads, 2] each.
int64_t KeyValueBytes(int64_t ranks) { return 2 * kBatch * (kSeq / ranks) * 2 * 2 * 4; }

// What makes the operand of each gather: "read" where it is of a weight's slices, and keys and values are not gathered.
std::vector<std::string> Gathered(const Graph& graph) {
  const std::vector<int> producers = graph.Producers();
  std::vector<std::string> ops;
  for (const Node& node : graph.nodes) {
    if (node.op == Op::kAllGather) ops.emplace_back(graph.nodes[producers[node.operands[0]]].op.name());
  }
  return ops;
}

// What ring attention moves: forward n - 1 times the rank's keys and values; backward the same, and as often their
// gradients, in f32.
TEST(Context, ARingSendsWhatTheorySays) {
  const OpTable ops;
  for (int64_t n : {2, 4}) {
    const auto compiled = CompileLayout({.cp = n}, ops);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    const Graph& graph = *compiled->stages[0].FindGraph("forward_backward");
    int64_t sent = 0, largest_keys = 0;
    for (const Node& node : graph.nodes) {
      if (node.op == Op::kRotateBlocks) sent += SentBytes(graph, node, compiled->stages[0].mesh);
      if (absl::StartsWith(node.op, "attention"))
        largest_keys = std::max(largest_keys, graph.type(node.operands[2]).dims[1]);
    }
    EXPECT_THAT(Gathered(graph), testing::Each("read"));
    EXPECT_EQ(sent, 2 * 3 * (n - 1) * KeyValueBytes(n));
    EXPECT_EQ(largest_keys, kSeq / n);  // never all of them
  }
}

// The bias of keys goes round with them: beside what is sent without it, n - 1 times its block forward and backward, in
// each of two layers.
TEST(Context, ARingSendsTheBiasOfKeysWithThem) {
  const OpTable ops;
  const auto compiled = CompileLayout({.cp = 4, .attention = "key_bias=true"}, ops);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const Graph& graph = *compiled->stages[0].FindGraph("forward_backward");
  int64_t sent = 0;
  for (const Node& node : graph.nodes) {
    if (node.op == Op::kRotateBlocks && graph.type(node.operands[0]).rank() == 2)
      sent += SentBytes(graph, node, compiled->stages[0].mesh);
  }
  EXPECT_EQ(sent, 2 * 2 * 3 * kBatch * (kSeq / 4) * 4);
  EXPECT_THAT(Gathered(graph), testing::Each("read"));
}

// Each exchange moves (n - 1) / n of a rank's part: q, k, v and out, and their gradients on the way back. What has been
// exchanged is kept for the backward.
TEST(Context, UlyssesSendsWhatTheorySays) {
  const OpTable ops;
  const auto compiled = CompileLayout({.sp = 2}, ops);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const Graph& graph = *compiled->stages[0].FindGraph("forward_backward");
  int64_t exchanges = 0;
  for (const Node& node : graph.nodes) {
    exchanges += node.op == Op::kAllToAll;
    if (!absl::StartsWith(node.op, "attention")) continue;
    EXPECT_EQ(graph.type(node.operands[1]).dims, (Dims{kBatch, kSeq, node.op == "attention" ? 1 : 2, 2}));
  }
  EXPECT_EQ(exchanges, 2 * (4 + 4));  // of two layers
  EXPECT_THAT(Gathered(graph), testing::Each("read"));
}

TEST(Context, SaysWhichLengthsCanBeCut) {
  const OpTable ops;
  EXPECT_EQ(CompileLayout({.cp = 3}, ops).status().message(),
            "order-sequence: data.seq_len = 16 cannot be cut into 6 equal chunks, two for each of 3 workers of context "
            "parallelism; nearest legal values: 12 and 18");
}

}  // namespace
}  // namespace tacc::graph
