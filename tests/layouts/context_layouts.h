// The layouts of context parallelism that tests train, on simulated ranks in double precision: ring attention in zigzag
// order, Ulysses, both together and with other axes.
#ifndef TACC_TESTS_LAYOUTS_CONTEXT_LAYOUTS_H_
#define TACC_TESTS_LAYOUTS_CONTEXT_LAYOUTS_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "graph/ir/text.h"
#include "graph/ir/topology.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/partition/pins.h"
#include "graph/passes/partition/separate_documents.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/testing/test_model.h"
#include "tests/layouts/training.h"

namespace tacc::graph {

using interpreter::Array;
using interpreter::Arrays;

inline constexpr int64_t kBatch = 4, kSeq = 16, kVocab = 13;
inline constexpr int kSteps = 2;

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

inline std::string Name(const Layout& l) {
  return absl::StrCat("cp", l.cp, "_sp", l.sp, "_tp", l.tp, "_dp", l.dp, "_fsdp", l.fsdp, "_prefetch", l.prefetch_units,
                      l.compute_dtype == DType::kBF16 ? "_mixed" : "", l.ordered ? "" : "_gathered",
                      l.topology.empty() ? "" : absl::StrCat("_", absl::StrJoin(l.topology, "_")),
                      l.pins.empty() ? "" : "_pinned");
}

inline constexpr char kEmbedding[] = "%h0 = embedding %table, %tokens : f32[B,S,8] @embed\n";
inline constexpr char kEmbeddingWithPositions[] = R"TEXT(%positions = positions length=16 : i32[S]
%ptable = param "positions.weight" init="normal(0.5)" : f32[16,8]
%e0 = embedding %table, %tokens : f32[B,S,8]
%pe = embedding %ptable, %positions : f32[S,8]
%h0 = add %e0, %pe : f32[B,S,8] @embed
)TEXT";

// The test model with the layout's attributes of attention.
inline std::string ModelText(const Layout& layout) {
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

inline absl::StatusOr<Compiled> CompileLayout(const Layout& layout, const OpTable& ops) {
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
inline constexpr Tolerance kTolerance = {.losses = 1e-11, .weights = 1e-10};

inline absl::StatusOr<TrainingRun> Train(const Layout& layout, const OpTable& ops,
                                         const std::function<Arrays(int step)>& batch) {
  auto compiled = CompileLayout(layout, ops);
  if (!compiled.ok()) return compiled.status();
  return TrainOnSimulatedRanks(compiled->stages[0], kSteps, 1, [&](int step, int64_t) { return batch(step); });
}

// Of texts that are padded on the right, on the left, not at all, and of padding alone.
inline Array KeysOfTexts() {
  Array there = Array::Filled({kBatch, kSeq}, 0);
  for (int64_t s = 0; s < kSeq; ++s) {
    there.at({0, s}) = s < 6 ? 1 : 0;
    there.at({1, s}) = s < 5 ? 0 : 1;
    there.at({2, s}) = 1;
  }
  return there;
}

inline absl::StatusOr<TrainingRun> Train(const Layout& layout, const OpTable& ops) {
  return Train(layout, ops, [](int step) {
    Arrays batch = RandomRows(step, 0, kBatch, kSeq, kVocab);
    batch["there"] = KeysOfTexts();
    return batch;
  });
}

}  // namespace tacc::graph

#endif  // TACC_TESTS_LAYOUTS_CONTEXT_LAYOUTS_H_
