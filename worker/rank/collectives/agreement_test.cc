#include "worker/rank/collectives/agreement.h"

#include <algorithm>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "worker/rank/protocol/failure_codes.h"
#include "worker/rank/testing/in_process_transport.h"

namespace tacc::worker {
namespace {

std::vector<absl::Status> Agree(const std::vector<absl::Status>& statuses) {
  auto transports = MakeInProcessTransports(static_cast<int>(statuses.size()), absl::Seconds(20));
  std::vector<absl::Status> results(statuses.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < statuses.size(); ++rank) {
    threads.emplace_back([&, rank] {
      Collectives collectives(static_cast<int>(rank), static_cast<int>(statuses.size()));
      collectives.Connect(transports[rank].get());
      results[rank] = AgreeOnStatus(collectives, statuses[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(AgreeOnStatus, AllWell) {
  for (const absl::Status& status : Agree({absl::OkStatus(), absl::OkStatus()})) EXPECT_TRUE(status.ok());
}

TEST(AgreeOnStatus, TheFirstErrorIsEveryRanks) {
  for (const absl::Status& status :
       Agree({absl::OkStatus(), absl::NotFoundError("no file"), absl::InternalError("later")})) {
    EXPECT_EQ(status, absl::NotFoundError("rank 1: no file"));
  }
}

TEST(AgreeOnStatus, TheFailureCodeIsTold) {
  const auto results = Agree({absl::OkStatus(), WithFailureCode(absl::NotFoundError("x"), "unavailable")});
  for (const absl::Status& result : results) EXPECT_EQ(FailureCode(result), "unavailable");
}

TEST(AgreeOnStatus, LongMessagesAreCut) {
  const auto results = Agree({absl::InternalError(std::string(5000, 'x')), absl::OkStatus()});
  EXPECT_EQ(results[0].message().size(), 8u + 1023u);
  EXPECT_EQ(results[1], results[0]);
}

TEST(AgreeOnStatus, AloneItIsTheOwnError) { EXPECT_EQ(Agree({absl::InternalError("x")})[0], absl::InternalError("x")); }

// What `ask` returns on each rank.
template <typename Ask>
auto OnEach(int world, const Ask& ask) {
  auto transports = MakeInProcessTransports(world, absl::Seconds(20), /*ranks_a_machine=*/2);
  std::vector<typename std::invoke_result_t<Ask, Collectives&>::value_type> results(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives collectives(rank, world);
      collectives.Connect(transports[rank].get());
      auto result = ask(collectives);
      EXPECT_TRUE(result.ok()) << result.status();
      if (result.ok()) results[rank] = *std::move(result);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(GatherTexts, EveryRankHasAll) {
  const std::vector<std::string> texts = {"", "one", std::string(1000, 'x')};
  const auto ask = [&](Collectives& collectives) { return GatherTexts(collectives, texts[collectives.rank()]); };
  for (const std::vector<std::string>& result : OnEach(3, ask)) EXPECT_EQ(result, texts);
}

TEST(GatherLargest, OfEachPlace) {
  for (const int world : {1, 2, 3, 4, 5}) {
    for (const size_t size : {0, 1, 3, 4, 100}) {
      const auto ask = [&](Collectives& collectives) {
        std::vector<uint64_t> values(size);
        for (size_t i = 0; i < size; ++i) values[i] = i % world == static_cast<size_t>(collectives.rank()) ? ~i : i;
        return GatherLargest(collectives, std::move(values));
      };
      for (const std::vector<uint64_t>& result : OnEach(world, ask)) {
        ASSERT_EQ(result.size(), size);
        for (size_t i = 0; i < size; ++i) EXPECT_EQ(result[i], ~i);
      }
    }
  }
}

TEST(GatherSharedTexts, EachTextIsThereOnce) {
  const std::vector<std::string> texts = {"one", "", "one", std::string(1001, 'x'), "one", "two"};
  for (const size_t world : {1, 2, 4, 6}) {
    const auto ask = [&](Collectives& collectives) {
      return GatherSharedTexts(collectives, texts[collectives.rank()]);
    };
    for (const std::vector<SharedText>& result : OnEach(static_cast<int>(world), ask)) {
      int num_ranks = 0;
      for (const SharedText& text : result) {
        EXPECT_EQ(text.text, texts[text.first_rank]);
        EXPECT_EQ(text.num_ranks, std::count(texts.begin(), texts.begin() + world, text.text));
        num_ranks += text.num_ranks;
      }
      EXPECT_EQ(num_ranks, world);
    }
  }
}

}  // namespace
}  // namespace tacc::worker
