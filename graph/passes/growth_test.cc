// What cutting a program into stages takes may grow with its layers and stages, not with their product. Counted in
// bytes that are allocated meanwhile, which are the same on any machine.
#include <cstddef>
#include <cstdlib>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "graph/ir/text.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/testing/test_model.h"
#include "gtest/gtest.h"

namespace {

size_t allocated_bytes = 0;

}  // namespace

void* operator new(size_t bytes) {
  allocated_bytes += bytes;
  if (void* memory = std::malloc(bytes); memory != nullptr) return memory;
  throw std::bad_alloc();
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  allocated_bytes += bytes;
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace tacc::graph {
namespace {

// Bytes that the pass `stages` allocates for a model of so many layers, each a stage.
size_t BytesOfCutting(int num_layers) {
  ParseOptions parse;
  parse.symbols = {{"B", 2}, {"S", 6}};
  const auto forward = ParseGraph(TestModelText(num_layers), parse);
  EXPECT_TRUE(forward.ok()) << forward.status();
  if (!forward.ok()) return 0;
  CompileOptions options;
  options.training.accumulation = 2;
  options.partition.mesh = {{{"pp", num_layers}, {"dp", 1}, {"fsdp", 1}}};
  for (int layer = 0; layer < num_layers; ++layer) options.stages.units.push_back(absl::StrCat("layers.", layer));
  options.schedule.units = options.stages.units;
  const OpTable ops;
  std::vector<MemoryUse> memory;
  std::vector<Program> stages(1);
  stages[0].graphs = {*forward};
  size_t bytes = 0;
  for (const Pass& pass : BuildPipeline(options, &memory)) {
    if (!pass.enabled) continue;
    const size_t before = allocated_bytes;
    EXPECT_TRUE(pass.run(stages, ops).ok()) << pass.name;
    if (pass.name != "stages") continue;
    bytes = allocated_bytes - before;
    break;
  }
  EXPECT_EQ(stages.size(), num_layers);
  return bytes;
}

TEST(Growth, TwiceTheLayersAndStagesTakeLittleMoreThanTwice) {
  const size_t small = BytesOfCutting(16), large = BytesOfCutting(32);
  ASSERT_GT(small, 0);
  RecordProperty("bytes", absl::StrCat(small, " ", large));
  EXPECT_LT(static_cast<double>(large) / static_cast<double>(small), 2.3) << small << " " << large;
}

}  // namespace
}  // namespace tacc::graph
