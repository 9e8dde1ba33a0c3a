#include "worker/rank/agreement.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "worker/rank/failure_codes.h"
#include "worker/rank/in_process_transport.h"

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

TEST(GatherTexts, EveryRankHasAll) {
  const std::vector<std::string> texts = {"", "one", std::string(1000, 'x')};
  auto transports = MakeInProcessTransports(3, absl::Seconds(20));
  std::vector<absl::StatusOr<std::vector<std::string>>> results(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives collectives(rank, 3);
      collectives.Connect(transports[rank].get());
      results[rank] = GatherTexts(collectives, texts[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) {
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(*result, texts);
  }
}

}  // namespace
}  // namespace tacc::worker
