// Context parallelism against one rank. What differs is the order of sums and the softmax in parts.
#include <cmath>
#include <random>

#include "gmock/gmock.h"
#include "graph/analysis/cost.h"
#include "gtest/gtest.h"
#include "tests/layouts/context_layouts.h"

namespace tacc::graph {
namespace {

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
