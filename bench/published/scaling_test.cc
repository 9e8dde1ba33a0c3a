// What the planner promises at scale: time to search, and weak scaling.
#include <gtest/gtest.h>

#include <ctime>

#include "absl/strings/str_cat.h"
#include "bench/published/rows.h"
#include "graph/planner/search.h"

namespace tacc::bench {
namespace {

graph::SearchRequest RequestOf(const char* machine, int64_t gpus, int64_t batch) {
  graph::SearchRequest request;
  request.cluster = *graph::MakeCluster(*graph::FindMachine(machine), gpus);
  request.global_batch = batch;
  request.available_bytes = 0.98 * request.cluster.machine.memory_bytes;
  return request;
}

TEST(Scaling, LargeClustersAreSearchedInTime) {
  struct Case {
    ModelShape shape;
    int64_t gpus, batch;
    double seconds;  // processor time
  };
  const Case cases[] = {{{8192, 64, 64, 32768, 48, 51200, 2048}, 64, 1536, 2},
                        {{8192, 64, 8, 28672, 80, 32000, 4096, true, true}, 1024, 2048, 10},
                        {{25600, 160, 160, 102400, 128, 51200, 2048}, 12288, 12288, 60}};
  for (const Case& c : cases) {
    const std::clock_t start = std::clock();
    const auto result = graph::Search(WorkOf(c.shape), RequestOf("h100", c.gpus, c.batch));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_FALSE(result->best.empty()) << c.gpus;
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, c.seconds) << c.gpus;
    for (const graph::Loser& loser : result->losers) EXPECT_NE(loser.why, "");
  }
}

TEST(Scaling, Llama2ScalesWeaklyOverA100Nodes) {
  const ModelShape llama = {4096, 32, 32, 11008, 32, 32000, 4096, true, true};
  const graph::ModelWork work = WorkOf(llama);
  double first = 0;
  for (int64_t gpus : {8, 128}) {
    const auto result = graph::Search(work, RequestOf("a100-80g", gpus, 8 * gpus));
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_FALSE(result->best.empty());
    const graph::StepEstimate& e = result->best[0].step;
    EXPECT_NEAR(e.seconds, e.compute + e.communication() + e.imbalance + e.bubble + e.update, 1e-9 * e.seconds);
    const double samples_per_second = static_cast<double>(8 * gpus) / e.seconds;
    if (gpus == 8) {
      first = samples_per_second;
    } else {
      EXPECT_GE(samples_per_second / first, 15.6);
    }
  }
}

}  // namespace
}  // namespace tacc::bench
