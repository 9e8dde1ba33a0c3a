#include "worker/rank/tuning/product_choice.h"

#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/rank/testing/in_process_transport.h"

namespace tacc::worker {
namespace {

using Choices = std::vector<ProductChoice>;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

struct Agreed {
  Choices choices;            // Expected to be the same on all ranks.
  std::vector<int64_t> sent;  // Bytes, by rank.
};

Agreed AgreeAndCount(const std::vector<Choices>& measured, const ProductRule& rule = {}) {
  const int world = static_cast<int>(measured.size());
  auto transports = MakeInProcessTransports(world, absl::Seconds(20));
  std::vector<absl::StatusOr<Choices>> results(measured.size());
  Agreed agreed{{}, std::vector<int64_t>(measured.size())};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives collectives(rank, world);
      collectives.Connect(transports[rank].get());
      results[rank] = AgreeOnProducts(collectives, measured[rank], rule);
      agreed.sent[rank] = collectives.stats().bytes_sent;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) {
    EXPECT_TRUE(result.ok()) << result.status();
    if (result.ok()) EXPECT_EQ(ProductsJson(*result), ProductsJson(*results[0]));
  }
  if (results[0].ok()) agreed.choices = *results[0];
  return agreed;
}

Choices Agree(const std::vector<Choices>& measured, const ProductRule& rule = {}) {
  return AgreeAndCount(measured, rule).choices;
}

// "shape: algorithm" of each.
std::vector<std::string> Chosen(const Choices& choices) {
  std::vector<std::string> lines;
  for (const ProductChoice& choice : choices) lines.push_back(choice.shape + ": " + choice.algorithm);
  return lines;
}

TEST(AgreeOnProducts, TheSlowestRanksTimesDecideForAll) {
  // Alone rank 0 would take lt:1.
  const Choices agreed = Agree({{{"a", "", {{kLibtorchProduct, 9}, {"lt:1", 1}, {"lt:2", 2}}}},
                                {{"a", "", {{kLibtorchProduct, 9}, {"lt:2", 2}, {"lt:1", 3}}}}});
  EXPECT_THAT(Chosen(agreed), ElementsAre("a: lt:2"));
  EXPECT_EQ(agreed[0].timings[1].seconds, 3);
}

TEST(AgreeOnProducts, LibtorchMultipliesWhereNothingIsFaster) {
  EXPECT_THAT(Chosen(Agree({{{"a", "", {{kLibtorchProduct, 1}, {"lt:1", 1}}}, {"b", "", {{kLibtorchProduct}}}}})),
              ElementsAre("a: libtorch", "b: libtorch"));
}

// As on GPUs of two kinds.
TEST(AgreeOnProducts, WhatOneRankLacksNoneTakes) {
  EXPECT_THAT(Chosen(Agree({{{"a", "", {{kLibtorchProduct, 9}, {"lt:1", 1}, {"lt:2", 2}, {"lt:3", 3}}}},
                            {{"a", "", {{kLibtorchProduct, 9}, {"lt:4", 1}, {"lt:2", 2, "wrong"}, {"lt:3", 3}}}},
                            {}})),
              ElementsAre("a: lt:3"));
}

TEST(AgreeOnProducts, TimesDecideNothingWhereTheOrderIsFixed) {
  const Choices measured = {{"a", "", {{kLibtorchProduct, 1}, {"lt:1", 3, "wrong"}, {"lt:2", 3}, {"lt:3", 2}}},
                            {"b", "", {{kLibtorchProduct, 1}, {"lt:1", 3, "wrong"}}}};
  EXPECT_THAT(Chosen(Agree({measured, measured}, {ProductOrder::kFixed, {}})), ElementsAre("a: lt:2", "b: libtorch"));
}

TEST(AgreeOnProducts, AJobKeepsWhatItHasWhileThatWorks) {
  const EarlierProducts earlier = {
      {"a", "lt:1"}, {"b", "lt:1"}, {"c", kLibtorchProduct}, {"of another layout", "lt:1"}};
  const Choices measured = {{"a", "", {{kLibtorchProduct}, {"lt:1"}}},
                            {"b", "", {{kLibtorchProduct, 9}, {"lt:2", 3}, {"lt:3", 2}}},
                            {"c", "", {{kLibtorchProduct}}}};
  for (const ProductOrder order : {ProductOrder::kFastest, ProductOrder::kFixed}) {
    EXPECT_THAT(Chosen(Agree({measured}, {order, earlier})),
                ElementsAre("a: lt:1", order == ProductOrder::kFastest ? "b: lt:3" : "b: lt:2", "c: libtorch"));
  }
}

TEST(AgreeOnProducts, WhereOneRankLacksTheEarlierChoiceAllChooseAnew) {
  const ProductRule rule{ProductOrder::kFastest, {{"a", "lt:1"}, {"b", "lt:1"}}};
  Choices has_it = {{"a", "", {{kLibtorchProduct}, {"lt:1"}}}, {"b", "", {{kLibtorchProduct}, {"lt:1"}}}};
  Choices lacks_it = has_it;
  lacks_it[0].timings = {{kLibtorchProduct, 9}, {"lt:2", 3}};
  Choices agreed = Agree({has_it, lacks_it}, rule);
  EXPECT_THAT(Chosen(agreed), ElementsAre("a: libtorch", "b: lt:1"));
  EXPECT_THAT(ChangedProducts(agreed, rule.earlier), ElementsAre("a"));
  // When the rank that had it has measured the others too.
  has_it[0].timings = {{kLibtorchProduct, 9}, {"lt:1", 1}, {"lt:2", 2}};
  agreed = Agree({has_it, lacks_it}, rule);
  EXPECT_THAT(Chosen(agreed), ElementsAre("a: lt:2", "b: lt:1"));
  EXPECT_FALSE(agreed[0].is_makeshift);
  EXPECT_THAT(ProductWarnings(agreed, rule.earlier),
              ElementsAre("product a is computed by lt:2, in the attempt before by lt:1, which does not work on all "
                          "ranks now: losses may differ in the last bits from here on"));
  EXPECT_THAT(ProductWarnings(agreed, {{"a", "lt:9"}, {"b", "lt:8"}}),
              ElementsAre("product a is computed by lt:2, in the attempt before by lt:9, which does not work on all "
                          "ranks now (and 1 more): losses may differ in the last bits from here on"));
}

// Else a job whose first attempt had a wrong GPU among its own would stay with LibTorch on the right ones.
TEST(AgreeOnProducts, WhatLibtorchHasForWantOfOthersIsMakeshift) {
  const Choices one = {{"faster", "", {{kLibtorchProduct, 1}, {"lt:1", 2}}},
                       {"fails", "", {{kLibtorchProduct, 9}, {"lt:1", 1}}},
                       {"lacks", "", {{kLibtorchProduct, 9}, {"lt:1", 1}}},
                       {"of the library", "", {{kLibtorchProduct}, {"its library", 0, "no memory"}}},
                       {"some", "", {{kLibtorchProduct, 9}, {"lt:1", 1}, {"lt:2", 3}}},
                       {"untaken", "", {{kLibtorchProduct}}}};
  Choices other = one;
  other[1].timings[1].failed = "no kernel";
  other[2].timings.pop_back();
  other[4].timings[1] = {"lt:3", 1};
  for (const ProductOrder order : {ProductOrder::kFastest, ProductOrder::kFixed}) {
    std::vector<std::string> makeshift;
    for (const ProductChoice& choice : Agree({one, other}, {order, {}})) {
      if (!choice.is_makeshift) continue;
      makeshift.push_back(choice.shape);
      EXPECT_EQ(choice.algorithm, kLibtorchProduct);
    }
    EXPECT_THAT(makeshift, ElementsAre("fails", "lacks", "of the library"));
  }
}

// Two stages, each with 50 shapes that its ranks measured alike but for the times.
TEST(AgreeOnProducts, CostsNoMoreOnManyRanks) {
  constexpr int kShapes = 50, kAlgorithms = 9;
  for (const int world : {4, 16, 64}) {
    std::vector<Choices> measured(world);
    for (int rank = 0; rank < world; ++rank) {
      const char* const stage = rank < world / 2 ? "first" : "second";
      for (int i = 0; i < kShapes; ++i) {
        ProductChoice& choice = measured[rank].emplace_back();
        choice.shape = absl::StrCat("bf16 [16384,2048] x [", 1000 + i, ",2048]^T of the ", stage);
        choice.timings = {{kLibtorchProduct, 1e-3 * (rank + 1)}};
        for (int a = 1; a < kAlgorithms; ++a)
          choice.timings.push_back({absl::StrCat("cublaslt-130101:42.14.0.", a), 1e-3 / (rank + a + 1)});
      }
    }
    const Agreed agreed = AgreeAndCount(measured);
    ASSERT_EQ(agreed.choices.size(), 2u * kShapes);
    EXPECT_EQ(agreed.choices[0].timings[0].seconds, 1e-3 * (world / 2));
    EXPECT_EQ(agreed.choices[0].timings[1].seconds, 1e-3 / 2);
    // Lists of both stages, of 17 kB each, and two numbers of each algorithm, both twice; and two words for each rank.
    EXPECT_THAT(agreed.sent, Each(testing::Lt(2 * (2 * 17'000 + 2 * kShapes * kAlgorithms * 16) + 16 * world)));
  }
}

TEST(AgreeOnProducts, NothingToAgreeOn) { EXPECT_THAT(Agree({{}, {}}), IsEmpty()); }

TEST(ProductWarnings, AReasonIsSaidOnce) {
  const Choices good = {{"a", "", {{kLibtorchProduct, 9}, {"lt:1", 1}, {"lt:2", 2}}},
                        {"b", "", {{kLibtorchProduct, 9}, {"lt:1", 1}}},
                        {"c", "", {{kLibtorchProduct, 9}, {"lt:1", 1}}}};
  EXPECT_THAT(ProductWarnings(Agree({good, good}), {}), IsEmpty());
  // The same failure at other distances, on other ranks.
  Choices bad = good, worse = good;
  bad[0].timings[1] = {"lt:1", 0, "its result is another", 0.25};
  worse[1].timings[1] = {"lt:1", 0, "its result is another", 0.5};
  bad[2].timings[1].failed = "no kernel";
  EXPECT_THAT(ProductWarnings(Agree({good, bad, worse}), {}),
              ElementsAre("product a is computed by lt:2; lt:1 failed: rank 1: its result is another, up to 0.5 (and 1 "
                          "more)",
                          "product c is computed by libtorch; lt:1 failed: rank 1: no kernel"));
}

TEST(ProductsJson, LeavesOutWhatWasNotMeasured) {
  const Choices choices = {{"a", "lt:1", {{kLibtorchProduct, 0.5}, {"lt:1", 0.25}, {"lt:2", 0.375}}},
                           {"b", "lt:1", {{kLibtorchProduct}, {"lt:1"}}},
                           {"c", kLibtorchProduct, {{kLibtorchProduct, 0.5}, {"lt:1", 1}}},
                           {"d", kLibtorchProduct, {{kLibtorchProduct}, {"lt:1", 0, "no kernel"}}, true}};
  EXPECT_EQ(ProductsJson(choices), nlohmann::json::parse(R"([
      {"shape": "a", "algorithm": "lt:1", "seconds": 0.25, "libtorch_seconds": 0.5},
      {"shape": "b", "algorithm": "lt:1"},
      {"shape": "c", "algorithm": "libtorch", "seconds": 0.5, "libtorch_seconds": 0.5},
      {"shape": "d", "algorithm": "libtorch", "makeshift": true}])"));
  EXPECT_EQ(InWords(choices[0]), "product a: lt:1 250.000 ms, libtorch 500.000 ms, of 3 measured");
  EXPECT_EQ(InWords(choices[1]), "product b: lt:1");
  EXPECT_EQ(InWords(choices[2]), "product c: libtorch 500.000 ms, of 2 measured");
}

}  // namespace
}  // namespace tacc::worker
