#include "coordinator/metrics/metrics.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>

#include <atomic>
#include <sstream>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/testing/http_get.h"
#include "metrics/metric.h"
#include "metrics/server.h"

namespace tacc::coordinator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A coordinator with one job that has run a step.
class MetricsTest : public ::testing::Test {
 protected:
  MetricsTest() : core_(Core::Options{"0.1.0"}, nullptr) {
    v1::Fact accepted;
    accepted.set_job("toy-1");
    accepted.mutable_job_accepted()->set_number(1);
    accepted.mutable_job_accepted()->mutable_spec()->set_name("toy");
    accepted.mutable_job_accepted()->mutable_spec()->mutable_train()->set_max_steps(100);
    Replay(accepted);
    v1::Fact compiled;
    compiled.mutable_job_compiled()->set_summary(
        R"({"world": 1, "predicted_step_seconds": 0.25, "memory": {"total_bytes": 9000}})");
    Replay(compiled);
    v1::Fact started;
    started.mutable_attempt_started()->set_attempt(1);
    started.mutable_attempt_started()->add_placement()->set_worker("w0");
    Replay(started);
    v1::Fact ready;
    ready.mutable_rank_ready()->set_attempt(1);
    ready.mutable_rank_ready()->set_arena_bytes(4096);
    ready.mutable_rank_ready()->set_device_memory_used_bytes(5000);
    Replay(ready);
    v1::StepMetrics step;
    step.set_step(7);
    step.set_attempt(1);
    step.set_loss(2.5);
    step.set_mfu(0.4);
    step.set_expert_overflow(6);
    step.set_device_idle_share(0.125);
    step.set_loss_scale(512);
    step.set_seconds(0.5);
    step.set_communication_seconds(0.125);
    step.set_tokens_per_second(1024);
    core_.ReplayStep("toy-1", step);
  }
  void Replay(v1::Fact fact) {
    fact.set_job("toy-1");
    fact.set_time(1000);
    ASSERT_TRUE(core_.Replay(fact).ok());
  }
  std::string Text(double wall) {
    std::ostringstream text;
    prometheus::TextSerializer().Serialize(text, CollectMetrics(core_, {"0.1.0", {1, wall}, 3, 0.5}));
    return text.str();
  }

  Core core_;
};

TEST_F(MetricsTest, ShowsJobsAndWorkers) {
  const std::string text = Text(1000);
  for (const char* line : {"tacc_build_info{version=\"0.1.0\"} 1",
                           "tacc_jobs{state=\"running\"} 1",
                           "tacc_jobs{state=\"failed\"} 0",
                           "tacc_workers{state=\"idle\"} 0",
                           "tacc_job_state{training_job=\"toy-1\",state=\"running\"} 1",
                           "tacc_job_step{training_job=\"toy-1\"} 7",
                           "tacc_job_loss{training_job=\"toy-1\"} 2.5",
                           "tacc_job_expert_overflow_slots{training_job=\"toy-1\"} 6",
                           "tacc_job_mfu_ratio{training_job=\"toy-1\"} 0.4",
                           "tacc_job_step_seconds{training_job=\"toy-1\"} 0.5",
                           "tacc_job_communication_seconds{training_job=\"toy-1\"} 0.125",
                           "tacc_job_tokens_per_second{training_job=\"toy-1\"} 1024",
                           "tacc_job_restarts_total{training_job=\"toy-1\"} 0",
                           "tacc_job_predicted_step_seconds{training_job=\"toy-1\"} 0.25",
                           "tacc_job_arena_bytes{training_job=\"toy-1\",rank=\"0\"} 4096",
                           "tacc_job_loss_scale{training_job=\"toy-1\"} 512",
                           "tacc_job_device_idle_ratio{training_job=\"toy-1\"} 0.125",
                           "tacc_job_device_memory_bytes{training_job=\"toy-1\",rank=\"0\"} 5000",
                           "tacc_job_planned_memory_bytes{training_job=\"toy-1\"} 9000",
                           "tacc_workers{state=\"unusable\"} 0",
                           "tacc_coordinator_commits_total 3",
                           "# TYPE tacc_job_restarts_total counter"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("tacc_job_eval_loss")));  // None yet.
}

// A misspelt source would leave its series out.
TEST(MetricSources, NameNumbersOfAJob) {
  using google::protobuf::FieldDescriptor;
  for (const metrics::Metric& metric : metrics::AllMetrics()) {
    const bool of_rank = metric.scope == metrics::Scope::kJobRank;
    if ((metric.scope != metrics::Scope::kJob && !of_rank) || std::string(metric.source).empty()) continue;
    const auto* type = of_rank ? v1::RankView::descriptor() : v1::Job::descriptor();
    const FieldDescriptor* field = nullptr;
    const std::vector<std::string> path = absl::StrSplit(absl::StripSuffix(absl::string_view(metric.source), "?"), '.');
    for (const std::string& name : path) {
      if (field != nullptr && field->is_map()) break;  // `name` is a key
      ASSERT_NE(type, nullptr) << metric.name << ": " << metric.source;
      field = type->FindFieldByName(name);
      ASSERT_NE(field, nullptr) << metric.name << ": " << metric.source;
      type = field->message_type();
    }
    EXPECT_TRUE(field->is_repeated() || (type == nullptr && field->cpp_type() != FieldDescriptor::CPPTYPE_STRING))
        << metric.name << ": " << metric.source;
  }
}

TEST_F(MetricsTest, ForgetsJobsThatEndedLongAgo) {
  v1::Fact ended;
  ended.mutable_job_ended()->set_phase(v1::PHASE_FAILED);
  Replay(ended);
  EXPECT_THAT(Text(1000 + kEndedJobSeconds - 1), HasSubstr("training_job"));
  EXPECT_THAT(Text(1000 + kEndedJobSeconds + 1), Not(HasSubstr("training_job")));
  EXPECT_THAT(Text(1000 + kEndedJobSeconds + 1), HasSubstr("tacc_jobs{state=\"failed\"} 1"));
}

TEST_F(MetricsTest, ServesMetricsHealthAndReadiness) {
  std::atomic<bool> healthy{true}, ready{false};
  auto check = [](const std::atomic<bool>& good) {
    return [&good] { return good ? absl::OkStatus() : absl::UnavailableError("the reason"); };
  };
  auto server = metrics::Server::Start(
      "127.0.0.1:0", [this] { return CollectMetrics(core_, {"0.1.0", {1, 1000}, 3, 0.5}); }, check(healthy),
      check(ready));
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(HttpGet((*server)->address(), "/metrics"), HasSubstr("tacc_job_loss{training_job=\"toy-1\"} 2.5"));
  EXPECT_THAT(HttpGet((*server)->address(), "/healthz"), HasSubstr("200 OK"));
  EXPECT_THAT(HttpGet((*server)->address(), "/readyz"), AllOf(HasSubstr("503"), HasSubstr("the reason\n")));
  ready = true;
  EXPECT_THAT(HttpGet((*server)->address(), "/readyz"), HasSubstr("200 OK"));
  healthy = false;
  EXPECT_THAT(HttpGet((*server)->address(), "/healthz"), AllOf(HasSubstr("503"), HasSubstr("the reason\n")));
  EXPECT_THAT(HttpGet((*server)->address(), "/other"), HasSubstr("404"));
  auto second = metrics::Server::Start((*server)->address(), [] { return std::vector<prometheus::MetricFamily>(); },
                                       check(healthy), check(ready));
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("cannot listen on 127.0.0.1:"));
}

TEST_F(MetricsTest, SilentConnectionsKeepNobodyWaiting) {
  const auto good = [] { return absl::OkStatus(); };
  auto server =
      metrics::Server::Start("127.0.0.1:0", [] { return std::vector<prometheus::MetricFamily>(); }, good, good);
  ASSERT_TRUE(server.ok()) << server.status();
  std::vector<int> silent;
  for (int i = 0; i < 60; ++i) silent.push_back(HttpConnect((*server)->address()));
  EXPECT_THAT(HttpGet((*server)->address(), "/healthz"), HasSubstr("200 OK"));
  for (const int fd : silent) close(fd);
}

}  // namespace
}  // namespace tacc::coordinator
