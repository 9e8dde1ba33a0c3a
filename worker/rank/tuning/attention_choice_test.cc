#include "worker/rank/tuning/attention_choice.h"

#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/rank/testing/in_process_transport.h"

namespace tacc::worker {
namespace {

using Choices = std::vector<AttentionChoice>;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

AttentionTiming Took(const std::string& backend, double forward, double backward) {
  return {backend, forward, backward, ""};
}
AttentionTiming Refused(const std::string& backend, const std::string& why) { return {backend, 0, 0, why}; }
AttentionTiming Failed(const std::string& backend, const std::string& why) { return {backend, 0, 0, why, true}; }

// What each rank gets; expects the same of all.
Choices Agree(const std::vector<Choices>& measured, const AttentionRule& rule = {}) {
  const int world = static_cast<int>(measured.size());
  auto transports = MakeInProcessTransports(world, absl::Seconds(20));
  std::vector<absl::StatusOr<Choices>> results(measured.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives collectives(rank, world);
      collectives.Connect(transports[rank].get());
      results[rank] = AgreeOnAttention(collectives, measured[rank], rule);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) {
    EXPECT_TRUE(result.ok()) << result.status();
    if (result.ok()) EXPECT_EQ(AttentionJson(*result), AttentionJson(*results[0]));
  }
  return results[0].ok() ? *results[0] : Choices();
}

// "shape: backend" of each.
std::vector<std::string> Chosen(const Choices& choices) {
  std::vector<std::string> lines;
  for (const AttentionChoice& choice : choices) lines.push_back(choice.shape + ": " + choice.backend);
  return lines;
}

TEST(AgreeOnAttention, TheSlowestRanksTimesDecideForAll) {
  // Alone rank 0 would take flash.
  const Choices agreed = Agree({{{"a", "", {Took("tiles", 9, 9), Took("flash", 1, 2), Took("cudnn", 2, 2)}}},
                                {{"a", "", {Took("tiles", 9, 9), Took("flash", 3, 2), Took("cudnn", 1, 2)}}}});
  ASSERT_THAT(Chosen(agreed), ElementsAre("a: cudnn"));
  EXPECT_EQ(agreed[0].timings[1].forward_seconds, 3);
  EXPECT_EQ(agreed[0].timings[2].forward_seconds, 2);
}

TEST(AgreeOnAttention, WhatOneRankRefusesNoneTakes) {
  const Choices agreed = Agree({{{"a", "", {Took("tiles", 9, 9), Took("flash", 1, 2), Refused("cudnn", "no plan")}}},
                                {{"a",
                                  "",
                                  {Took("tiles", 0, 0), Refused("tensor", "no"), Refused("flash", "its dq is 2"),
                                   Refused("cudnn", "no plan")}}}});
  ASSERT_THAT(Chosen(agreed), ElementsAre("a: tiles"));
  EXPECT_EQ(InWords(agreed[0]),
            "attention a: tiles (tiles forward 9000.000 ms, backward 9000.000 ms; flash refused: rank 1: its dq is 2; "
            "cudnn refused: no plan; tensor refused: rank 1: no)");
}

TEST(AgreeOnAttention, EveryRankKnowsTheShapesOfAllStages) {
  EXPECT_THAT(Chosen(Agree({{{"b", "", {Took("tiles", 2, 2), Took("flash", 1, 1)}}},
                            {},
                            {{"a", "", {Refused("flash", "its dtype is f32")}}}})),
              ElementsAre("a: tiles", "b: flash"));
}

TEST(AgreeOnAttention, TimesDecideNothingWhereTheOrderIsFixed) {
  const Choices measured = {
      {"a",
       "",
       {Took("tiles", 1, 1), Took("tensor", 2, 2), Took("flash", 3, 3), Refused("cudnn", "it is not deterministic")}}};
  EXPECT_THAT(Chosen(Agree({measured, measured}, {AttentionOrder::kFixed})), ElementsAre("a: flash"));
  EXPECT_THAT(Chosen(Agree({measured, measured})), ElementsAre("a: tiles"));
}

TEST(AgreeOnAttention, AJobKeepsWhatItHasWhileThatWorks) {
  const EarlierAttention earlier = {{"a", "flash"}, {"b", "cudnn"}, {"of another layout", "flash"}};
  const Choices measured = {{"a", "", {Took("tiles", 9, 9), Took("flash", 3, 3), Took("cudnn", 1, 1)}},
                            {"b", "", {Took("tiles", 9, 9), Took("flash", 3, 3), Refused("cudnn", "no plan")}}};
  EXPECT_THAT(Chosen(Agree({measured}, {AttentionOrder::kFastest, earlier})), ElementsAre("a: flash", "b: flash"));
}

TEST(AgreeOnAttention, AWishGoesBeforeTimesAndBeforeWhatWas) {
  const Choices measured = {{"a", "", {Took("tiles", 9, 9), Took("flash", 3, 3), Took("cudnn", 1, 1)}},
                            {"b", "", {Took("tiles", 9, 9), Refused("flash", "its head dim is 12")}}};
  const AttentionRule rule{.earlier = {{"a", "cudnn"}}, .wanted = "flash"};
  const Choices agreed = Agree({measured}, rule);
  EXPECT_THAT(Chosen(agreed), ElementsAre("a: flash", "b: tiles"));
  EXPECT_THAT(AttentionWarnings(agreed, "flash"),
              ElementsAre("attention b is computed by tiles, not by flash as --attention says: its head dim is 12"));
  EXPECT_THAT(
      AttentionWarnings(Agree({{measured[0]}}), "fast"),
      ElementsAre("attention a is computed by cudnn, not by fast as --attention says: there is no such backend"));
}

// On any of the ranks; what does not take a shape is no failure.
TEST(AgreeOnAttention, WhatFailedIsWarnedOfWithItsReason) {
  const Choices good = {{"a", "", {Took("tensor", 9, 9), Took("flash", 1, 1), Refused("cudnn", "its head dim is 12")}}};
  EXPECT_TRUE(AttentionWarnings(Agree({good, good}), "").empty());
  Choices bad = good;
  bad[0].timings[1] = Failed("flash", "the planned GPU workspace of 10 bytes is too small");
  const Choices agreed = Agree({good, bad});
  EXPECT_THAT(AttentionWarnings(agreed, ""),
              ElementsAre("attention a is computed by tensor; flash failed: rank 1: the planned GPU workspace of 10 "
                          "bytes is too small"));
  EXPECT_THAT(InWords(agreed[0]), HasSubstr("; flash failed: rank 1: the planned"));
  EXPECT_EQ(AttentionWarnings(agreed, "flash").size(), 1u);
}

TEST(AgreeOnAttention, NothingToAgreeOn) { EXPECT_TRUE(Agree({{}, {}}).empty()); }

TEST(AttentionJson, LeavesOutWhatWasNotMeasured) {
  EXPECT_EQ(AttentionJson({{"a", "flash", {Took("flash", 0.5, 0.25), Refused("cudnn", "no")}}}),
            nlohmann::json::parse(R"([{"shape": "a", "backend": "flash", "timings": [
                {"backend": "flash", "forward_seconds": 0.5, "backward_seconds": 0.25},
                {"backend": "cudnn", "refused": "no"}]}])"));
  AttentionTiming scratch = Took("flash", 0.5, 0.25);
  scratch.workspace_bytes = 512;
  EXPECT_EQ(AttentionJson({{"a", "flash", {scratch, Failed("cudnn", "no")}}}), nlohmann::json::parse(R"([
      {"shape": "a", "backend": "flash", "timings": [
          {"backend": "flash", "forward_seconds": 0.5, "backward_seconds": 0.25, "workspace_bytes": 512},
          {"backend": "cudnn", "refused": "no", "failed": true}]}])"));
  EXPECT_EQ(AttentionJson(Agree({{{"a", "", {scratch}}}})), AttentionJson({{"a", "flash", {scratch}}}));
}

}  // namespace
}  // namespace tacc::worker
