#include "worker/daemon/answers/upload_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "machine/testing/test_directory.h"
#include "machine/unix_socket.h"
#include "worker/daemon/testing/fake_worker_service.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;

constexpr double kSoonSeconds = 20;

class UploadCacheTest : public ::testing::Test {
 protected:
  void SetUp() override { coordinator_.Start(); }
  std::unique_ptr<UploadCache> NewDaemon(double patience_seconds = 20, const std::string& machine = "machine") {
    return std::make_unique<UploadCache>(UploadCache::Options{.coordinator = coordinator_.address(),
                                                              .directory = directory_.File(machine),
                                                              .patience_seconds = patience_seconds});
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

TEST_F(UploadCacheTest, ACoordinatorThatHasTooManyCallsIsAskedAgain) {
  const std::string id = coordinator_.AddUpload({{"model.graph", "0123456789abcdef"}});
  coordinator_.BreakFiles(0, 3, {grpc::StatusCode::RESOURCE_EXHAUSTED, "try again in 1 s"});
  ASSERT_TRUE(FetchAndHold(*NewDaemon(), id).ok());
  EXPECT_EQ(coordinator_.sent_bytes(), 16);
}

// The coordinator refuses what no job of this worker names any more; the next one's is not refused for that.
TEST_F(UploadCacheTest, WhatIsAskedForAgainMeanwhileIsFetchedAgain) {
  const std::string id = coordinator_.AddUpload({{"model.graph", "graph of a model"}});
  coordinator_.BreakFiles(4, 1, {grpc::StatusCode::FAILED_PRECONDITION, "no job names it"});
  const auto cache = NewDaemon();
  cache->Fetch(id);
  EXPECT_TRUE(FetchAndHold(*cache, id).ok());
  coordinator_.BreakFiles(4, 1, {grpc::StatusCode::FAILED_PRECONDITION, "no job names it"});
  const std::string other = coordinator_.AddUpload({{"model.graph", "graph of another model"}});
  EXPECT_EQ(FetchAndHold(*cache, other).message(), "no job names it");
}

// A coordinator's socket and the key of a worker's certificate are for root alone, whosever the copy is.
TEST_F(UploadCacheTest, AnotherUsersCopyIsFetchedWithOwnRights) {
  if (geteuid() != 0) GTEST_SKIP() << "only root's ranks are another user's";
  const absl::StatusOr<User> nobody = FindUser("nobody");
  ASSERT_TRUE(nobody.ok()) << nobody.status();
  chmod(directory_.path().c_str(), 0755);
  for (const char* folder : {"theirs", "own"}) std::filesystem::create_directory(directory_.File(folder));
  ASSERT_TRUE(GiveTo(*nobody, directory_.File("theirs")).ok());
  chmod(directory_.File("own").c_str(), 0700);
  FakeWorkerService coordinator;
  coordinator.Start(directory_.File("own/socket"));
  const std::string id = coordinator.AddUpload({{"model.graph", "graph"}});
  UploadCache cache(UploadCache::Options{.coordinator = UnixAddress(directory_.File("own/socket")),
                                         .directory = directory_.File("theirs/uploads"),
                                         .patience_seconds = 5,
                                         .user = *nobody});
  const absl::Status status = FetchAndHold(cache, id);
  ASSERT_TRUE(status.ok()) << status;
  for (const std::string& path : {cache.Path(id), cache.Path(id) + "/model.graph"}) {
    struct stat info = {};
    ASSERT_EQ(lstat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_uid, nobody->uid) << path;
  }
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
