#include "metrics/metric.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace tacc::metrics {
namespace {

TEST(Metrics, HaveNamesAsPrometheusWantsThem) {
  std::set<std::string> names;
  for (const Metric& metric : AllMetrics()) {
    EXPECT_TRUE(names.insert(metric.name).second) << metric.name << " is declared twice";
    EXPECT_THAT(metric.name, testing::StartsWith("tacc_"));
    EXPECT_THAT(metric.help, testing::EndsWith(".")) << metric.name;
  }
}

TEST(Metrics, AreServedInTheirOrder) {
  Families families;
  families.Add("tacc_worker_rank_running", 1, {"w0"});
  families.Add("tacc_build_info", 1, {"1.0"});
  families.Add("tacc_worker_rank_running", 0, {"w1"});
  const std::vector<prometheus::MetricFamily> taken = families.Take();
  ASSERT_EQ(taken.size(), 2);
  EXPECT_EQ(taken[0].name, "tacc_build_info");
  ASSERT_EQ(taken[1].metric.size(), 2);
  EXPECT_EQ(taken[1].metric[1].label[0].value, "w1");
  EXPECT_EQ(taken[1].type, prometheus::MetricType::Gauge);
}

TEST(MetricsDeathTest, AnUndeclaredNameIsAMistake) {
  Families families;
  EXPECT_DEATH(families.Add("tacc_other", 1, {}), "tacc_other is not declared");
}

TEST(Metrics, HaveTheirRowsInThePage) {
  std::ifstream in("docs/metrics.md");
  std::stringstream page;
  page << in.rdbuf();
  ASSERT_TRUE(in.good());
  EXPECT_EQ(WithTables(page.str()), page.str()) << "docs/metrics.md is stale: run `ninja -C build docs`";
  for (const Metric& metric : AllMetrics()) EXPECT_THAT(page.str(), testing::HasSubstr(metric.name));
}

}  // namespace
}  // namespace tacc::metrics
