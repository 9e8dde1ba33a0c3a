#include "graph/ir/rest_cut.h"

#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

RestCut Cut(const std::vector<DimInUse>& dims, int64_t shards) { return CutAtRest(dims, shards); }

void Expect(const RestCut& cut, int merged, int dim, bool is_equal) {
  EXPECT_EQ(cut.merged, merged);
  EXPECT_EQ(cut.dim, dim);
  EXPECT_EQ(cut.is_equal, is_equal);
}

TEST(RestCut, TakesAsFewLeadingDimsAsDivide) {
  Expect(Cut({{8192}}, 1024), 1, 0, true);
  Expect(Cut({{8192}, {28672}}, 1024), 1, 0, true);
  // Heads, their rows, the model's width.
  Expect(Cut({{64}, {128}, {8192}}, 64), 1, 0, true);
  Expect(Cut({{64}, {128}, {8192}}, 1024), 2, 0, true);
  Expect(Cut({{48}, {128}, {6144}}, 1024), 2, 0, true);
  Expect(Cut({{2}, {96}, {1024}}, 384), 3, 0, true);
  // A vocabulary that is odd: rows of the table are cut in two.
  Expect(Cut({{50257}, {768}}, 16), 2, 0, true);
  Expect(Cut({{8}, {14336}, {4096}}, 128), 2, 0, true);
}

TEST(RestCut, MergesNoDimThatIsSplitInUse) {
  Expect(Cut({{8, true}, {128}, {8192}}, 128), 2, 0, true);
  Expect(Cut({{100}, {8, true}, {128}}, 64), 1, 2, true);
  // Padding in use stands between the ranks' rows.
  Expect(Cut({{25129, true, true}, {768}}, 16), 1, 0, false);
}

TEST(RestCut, PadsWhereNothingDivides) {
  Expect(Cut({{50257}, {768}}, 1024), 2, 0, false);  // 50 rows a rank would be 1.9 % too many
  Expect(Cut({{768}}, 1024), 1, 0, false);
  Expect(Cut({{5}, {3}}, 8), 2, 0, false);
  Expect(Cut({{0}, {4}}, 8), 1, 0, true);
}

}  // namespace
}  // namespace tacc::graph
