#include "coordinator/core/rank_event.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tacc::coordinator {
namespace {

using ::testing::HasSubstr;

TEST(RankEventTest, ReadsAStep) {
  auto event = ParseRankEvent(
      R"({"event":"step","time":5,"step":201,"loss":3.25,"grad_norm":1.5,"learning_rate":3e-4,"tokens":4096,"target_tokens":4088,"seconds":0.5,)"
      R"("data_wait_seconds":0.001,"communication_seconds":0.02,"tokens_per_second":8192.0,"batch_hash":"ab","skipped":1,"expert_overflow":3,"loss_scale":512.0,"new_field":[]})");
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_EQ(event->metrics.step(), 201);
  EXPECT_EQ(event->metrics.loss(), 3.25);
  EXPECT_EQ(event->metrics.skipped(), 1);
  EXPECT_EQ(event->metrics.expert_overflow(), 3);
  EXPECT_EQ(event->metrics.loss_scale(), 512);
}

TEST(RankEventTest, ALossThatIsNoNumberIsNan) {
  auto event = ParseRankEvent(
      R"({"event":"step","time":5,"step":1,"loss":null,"grad_norm":"inf","learning_rate":0,"tokens":1,"target_tokens":1,"seconds":1,)"
      R"("data_wait_seconds":0,"communication_seconds":0,"tokens_per_second":1})");
  ASSERT_TRUE(event.ok()) << event.status();
  EXPECT_TRUE(std::isnan(event->metrics.loss()));
}

TEST(RankEventTest, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "not a JSON object"},
      {"[1]", "not a JSON object"},
      {R"({"time":1})", "\"event\" must be a string"},
      {R"({"event":"listening","time":1})", "\"port\" must be a whole number"},
      {R"({"event":"listening","time":1,"port":1.5})", "\"port\" must be a whole number"},
      {R"({"event":"finished","time":1,"step":"x"})", "\"step\" must be a whole number"},
      {R"({"event":"checkpoint","time":1,"step":1})", "\"path\" must be a string"},
      {R"({"event":"trace","time":1,"step":3})", "\"path\" must be a string"},
      {R"({"event":"failed","time":1,"code":1,"message":""})", "\"code\" must be a string"},
      {R"({"event":"eval","time":1,"step":1,"eval_loss":[]})", "\"eval_loss\" must be a number"},
      {"{\"event\":\"log\",\"time\":1,\"message\":\"\xff\"}", "not a JSON object"},
  };
  for (const auto& [line, message] : cases) {
    auto event = ParseRankEvent(line);
    ASSERT_FALSE(event.ok()) << line;
    EXPECT_THAT(std::string(event.status().message()), HasSubstr(message)) << line;
  }
}

}  // namespace
}  // namespace tacc::coordinator
