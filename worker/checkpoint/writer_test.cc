#include "worker/checkpoint/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "machine/testing/test_directory.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/testing/verify_checkpoint.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<float> kValues = {0, 1, 2, 3, 4, 5};

std::vector<ShardTensor> HalfOf(int rank) {
  return {{"weights/w", "F32", {6}, {2, 3}, {{rank * 3}, {3}}, kValues.data() + rank * 3}};
}

Manifest JobManifest() {
  Manifest manifest;
  manifest.version = "0.1.0";
  manifest.job = "job-1";
  manifest.step = 7;
  manifest.attempt = 2;
  manifest.identity = R"({"seed":42})";
  manifest.layout = {{"fsdp", 2}};
  return manifest;
}

absl::Status WriteAll(const std::string& directory, Failpoints* failpoints, const Manifest& manifest = JobManifest()) {
  for (int rank = 0; rank < 2; ++rank) {
    if (absl::Status status = WriteShard(directory, {7, 2}, rank, HalfOf(rank), failpoints); !status.ok()) {
      EXPECT_TRUE(AbandonCheckpoint(directory, {7, 2}).ok());
      return status;
    }
  }
  return CommitCheckpoint(directory, manifest, 2, failpoints).status();
}

TEST(WriterTest, TwoRanksMakeOneCheckpoint) {
  TestDirectory directory;
  ASSERT_TRUE(WriteShard(directory.path(), {7, 2}, 1, HalfOf(1), nullptr).ok());
  ASSERT_TRUE(WriteShard(directory.path(), {7, 2}, 0, HalfOf(0), nullptr).ok());
  ASSERT_TRUE(WriteShard(directory.path(), {7, 2}, 2, {}, nullptr).ok());
  const auto committed = CommitCheckpoint(directory.path(), JobManifest(), 3, nullptr);
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_EQ(committed->name, "step-00000007.a2");
  const std::string path = directory.File(committed->name);
  EXPECT_EQ(TestDirectory::Names(directory.path()), std::vector<std::string>{"step-00000007.a2"});
  EXPECT_EQ(TestDirectory::Names(path),
            (std::vector<std::string>{"manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"}));
  EXPECT_TRUE(VerifyCheckpoint(path).ok());
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ((*checkpoint)->manifest().identity, R"({"seed":42})");
  std::vector<float> read(6);
  ASSERT_TRUE((*checkpoint)->Read("weights/w", {{0}, {6}}, read.data()).ok());
  EXPECT_EQ(read, kValues);
}

TEST(WriterTest, MissingShardIsNamedAndNothingIsLeft) {
  TestDirectory directory;
  ASSERT_TRUE(WriteShard(directory.path(), {7, 2}, 0, HalfOf(0), nullptr).ok());
  const auto committed = CommitCheckpoint(directory.path(), JobManifest(), 2, nullptr);
  EXPECT_EQ(committed.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(committed.status().message()), HasSubstr("rank 1 has not written its shard"));
  EXPECT_THAT(TestDirectory::Names(directory.path()), IsEmpty());
}

TEST(WriterTest, DisagreeingOrIncompleteShardsAreRefused) {
  TestDirectory directory;
  std::vector<ShardTensor> other = HalfOf(1);
  other[0].shape = {7};
  other[0].stored_shape = {7};
  ASSERT_TRUE(WriteShard(directory.path(), {7, 2}, 0, HalfOf(0), nullptr).ok());
  ASSERT_TRUE(WriteShard(directory.path(), {7, 2}, 1, other, nullptr).ok());
  EXPECT_THAT(std::string(CommitCheckpoint(directory.path(), JobManifest(), 2, nullptr).status().message()),
              HasSubstr("F32[7] but F32[6]"));
  ASSERT_TRUE(WriteShard(directory.path(), {7, 2}, 0, HalfOf(0), nullptr).ok());
  EXPECT_THAT(std::string(CommitCheckpoint(directory.path(), JobManifest(), 1, nullptr).status().message()),
              HasSubstr("3 of 6 elements"));
}

TEST(WriterTest, ACheckpointIsNeverOverwritten) {
  TestDirectory directory;
  ASSERT_TRUE(WriteAll(directory.path(), nullptr).ok());
  const std::string before = TestDirectory::Read(directory.File("step-00000007.a2/manifest.json"));
  Manifest other = JobManifest();
  other.job = "job-2";
  EXPECT_EQ(WriteAll(directory.path(), nullptr, other).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(TestDirectory::Read(directory.File("step-00000007.a2/manifest.json")), before);
  EXPECT_EQ(TestDirectory::Names(directory.path()).size(), 1u);
}

TEST(WriterTest, OneThatWasRenamedButNotForcedToTheDiskIsFoundByTheNextTry) {
  TestDirectory directory;
  auto failpoints = Failpoints::Parse("after_rename=errno:ESTALE@1");
  ASSERT_TRUE(failpoints.ok());
  const absl::Status first = WriteAll(directory.path(), failpoints->get());
  EXPECT_EQ(first.code(), absl::StatusCode::kUnavailable) << first;
  const std::string before = TestDirectory::Read(directory.File("step-00000007.a2/manifest.json"));
  const absl::Status second = WriteAll(directory.path(), failpoints->get());
  EXPECT_TRUE(second.ok()) << second;
  EXPECT_EQ(TestDirectory::Read(directory.File("step-00000007.a2/manifest.json")), before);
  EXPECT_EQ(TestDirectory::Names(directory.path()), std::vector<std::string>{"step-00000007.a2"});
  EXPECT_TRUE(VerifyCheckpoint(directory.File("step-00000007.a2")).ok());
}

TEST(WriterTest, StaleFilesOfAKilledTryDoNotMatter) {
  TestDirectory directory;
  ASSERT_TRUE(WriteShard(directory.path(), {7, 2}, 5, HalfOf(0), nullptr).ok());
  ASSERT_TRUE(WriteAll(directory.path(), nullptr).ok());
  EXPECT_EQ(TestDirectory::Names(directory.File("step-00000007.a2")).size(), 3u);
}

TEST(WriterTest, ErrorAtEachPlaceLeavesNothing) {
  for (const char* place :
       {"before_shard_write", "after_shard_write", "before_manifest", "after_manifest", "before_rename"}) {
    TestDirectory directory;
    auto failpoints = Failpoints::Parse(std::string(place) + "=error");
    ASSERT_TRUE(failpoints.ok());
    EXPECT_THAT(std::string(WriteAll(directory.path(), failpoints->get()).message()), HasSubstr(place));
    EXPECT_THAT(TestDirectory::Names(directory.path()), IsEmpty()) << place;
  }
}

// Killed at each place, the directory holds a whole checkpoint or none, and the rest can be removed.
TEST(WriterTest, KilledAtEachPlaceThereIsAWholeCheckpointOrNone) {
  for (const char* place : {"before_shard_write", "after_shard_write", "after_shard_write=kill@2", "before_manifest",
                            "after_manifest", "before_rename", "after_rename"}) {
    TestDirectory directory;
    const std::string text = std::string(place).find('=') == std::string::npos ? std::string(place) + "=kill" : place;
    auto failpoints = Failpoints::Parse(text);
    ASSERT_TRUE(failpoints.ok());
    const pid_t child = fork();
    if (child == 0) _exit(WriteAll(directory.path(), failpoints->get()).ok() ? 0 : 1);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << text;
    const auto listed = ListCheckpoints(directory.path());
    ASSERT_TRUE(listed.ok());
    EXPECT_EQ(listed->size(), text == "after_rename=kill" ? 1u : 0u) << text;
    for (const CheckpointEntry& entry : *listed) {
      const absl::Status verified = VerifyCheckpoint(directory.File(entry.name));
      EXPECT_TRUE(verified.ok()) << verified;
    }
    ASSERT_TRUE(RemoveUnfinishedCheckpoints(directory.path(), 2).ok());
    EXPECT_EQ(TestDirectory::Names(directory.path()).size(), listed->size()) << text;
  }
}

// A file size limit gives the same errors as a full disk, without needing a file system of one's own.
TEST(WriterTest, FullDiskIsResourceExhaustedAndLeavesNothing) {
  TestDirectory directory;
  const std::vector<float> large(1 << 20);
  const std::vector<ShardTensor> tensors = {{"weights/w", "F32", {1 << 20}, {1 << 20}, {{0}, {1 << 20}}, large.data()}};
  signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  rlimit limit = old_limit;
  limit.rlim_cur = 1 << 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status status = WriteShard(directory.path(), {7, 2}, 0, tensors, nullptr);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank-00000.safetensors: cannot write after"));
  EXPECT_THAT(TestDirectory::Names(directory.File(".tmp-step-00000007.a2")), IsEmpty());
}

TEST(WriterTest, MissingDirectoryAndBadRectangle) {
  EXPECT_EQ(WriteShard("/nonexistent/dir", {7, 2}, 0, HalfOf(0), nullptr).code(), absl::StatusCode::kNotFound);
  TestDirectory directory;
  std::vector<ShardTensor> bad = HalfOf(1);
  bad[0].rectangle.offset = {4};
  EXPECT_EQ(WriteShard(directory.path(), {7, 2}, 0, bad, nullptr).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(TestDirectory::Names(directory.File(".tmp-step-00000007.a2")), IsEmpty());
}

TEST(WriterTest, RemoveUnfinishedKeepsEverythingElse) {
  TestDirectory directory;
  for (const char* name : {".tmp-step-00000001.a1", ".tmp-step-00000001.a2", ".tmp-step-00000001.a3",
                           "step-00000001.a1", ".tmp-other", "hf"}) {
    ASSERT_TRUE(MakeDirectory(directory.File(name)).ok());
  }
  ASSERT_TRUE(RemoveUnfinishedCheckpoints(directory.path(), 2).ok());
  EXPECT_EQ(TestDirectory::Names(directory.path()),
            (std::vector<std::string>{".tmp-other", ".tmp-step-00000001.a3", "hf", "step-00000001.a1"}));
  EXPECT_TRUE(RemoveUnfinishedCheckpoints(directory.File("missing"), 2).ok());
}

}  // namespace
}  // namespace tacc::worker
