#include "worker/daemon/answers/upload_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "machine/testing/test_directory.h"
#include "worker/daemon/testing/fake_worker_service.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;

constexpr double kSoonSeconds = 20;

class UploadCacheTest : public ::testing::Test {
 protected:
  void SetUp() override { coordinator_.Start(); }
  std::unique_ptr<UploadCache> NewDaemon(double patience_seconds = 20, const std::string& machine = "machine") {
    return std::make_unique<UploadCache>(
        UploadCache::Options{coordinator_.address(), directory_.File(machine), {}, patience_seconds});
  }
  static absl::Status FetchAndHold(UploadCache& cache, const std::string& id) {
    cache.Fetch(id);
    return cache.Hold(id, kSoonSeconds);
  }

  TestDirectory directory_;
  FakeWorkerService coordinator_;
};

TEST_F(UploadCacheTest, TheDaemonsOfAMachineFetchAnUploadOnce) {
  const std::string id =
      coordinator_.AddUpload({{"model.graph", "graph"}, {"model.safetensors", std::string(1000, 'w')}});
  std::vector<std::unique_ptr<UploadCache>> daemons;
  for (int i = 0; i < 4; ++i) daemons.push_back(NewDaemon());
  std::vector<absl::Status> statuses(daemons.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < daemons.size(); ++i)
    threads.emplace_back([&, i] { statuses[i] = FetchAndHold(*daemons[i], id); });
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(coordinator_.sent_bytes(), 1005);
  EXPECT_EQ(TestDirectory::Read(daemons[3]->Path(id) + "/model.safetensors"), std::string(1000, 'w'));
  // Nor does a later job, of another start of a daemon.
  EXPECT_TRUE(FetchAndHold(*NewDaemon(), id).ok());
  // Of another upload only what is new.
  const std::string other =
      coordinator_.AddUpload({{"model.graph", "other"}, {"model.safetensors", std::string(1000, 'w')}});
  EXPECT_TRUE(FetchAndHold(*daemons[0], other).ok());
  EXPECT_EQ(coordinator_.sent_bytes(), 1010);
}

TEST_F(UploadCacheTest, ThreeMachinesOfTwoRanksCostTheCoordinatorsLinkThreeTimesTheModel) {
  const std::string id = coordinator_.AddUpload({{"model.safetensors", std::string(1000, 'w')}});
  for (const char* machine : {"a", "b", "c"}) {
    for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(FetchAndHold(*NewDaemon(20, machine), id).ok());
  }
  EXPECT_EQ(coordinator_.sent_bytes(), 3 * 1000);
}

TEST_F(UploadCacheTest, AConnectionThatBreaksGoesOnWhereItWas) {
  const std::string id = coordinator_.AddUpload({{"model.graph", "0123456789abcdef"}});
  coordinator_.BreakFiles(4, 3);
  const auto daemon = NewDaemon();
  ASSERT_TRUE(FetchAndHold(*daemon, id).ok());
  EXPECT_EQ(coordinator_.sent_bytes(), 16);
  EXPECT_EQ(TestDirectory::Read(daemon->Path(id) + "/model.graph"), "0123456789abcdef");
}

TEST_F(UploadCacheTest, SaysWhyAnUploadIsNotThere) {
  const auto daemon = NewDaemon(/*patience_seconds=*/0.5);
  const absl::Status gone = FetchAndHold(*daemon, std::string(64, '0'));
  EXPECT_EQ(gone.code(), absl::StatusCode::kFailedPrecondition) << "waiting would not help";
  EXPECT_THAT(std::string(gone.message()), HasSubstr("has upload 0000"));
  EXPECT_THAT(std::string(gone.message()), HasSubstr("upload the folder again"));
  const std::string id = coordinator_.AddUpload({{"model.graph", "0123456789abcdef"}});
  coordinator_.BreakFiles(0, 1000);
  const absl::Status away = FetchAndHold(*daemon, id);
  EXPECT_EQ(away.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(away.message()), HasSubstr("cannot be fetched from the coordinator at 127.0.0.1:"));
  daemon->Fetch(id);
  const absl::Status on_its_way = daemon->Hold(id, 0);
  EXPECT_EQ(on_its_way.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(on_its_way.message()), HasSubstr("is on its way"));
}

}  // namespace
}  // namespace tacc::worker
