#include "coordinator/store/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "coordinator/store/store.h"
#include "machine/testing/test_directory.h"

namespace tacc::coordinator {
namespace {

using ::testing::HasSubstr;

// As coordinators of the first schema made them: with the log of one job.
constexpr char kFirstSchema[] = R"(
CREATE TABLE facts (number INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, fact BLOB NOT NULL);
CREATE TABLE records (cursor INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, kind INTEGER NOT NULL, step INTEGER NOT NULL,
                      attempt INTEGER NOT NULL, skipped INTEGER NOT NULL, payload BLOB NOT NULL);
CREATE INDEX records_by_job ON records (job, cursor);
CREATE UNIQUE INDEX points ON records (job, kind, step, attempt) WHERE kind != 0;
CREATE TABLE sequences (job TEXT NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL, sequence INTEGER NOT NULL,
                        PRIMARY KEY (job, attempt, rank)) WITHOUT ROWID;
PRAGMA application_id=1952539491;
PRAGMA user_version=1;
)";

class SchemaTest : public ::testing::Test {
 protected:
  std::string path() const { return dir_ + "/tacc.db"; }
  void Execute(const std::string& path, const std::string& sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
    char* error = nullptr;
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, &error), SQLITE_OK) << error;
    sqlite3_close(db);
  }
  // The one number that a query gives.
  int Number(const std::string& path, const std::string& sql) {
    sqlite3* db = nullptr;
    EXPECT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
    int number = -1;
    sqlite3_exec(
        db, sql.c_str(),
        [](void* out, int, char** columns, char**) {
          *static_cast<int*>(out) = std::atoi(columns[0]);
          return 0;
        },
        &number, nullptr);
    sqlite3_close(db);
    return number;
  }
  absl::Status OpenStore() { return Store::Open(path(), Store::Options(), &no_failpoints_).status(); }
  // A coordinator's file with a thousand events.
  void Fill() {
    auto store = Store::Open(path(), Store::Options(), &no_failpoints_);
    ASSERT_TRUE(store.ok()) << store.status();
    Decisions decisions;
    for (int i = 0; i < 1000; ++i) {
      StoreEvent event{"a-1", {}};
      event.event.set_message(std::string(100, 'x'));
      decisions.push_back(event);
    }
    ASSERT_TRUE((*store)->Commit(decisions).ok());
  }

  const TestDirectory directory_;
  const std::string dir_ = directory_.path();
  Failpoints no_failpoints_;
};

TEST_F(SchemaTest, AnEarlierFileIsCopiedAndBroughtToThisSchema) {
  v1::Fact fact;
  fact.set_job("a-1");
  fact.mutable_job_accepted()->set_number(1);
  Execute(path(), kFirstSchema);
  Execute(
      path(), "INSERT INTO facts (job, fact) VALUES ('a-1', x'" + [&] {
        std::string hex;
        for (const unsigned char c : fact.SerializeAsString()) {
          constexpr char kDigits[] = "0123456789abcdef";
          hex += {kDigits[c >> 4], kDigits[c & 15]};
        }
        return hex;
      }() + "')");

  auto store = Store::Open(path(), Store::Options(), &no_failpoints_);
  ASSERT_TRUE(store.ok()) << store.status();
  Core core(Core::Options{"0.1.0"}, nullptr);
  ASSERT_TRUE((*store)->Load(&core).ok());
  EXPECT_EQ(core.jobs().count("a-1"), 1u);
  EXPECT_EQ(Number(path(), "PRAGMA user_version"), 2);
  EXPECT_EQ(Number(path(), "SELECT count(*) FROM sqlite_master WHERE name = 'facts_by_job'"), 1);

  const std::string backup = path() + ".schema-1.backup";
  EXPECT_EQ(Number(backup, "PRAGMA user_version"), 1);
  EXPECT_EQ(Number(backup, "SELECT count(*) FROM facts"), 1);
  struct stat found {};
  ASSERT_EQ(stat(backup.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
}

TEST_F(SchemaTest, AFileThatCannotBeCopiedStaysAsItIs) {
  Execute(path(), kFirstSchema);
  // Nothing can be put in the place of a folder with something in it.
  std::filesystem::create_directories(path() + ".schema-1.backup/taken");
  const absl::Status status = OpenStore();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr(".schema-1.backup"));
  EXPECT_EQ(Number(path(), "PRAGMA user_version"), 1);
}

TEST_F(SchemaTest, ANewerFileIsRefusedWithTheWayBack) {
  Fill();
  Execute(path(), "PRAGMA user_version=99");
  const absl::Status status = OpenStore();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has schema 99, this coordinator knows schema 2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("tacc.db.schema-2.backup"));
}

TEST_F(SchemaTest, ADamagedFileIsRefused) {
  Fill();
  Execute(path(), "PRAGMA wal_checkpoint(TRUNCATE)");
  std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(40960);
  file << std::string(8192, '\x5a');
  file.close();
  const absl::Status status = OpenStore();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tacc.db"));
  EXPECT_EQ(BackUpDatabase(path(), dir_ + "/copy.db").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/copy.db"));
}

// Batches of ten: a copy of one moment has whole ones.
TEST_F(SchemaTest, CopiesAreOfOneMomentWhileTheCoordinatorWrites) {
  auto store = Store::Open(path(), Store::Options(), &no_failpoints_);
  ASSERT_TRUE(store.ok()) << store.status();
  std::atomic<bool> ended{false};
  std::atomic<int> batches{0};
  std::thread writer([&] {
    while (!ended) {
      Decisions decisions;
      for (int i = 0; i < 10; ++i) decisions.push_back(StoreEvent{"a-1", {}});
      ASSERT_TRUE((*store)->Commit(decisions).ok());
      ++batches;
    }
  });
  int last = 0;
  for (int i = 0; i < 5; ++i) {
    const int before = batches;
    while (batches < before + 3) std::this_thread::yield();
    const std::string copy = dir_ + "/copy-" + std::to_string(i);
    const absl::Status status = BackUpDatabase(path(), copy);
    ASSERT_TRUE(status.ok()) << status;
    const int events = Number(copy, "SELECT count(*) FROM records");
    EXPECT_EQ(events % 10, 0);
    EXPECT_GE(events, 10 * (before + 3));
    EXPECT_GT(events, last);
    last = events;
  }
  ended = true;
  writer.join();
  EXPECT_EQ(BackUpDatabase(path(), dir_ + "/copy-0").code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(SchemaTest, OnlyACoordinatorsFileIsCopied) {
  EXPECT_EQ(BackUpDatabase(dir_ + "/none.db", dir_ + "/copy.db").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/none.db"));
  Execute(dir_ + "/other.db", "CREATE TABLE t (x)");
  const absl::Status status = BackUpDatabase(dir_ + "/other.db", dir_ + "/copy.db");
  EXPECT_THAT(std::string(status.message()), HasSubstr("no database of a coordinator"));
}

}  // namespace
}  // namespace tacc::coordinator
