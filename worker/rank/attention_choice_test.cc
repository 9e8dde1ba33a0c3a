#include "worker/rank/attention_choice.h"

#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/rank/in_process_transport.h"

namespace tacc::worker {
namespace {

using Choices = std::vector<AttentionChoice>;
using ::testing::ElementsAre;

AttentionTiming Took(const std::string& backend, double forward, double backward) {
  return {backend, forward, backward, ""};
}
AttentionTiming Refused(const std::string& backend, const std::string& why) { return {backend, 0, 0, why}; }

// What each rank gets; expects the same of all.
Choices Agree(const std::vector<Choices>& measured, AttentionOrder order = AttentionOrder::kFastest,
              const EarlierAttention& earlier = {}) {
  const int world = static_cast<int>(measured.size());
  auto transports = MakeInProcessTransports(world, absl::Seconds(20));
  std::vector<absl::StatusOr<Choices>> results(measured.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives collectives(rank, world);
      collectives.Connect(transports[rank].get());
      results[rank] = AgreeOnAttention(collectives, measured[rank], order, earlier);
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
  EXPECT_THAT(Chosen(Agree({measured, measured}, AttentionOrder::kFixed)), ElementsAre("a: flash"));
  EXPECT_THAT(Chosen(Agree({measured, measured})), ElementsAre("a: tiles"));
}

TEST(AgreeOnAttention, AJobKeepsWhatItHasWhileThatWorks) {
  const EarlierAttention earlier = {{"a", "flash"}, {"b", "cudnn"}, {"of another layout", "flash"}};
  const Choices measured = {{"a", "", {Took("tiles", 9, 9), Took("flash", 3, 3), Took("cudnn", 1, 1)}},
                            {"b", "", {Took("tiles", 9, 9), Took("flash", 3, 3), Refused("cudnn", "no plan")}}};
  EXPECT_THAT(Chosen(Agree({measured}, AttentionOrder::kFastest, earlier)), ElementsAre("a: flash", "b: flash"));
}

TEST(AgreeOnAttention, NothingToAgreeOn) { EXPECT_TRUE(Agree({{}, {}}).empty()); }

TEST(AttentionJson, LeavesOutWhatWasNotMeasured) {
  EXPECT_EQ(AttentionJson({{"a", "flash", {Took("flash", 0.5, 0.25), Refused("cudnn", "no")}}}),
            nlohmann::json::parse(R"([{"shape": "a", "backend": "flash", "timings": [
                {"backend": "flash", "forward_seconds": 0.5, "backward_seconds": 0.25},
                {"backend": "cudnn", "refused": "no"}]}])"));
}

}  // namespace
}  // namespace tacc::worker
