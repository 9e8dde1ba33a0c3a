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

TEST(RankEventTest, ReadsWhoComputesAttention) {
  auto event = ParseRankEvent(
      R"({"event":"ready","time":5,"step":0,"attention":[{"shape":"bf16[1,8,2,64] of [1,8,2,64] causal","backend":"flash","timings":)"
      R"([{"backend":"flash","forward_seconds":0.5,"backward_seconds":0.25},{"backend":"cudnn","refused":"no plan"}]}]})");
  ASSERT_TRUE(event.ok()) << event.status();
  ASSERT_EQ(event->attention.size(), 1u);
  const v1::AttentionChoice& choice = event->attention[0];
  EXPECT_EQ(choice.shape(), "bf16[1,8,2,64] of [1,8,2,64] causal");
  EXPECT_EQ(choice.backend(), "flash");
  EXPECT_EQ(choice.timings(0).forward_seconds(), 0.5);
  EXPECT_EQ(choice.timings(0).backward_seconds(), 0.25);
  EXPECT_EQ(choice.timings(1).refused(), "no plan");
}

TEST(RankEventTest, ReadsByWhatProductsAreComputed) {
  auto event = ParseRankEvent(
      R"({"event":"ready","time":5,"step":0,"products":[{"shape":"bf16 [8,4] x [2,4]^T","algorithm":"cublaslt-1:42","seconds":0.25,)"
      R"("libtorch_seconds":0.5},{"shape":"f32 [8,4] x [4,2]","algorithm":"libtorch","makeshift":true}]})");
  ASSERT_TRUE(event.ok()) << event.status();
  ASSERT_EQ(event->products.size(), 2u);
  EXPECT_EQ(event->products[0].shape(), "bf16 [8,4] x [2,4]^T");
  EXPECT_EQ(event->products[0].algorithm(), "cublaslt-1:42");
  EXPECT_EQ(event->products[0].seconds(), 0.25);
  EXPECT_EQ(event->products[0].libtorch_seconds(), 0.5);
  EXPECT_EQ(event->products[1].algorithm(), "libtorch");
  EXPECT_EQ(event->products[1].seconds(), 0);
  EXPECT_FALSE(event->products[0].makeshift());
  EXPECT_TRUE(event->products[1].makeshift());
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
      {R"({"event":"ready","time":1,"step":0,"attention":1})", "\"attention\" must be a list of objects"},
      {R"({"event":"ready","time":1,"step":0,"attention":[{"shape":"a","backend":"b","timings":[{}]}]})",
       "\"backend\" must be a string"},
      {R"({"event":"ready","time":1,"step":0,"products":{}})", "\"products\" must be a list of objects"},
      {R"({"event":"ready","time":1,"step":0,"products":[{"shape":"a"}]})", "\"algorithm\" must be a string"},
      {R"({"event":"ready","time":1,"step":0,"products":[{"shape":"a","algorithm":"b","makeshift":1}]})",
       "\"makeshift\" must be true or false"},
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

// What copies such a value calls itself for each level.
TEST(RankEventTest, DeepValuesAreNoEvents) {
  const std::string deep = std::string(1'000'000, '[') + std::string(1'000'000, ']');
  const auto event = ParseRankEvent(R"({"event":"ready","time":5,"step":0,"attention":[{"shape":)" + deep + "}]}");
  EXPECT_THAT(std::string(event.status().message()), HasSubstr("not a JSON object"));
}

}  // namespace
}  // namespace tacc::coordinator
