// The equality matrix: every layout of every family against one rank with the same micro-batches. Ranks are threads of
// this process, with the kernels, executors and collectives that jobs have. Prints a table, and leaves it in
// $TACC_TABLES.
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "tests/matrix/row.h"
#include "tests/matrix/table.h"

namespace tacc::matrix {
namespace {

struct Part {
  std::string family;
  std::string name;
  std::vector<Layout> layouts;
};

constexpr const char* kFamilies[] = {"llama", "qwen3", "bloom", "mixtral"};

bool HasExperts(const std::string& family) { return family == "mixtral"; }

std::vector<Part> Parts() {
  std::vector<Part> parts;
  for (const char* family : kFamilies) {
    parts.push_back({family, "alone_2", EachAlone(2)});
    parts.push_back({family, "alone_4", EachAlone(4)});
    parts.push_back({family, "pairs_8", Pairs()});
    parts.push_back({family, "triples_8", Triples(HasExperts(family) ? Experts::kPresent : Experts::kNone)});
  }
  return parts;
}

// What no system could do: experts that the model does not have.
bool MayBeRefused(const std::string& family, const Layout& layout) { return layout.ep > 1 && !HasExperts(family); }

class MatrixTest : public testing::TestWithParam<Part> {};

TEST_P(MatrixTest, EveryLayoutEqualsOneRank) {
  const Part& part = GetParam();
  const graph::OpTable ops;
  References references(ops);
  std::string table = absl::StrFormat("%-8s %-32s %5s  %9s %9s  %6s %6s  %-11s  %s\n", "model", "layout", "ranks",
                                      "loss", "norm", "FLOPs", "states", "plan/theory", "sent/plan");
  for (const Layout& layout : part.layouts) {
    SCOPED_TRACE(absl::StrCat(part.family, " ", layout.Name()));
    absl::StrAppendFormat(&table, "%-8s %-32s %5d", part.family, layout.Name(), layout.ranks());
    const absl::StatusOr<Row> row = MeasureRow(part.family, layout, ops, references);
    if (!row.ok()) {
      ADD_FAILURE() << row.status();
      absl::StrAppend(&table, "  failed: ", std::string(row.status().message()), "\n");
      continue;
    }
    if (!row->refusal.empty()) {
      EXPECT_TRUE(MayBeRefused(part.family, layout)) << row->refusal;
      absl::StrAppend(&table, "  refused: ", row->refusal, "\n");
      continue;
    }
    EXPECT_FALSE(MayBeRefused(part.family, layout));
    absl::StrAppendFormat(&table, "  %9.1e %9.1e  %6.3f %6.3f  %.3f-%.3f  %.3f\n", row->loss_difference,
                          row->norm_difference, row->flops_share, row->bytes_share, row->least_sent, row->most_sent,
                          row->counted_sent);
    EXPECT_LE(row->loss_difference, LossTolerance(layout));
    EXPECT_LE(row->norm_difference, 1e-5);
    EXPECT_TRUE(row->same_experts);
    EXPECT_LE(row->flops_share, 1.05);
    EXPECT_LE(row->bytes_share, 1.05);
    EXPECT_GE(row->least_sent, 0.95);
    EXPECT_LE(row->most_sent, 1.05);
    EXPECT_LE(row->counting_difference, 1e-3);
  }
  PrintTable(absl::StrCat(part.family, "_", part.name), table);
}

class ReferenceTest : public testing::TestWithParam<const char*> {};

// Equality of runs that learn nothing would prove little.
TEST_P(ReferenceTest, LossFallsByATenth) {
  const graph::OpTable ops;
  References references(ops);
  const absl::StatusOr<const Reference*> one = references.Of({GetParam()});
  ASSERT_TRUE(one.ok()) << one.status();
  const std::vector<double>& losses = (*one)->log.losses();
  ASSERT_EQ(losses.size(), static_cast<size_t>(kSteps));
  EXPECT_LE(losses.back(), 0.9 * losses.front());
  EXPECT_EQ((*one)->log.outputs.count(kChosenExperts), HasExperts(GetParam()) ? 1u : 0u);
}

INSTANTIATE_TEST_SUITE_P(Models, ReferenceTest, testing::ValuesIn(std::begin(kFamilies), std::end(kFamilies)),
                         [](const auto& info) { return std::string(info.param); });
INSTANTIATE_TEST_SUITE_P(Models, MatrixTest, testing::ValuesIn(Parts()), [](const testing::TestParamInfo<Part>& info) {
  return absl::StrCat(info.param.family, "_", info.param.name);
});

}  // namespace
}  // namespace tacc::matrix
