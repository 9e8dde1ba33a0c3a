#include "graph/passes/pipeline.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/text.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/testing/test_model.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

std::string TextOf(const std::vector<Program>& stages) {
  std::string text;
  for (const Program& stage : stages) absl::StrAppend(&text, Print(stage));
  return text;
}

// Runs the pipeline by hand. Returns the passes that changed the text of the programs; fails where a pass says
// otherwise.
std::set<std::string> ChangingPasses(const CompileOptions& options) {
  std::set<std::string> changing;
  ParseOptions parse;
  parse.symbols = {{"B", 4}, {"S", 6}};
  const auto forward = ParseGraph(TestModelText(), parse);
  EXPECT_TRUE(forward.ok()) << forward.status();
  if (!forward.ok()) return changing;
  const OpTable ops;
  std::vector<MemoryUse> memory;
  std::vector<Program> stages(1);
  stages[0].graphs = {*forward};
  for (const Pass& pass : BuildPipeline(options, &memory)) {
    if (!pass.enabled) continue;
    const std::string before = TextOf(stages);
    const absl::StatusOr<bool> changed = pass.run(stages, ops);
    EXPECT_TRUE(changed.ok()) << pass.name << ": " << changed.status();
    if (!changed.ok()) break;
    EXPECT_EQ(*changed, TextOf(stages) != before) << pass.name;
    if (*changed) changing.insert(pass.name);
  }
  EXPECT_EQ(memory.size(), stages.size());
  return changing;
}

TEST(Pipeline, PassesSayWhetherTheyChangedAnything) {
  const std::set<std::string> alone = ChangingPasses({});
  EXPECT_EQ(alone.count("remat"), 0);
  EXPECT_EQ(alone.count("partition"), 1);
  CompileOptions options;
  options.compute_dtype = options.residual_dtype = DType::kBF16;
  options.training.accumulation = 4;
  options.schedule.units = {"layers.0", "layers.1"};
  options.remat.units = {"layers.0"};
  options.product_seconds = [](const Node& node, const OpCall&) { return node.op == "einsum_joined" ? 0.0 : 1.0; };
  const Mesh data = {{{"dp", 2}, {"fsdp", 2}}};
  options.partition = LayoutOf(data, "embed");
  options.partition.reduce_dtype = DType::kBF16;
  const std::set<std::string> split = ChangingPasses(options);
  for (const char* pass : {"mixed-precision", "remat", "narrow-residual", "fuse-norms"})
    EXPECT_EQ(split.count(pass), 1);
  const Mesh sequence = {{{"cp", 3}, {"tp", 2}}};
  options.partition = LayoutOf(sequence, "embed");
  options.sequence_blocks = SequenceBlocks(sequence);
  EXPECT_EQ(ChangingPasses(options).count("order-sequence"), 1);
  const Mesh staged = {{{"pp", 2}, {"fsdp", 2}}};
  options.partition = LayoutOf(staged, "embed");
  options.sequence_blocks = 0;
  options.stages.units = options.schedule.units;
  EXPECT_EQ(ChangingPasses(options).count("stages"), 1);
}

TEST(Pipeline, LeavesOutWhatTheOptionsDoNotAskFor) {
  for (const Pass& pass : BuildPipeline({}, nullptr)) {
    if (pass.name == "stages" || pass.name == "mixed-precision") {
      EXPECT_FALSE(pass.enabled) << pass.name;
    } else if (pass.name == "partition") {
      EXPECT_TRUE(pass.enabled);
    }
  }
}

}  // namespace
}  // namespace tacc::graph
