#include "graph/targets/targets.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "graph/ops/op_cases.h"

namespace tacc::graph {
namespace {

TEST(Targets, AreFoundByTheirNames) {
  for (const TargetKind& kind : TargetKinds()) {
    const absl::StatusOr<TargetKind> parsed = ParseTargetKind(kind.name);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_STREQ(parsed->name, kind.name);
    EXPECT_NE(kind.make({}), nullptr) << kind.name;
  }
  EXPECT_EQ(ParseTargetKind("tpu").status().message(), "\"tpu\" is no kind of device; known: cpu, cuda, reference");
}

// Small products take more where the processor multiplies bf16 itself, large ones where they are converted.
TEST(Targets, CpuProductsOfBf16HaveRoomForEveryProcessor) {
  const OpTable ops;
  for (const int64_t n : {16, 2048}) {
    const std::string x = absl::StrCat("bf16[", n, ",", n, "] ");
    const absl::StatusOr<OpCase> op = ParseOpCase(ops, absl::StrCat("einsum ", x, x, "spec=\"ik,jk->ij\""));
    ASSERT_TRUE(op.ok()) << op.status();
    const OpCall call = CallOf(op->graph, op->op_node());
    const auto bytes = [&](bool multiplies_bf16) {
      return ops.Find("einsum")->workspace_bytes(call, *CpuTarget().make({/*threads=*/1, multiplies_bf16}));
    };
    EXPECT_GE(bytes(false), bytes(true));
    EXPECT_GE(bytes(false), 3 * n * n * 4);
    EXPECT_EQ(bytes(false) > bytes(true), n == 2048);
  }
}

}  // namespace
}  // namespace tacc::graph
