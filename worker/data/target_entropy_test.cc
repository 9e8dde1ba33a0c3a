#include "worker/data/target_entropy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "worker/data/testing/data_folder.h"

namespace tacc::worker {
namespace {

using testing::AllOf;
using testing::Gt;
using testing::Lt;

TEST(TargetEntropy, IsTheLossOfTheFrequencies) {
  TokenCounts counts;
  EXPECT_EQ(counts.Entropy(), 0);
  counts.Add({7, -1, 3, 7, 7});
  EXPECT_EQ(counts.num_tokens(), 4);
  EXPECT_EQ(counts.num_ids(), 2);
  EXPECT_EQ(counts.num_single_ids(), 1);
  EXPECT_NEAR(counts.Entropy(), 0.75 * std::log(4. / 3) + 0.25 * std::log(4), 1e-12);
}

// Samples of 3 tokens, whose targets are the last two: 1 2, 4 5 and 7 8.
TEST(TargetEntropy, CountsWhatIsPredicted) {
  TestDirectory dir;
  WriteDataFolder(dir.path(), {{{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}});
  const auto dataset = *Dataset::Open(dir.path());
  EXPECT_NEAR(*TargetEntropy(*dataset, 3, 42, 1000, 1000), std::log(6), 1e-12);
  // Two of the three samples, and what is missing of 4 ids seen once each.
  EXPECT_NEAR(*TargetEntropy(*dataset, 3, 42, 6, 1000), std::log(4) + 3. / 8 + 3, 1e-12);
  EXPECT_NEAR(*TargetEntropy(*dataset, 3, 42, 1000, 2), std::log(4) + 3. / 8 + 3, 1e-12);
  EXPECT_NEAR(*TargetEntropy(*dataset, 3, 42, 0, 1000), std::log(2) + 1. / 4 + 3, 1e-12);
}

// Ids 1 to 20,000 as Zipf's law has them: of a 20th of the targets, as few short samples are, most of them do not come.
TEST(TargetEntropy, OfFewSamplesIsNotTooLow) {
  std::vector<uint32_t> tokens;
  for (uint32_t id = 1; id <= 20'000; ++id) tokens.insert(tokens.end(), 30'000 / id, id);
  std::shuffle(tokens.begin(), tokens.end(), std::mt19937_64(7));
  TestDirectory dir;
  WriteDataFolder(dir.path(), {TestShard{tokens}}, 30'000);
  const auto dataset = *Dataset::Open(dir.path());
  const double all = *TargetEntropy(*dataset, 16, 42, 1 << 21, 1 << 21);
  EXPECT_THAT(*TargetEntropy(*dataset, 16, 42, 1 << 21, 1024), AllOf(Gt(all), Lt(all + 1)));
}

// Prompts are rich, answers are 1 or 2.
TEST(TargetEntropy, LeavesOutWhatIsMasked) {
  TestDirectory dir;
  WriteDataFolder(dir.path(), {{{3, 4, 1, 5, 6, 2, 7, 8, 1, 9, 10, 2}, {0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 1}}});
  const auto dataset = *Dataset::Open(dir.path());
  EXPECT_NEAR(*TargetEntropy(*dataset, 6, 42, 1000, 1000), std::log(2), 1e-12);
}

// The first token of each document (7) is no target.
TEST(TargetEntropy, LeavesOutWhereDocumentsBegin) {
  TestDirectory dir;
  WriteDataFolder(dir.path(), {{{7, 1, 7, 2, 7, 1, 7, 2}, {}, 2, {0, 0, 1, 1, 2, 2, 3, 3}}});
  const auto dataset = *Dataset::Open(dir.path());
  EXPECT_NEAR(*TargetEntropy(*dataset, 8, 42, 1000, 1000), std::log(2), 1e-12);
}

TEST(TargetEntropy, NoTargets) {
  TestDirectory dir;
  WriteDataFolder(dir.path(), {{{1, 2, 3, 4}, {0, 0, 0, 0}}});
  const auto dataset = *Dataset::Open(dir.path());
  EXPECT_TRUE(absl::IsNotFound(TargetEntropy(*dataset, 2, 42, 1000, 1000).status()));
}

}  // namespace
}  // namespace tacc::worker
