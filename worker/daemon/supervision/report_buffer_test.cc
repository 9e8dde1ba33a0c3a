#include "worker/daemon/supervision/report_buffer.h"

#include <gtest/gtest.h>

namespace tacc::worker {
namespace {

const RankKey kFirst = {"job-1", 1, 0};
const RankKey kSecond = {"job-1", 2, 0};

Report Make(const RankKey& key, ReportKind kind, const std::string& text = "") {
  Report report;
  report.key = key;
  report.kind = kind;
  if (kind == ReportKind::kLog) {
    report.log_lines = {text};
  } else {
    report.event = text;
  }
  return report;
}

// Everything that is sent now, as "attempt:sequence".
std::vector<std::string> Send(ReportBuffer* buffer) {
  std::vector<std::string> sent;
  while (const Report* report = buffer->Next()) {
    sent.push_back(absl::StrCat(report->key.attempt, ":", report->sequence));
  }
  return sent;
}

using Sent = std::vector<std::string>;

TEST(ReportBufferTest, NumbersFromOnePerRankAndSendsOnce) {
  ReportBuffer buffer({});
  buffer.Add(Make(kFirst, ReportKind::kEvent));
  buffer.Add(Make(kFirst, ReportKind::kLog));
  buffer.Add(Make(kSecond, ReportKind::kEvent));
  EXPECT_EQ(Send(&buffer), (Sent{"1:1", "1:2", "2:1"}));
  EXPECT_EQ(Send(&buffer), Sent{});
  buffer.Add(Make(kFirst, ReportKind::kEvent));
  EXPECT_EQ(Send(&buffer), Sent{"1:3"});
}

TEST(ReportBufferTest, SendsAllThatIsNotAcknowledgedAgainAfterAReconnect) {
  ReportBuffer buffer({});
  for (int i = 0; i < 4; ++i) buffer.Add(Make(kFirst, ReportKind::kEvent));
  EXPECT_EQ(Send(&buffer).size(), 4u);
  buffer.Acknowledge(kFirst, 2);
  buffer.Rewind();
  EXPECT_EQ(Send(&buffer), (Sent{"1:3", "1:4"}));
  buffer.Acknowledge(kFirst, 99);
  EXPECT_TRUE(buffer.IsEmpty());
  EXPECT_EQ(buffer.num_bytes(), 0u);
  ASSERT_EQ(buffer.Held().size(), 1u);  // It runs on.
  buffer.Add(Make(kFirst, ReportKind::kEvent));
  EXPECT_EQ(Send(&buffer), Sent{"1:5"});
}

TEST(ReportBufferTest, ForgetsARankWhoseExitIsAcknowledgedButNotItsNumber) {
  ReportBuffer buffer({});
  buffer.Add(Make(kFirst, ReportKind::kEvent));
  buffer.Add(Make(kFirst, ReportKind::kExit));
  buffer.Add(Make(kFirst, ReportKind::kEvent));  // Too late: an exit is the last report.
  EXPECT_EQ(Send(&buffer), (Sent{"1:1", "1:2"}));
  buffer.Acknowledge(kFirst, 1);
  EXPECT_TRUE(buffer.Held()[0].has_exited);
  buffer.Acknowledge(kFirst, 2);
  EXPECT_FALSE(buffer.IsHeld(kFirst));
  buffer.Acknowledge(kFirst, 2);
  buffer.Add(Make(kFirst, ReportKind::kExit));
  EXPECT_EQ(Send(&buffer), Sent{"1:3"});
}

TEST(ReportBufferTest, DropsOldestLogsOnly) {
  ReportBuffer buffer({.event_bytes = 1 << 20, .log_bytes = 4096});
  buffer.Add(Make(kFirst, ReportKind::kEvent));
  for (int i = 0; i < 100; ++i) buffer.Add(Make(kFirst, ReportKind::kLog, std::string(100, 'x')));
  buffer.Add(Make(kFirst, ReportKind::kExit));
  const Sent sent = Send(&buffer);
  EXPECT_EQ(sent.front(), "1:1");
  EXPECT_EQ(sent.back(), "1:102");
  EXPECT_GT(sent.size(), 5u);
  EXPECT_LT(sent.size(), 20u);
  EXPECT_EQ(buffer.num_dropped() + sent.size(), 102u);
  EXPECT_LE(buffer.num_bytes(), 4096u + 2 * 512u);
}

TEST(ReportBufferTest, DropsOldestStepsBeforeAnyOtherEvent) {
  ReportBuffer buffer({.event_bytes = 8192, .log_bytes = 0});
  for (int i = 0; i < 200; ++i) buffer.Add(Make(kFirst, i == 50 ? ReportKind::kEvent : ReportKind::kStepMetric));
  const Sent sent = Send(&buffer);
  EXPECT_EQ(sent.front(), "1:51");
  EXPECT_EQ(sent.back(), "1:200");
  EXPECT_LE(buffer.num_bytes(), 8192u);
}

// Six hours at five steps a second, with the coordinator away, fit.
TEST(ReportBufferTest, HoldsHoursOfSteps) {
  ReportBuffer buffer({});
  const std::string event(350, 'x');
  const int steps = 6 * 3600 * 5;
  for (int i = 0; i < steps; ++i) buffer.Add(Make(kFirst, ReportKind::kStepMetric, event));
  EXPECT_EQ(buffer.num_dropped(), 0u);
  EXPECT_EQ(Send(&buffer).size(), static_cast<size_t>(steps));
}

}  // namespace
}  // namespace tacc::worker
