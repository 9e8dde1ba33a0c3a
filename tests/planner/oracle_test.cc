// The planner's pick against all layouts that it may take, every one of them compiled and simulated: what its estimates
// and the number of its finalists leave out must not cost more than a percent. `oracle` (oracle_main.cc) does it for
// 200 jobs.
#include "tests/planner/oracle.h"

#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

TEST(OracleTest, ThePickCostsAtMostAPercentMoreThanTheBestOfAll) {
  const OpTable ops;
  size_t num_layouts = 0, num_jobs = 0;
  for (uint64_t seed = 1000; seed < 1012; ++seed) {
    const RandomJob job = MakeRandomJob(seed, /*max_layers=*/3, /*max_devices=*/8);
    SCOPED_TRACE(job.name);
    const auto verdict = AskOracle(job, ops);
    if (absl::IsNotFound(verdict.status())) continue;
    ASSERT_TRUE(verdict.ok()) << verdict.status();
    EXPECT_LE(verdict->ratio, 1.01) << verdict->pick.ToString() << ", where the best is " << verdict->best.ToString();
    num_layouts += verdict->num_layouts;
    ++num_jobs;
  }
  // It has seen something.
  EXPECT_GE(num_jobs, 10u);
  EXPECT_GE(num_layouts, 40 * num_jobs);
}

}  // namespace
}  // namespace tacc::graph
