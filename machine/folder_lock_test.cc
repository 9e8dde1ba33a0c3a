#include "machine/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "machine/testing/test_directory.h"

namespace tacc {
namespace {

using ::testing::HasSubstr;

class FolderLockTest : public ::testing::Test {
 protected:
  TestDirectory directory_;
  const std::string dir_ = directory_.path();
};

TEST_F(FolderLockTest, OneAloneOrManyShared) {
  const std::string used = absl::StrCat("checkpoint.dir ", dir_, " is used by job one (pid ", getpid(), " on ");
  auto alone = FolderLock::Take(dir_, FolderLock::Kind::kAlone, "job one");
  ASSERT_TRUE(alone.ok());
  for (const auto kind : {FolderLock::Kind::kAlone, FolderLock::Kind::kShared}) {
    const absl::Status refused = FolderLock::Take(dir_, kind, "job two").status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), HasSubstr(used));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("): wait for it, or give another checkpoint.dir"));
  }
  alone->reset();
  const auto first = FolderLock::Take(dir_, FolderLock::Kind::kShared, "job one");
  auto second = FolderLock::Take(dir_, FolderLock::Kind::kShared, "job one");
  ASSERT_TRUE(first.ok() && second.ok());
  second->reset();
  EXPECT_THAT(std::string(FolderLock::Take(dir_, FolderLock::Kind::kAlone, "job two").status().message()),
              HasSubstr(used));
}

TEST_F(FolderLockTest, TheWorkersOfItsCoordinatorMayGoOn) {
  EXPECT_TRUE(FolderLock::Check(dir_, "a:1").ok());
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
  auto alone = FolderLock::Take(dir_, FolderLock::Kind::kAlone, "job one");
  ASSERT_TRUE(alone.ok());
  EXPECT_FALSE(FolderLock::Check(dir_, "a:1").ok());
  EXPECT_FALSE(FolderLock::Check(dir_, "").ok());
  EXPECT_FALSE(FolderLock::IsFor(dir_, ""));
  (*alone)->SetCoordinator("a:1");
  EXPECT_TRUE(FolderLock::IsFor(dir_, "a:1"));
  EXPECT_FALSE(FolderLock::IsFor(dir_, "b:1"));
  EXPECT_TRUE(FolderLock::Check(dir_, "a:1").ok());
  EXPECT_THAT(std::string(FolderLock::Check(dir_, "b:1").message()), HasSubstr("is used by job one (pid "));
  alone->reset();
  EXPECT_TRUE(FolderLock::Check(dir_, "b:1").ok());
  EXPECT_FALSE(FolderLock::IsFor(dir_, "a:1"));
  // Ranks of a service hold it shared, and are no reason to refuse a worker.
  const auto shared = FolderLock::Take(dir_, FolderLock::Kind::kShared, "job one");
  EXPECT_TRUE(FolderLock::Check(dir_, "b:1").ok());
}

TEST_F(FolderLockTest, AFolderThatTakesNoFileIsNotLocked) {
  const auto lock = FolderLock::Take(dir_ + "/away", FolderLock::Kind::kAlone, "job one");
  ASSERT_TRUE(lock.ok());
  (*lock)->SetCoordinator("a:1");
  EXPECT_TRUE(FolderLock::Check(dir_ + "/away", "b:1").ok());
}

}  // namespace
}  // namespace tacc
