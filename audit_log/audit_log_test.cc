#include "audit_log/audit_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "machine/testing/test_directory.h"
#include "nlohmann/json.hpp"

namespace tacc {
namespace {

using ::testing::HasSubstr;

class AuditLogTest : public ::testing::Test {
 protected:
  std::unique_ptr<AuditLog> Open(AuditLog::Options options = {}) {
    auto log = AuditLog::Open(folder_, options);
    EXPECT_TRUE(log.ok()) << log.status();
    return log.ok() ? *std::move(log) : nullptr;
  }
  // Returns when it is on disk.
  static void Append(AuditLog* log, const std::string& method, const std::string& detail = "") {
    AuditEntry entry;
    entry.time = 1700000000.25;
    entry.method = method;
    entry.principal = "user alice";
    entry.detail = detail;
    std::promise<void> written;
    log->Append(entry, [&written] { written.set_value(); });
    written.get_future().get();
  }
  std::string Path(int number = 1) const { return absl::StrCat(folder_, "/00000", number, ".jsonl"); }
  static std::string Read(const std::string& path) {
    std::ifstream in(path);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  static void Write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
  // The log with four entries, three hashes of which are kept.
  std::string WriteFour() {
    auto log = Open();
    for (const char* method : {"one", "two", "three"}) Append(log.get(), method);
    const std::string kept = log->head().hash;
    Append(log.get(), "four");
    return kept;
  }

  TestDirectory directory_;
  const std::string folder_ = directory_.File("audit");
};

TEST_F(AuditLogTest, AnEntryIsALineWithTheHashOfTheOneBefore) {
  const std::string kept = WriteFour();
  const std::vector<std::string> lines = absl::StrSplit(Read(Path()), '\n');
  ASSERT_EQ(lines.size(), 5);
  const auto first = nlohmann::json::parse(lines[0]);
  EXPECT_EQ(first["number"], 1);
  EXPECT_EQ(first["time"], "2023-11-14T22:13:20.250Z");
  EXPECT_EQ(first["method"], "one");
  EXPECT_EQ(first["principal"], "user alice");
  EXPECT_EQ(first["previous"], kEmptyAuditHash);
  EXPECT_EQ(nlohmann::json::parse(lines[3])["previous"], kept);
  const auto head = VerifyAuditLog(folder_, kept);
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->num_entries, 4);
  struct stat found {};
  ASSERT_EQ(stat(Path().c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600);
  ASSERT_EQ(stat(folder_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0700);
}

TEST_F(AuditLogTest, GoesOnWhereItEnded) {
  WriteFour();
  auto log = Open();
  EXPECT_EQ(log->head().num_entries, 4);
  Append(log.get(), "five");
  const auto head = VerifyAuditLog(folder_, "");
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->num_entries, 5);
  EXPECT_EQ(head->hash, log->head().hash);
}

TEST_F(AuditLogTest, IsOneChainOverItsFiles) {
  AuditLog::Options options;
  options.max_file_bytes = 400;
  std::string kept;
  for (int run = 0; run < 2; ++run) {
    auto log = Open(options);
    for (int i = 0; i < 4; ++i) Append(log.get(), "one");
    if (run == 0) kept = log->head().hash;
  }
  EXPECT_TRUE(std::filesystem::exists(Path(4)));
  const auto head = VerifyAuditLog(folder_, kept);
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->num_entries, 8);
  std::filesystem::remove(Path(2));
  EXPECT_THAT(std::string(VerifyAuditLog(folder_, "").status().message()), HasSubstr("000002.jsonl is gone"));
}

TEST_F(AuditLogTest, ShowsWhatWasChanged) {
  const std::string kept = WriteFour();
  const std::string whole = Read(Path());
  const std::vector<std::string> lines = absl::StrSplit(whole, '\n');
  const auto problem = [&](const std::vector<std::string>& changed, const std::string& hash) {
    Write(Path(), absl::StrJoin(changed, "\n"));
    return std::string(VerifyAuditLog(folder_, hash).status().message());
  };
  // Every byte of every line but the last, which only a kept hash holds.
  for (size_t i = 0; i + lines[3].size() + 1 < whole.size(); ++i) {
    std::string text = whole;
    text[i] = static_cast<char>(text[i] ^ 1);
    Write(Path(), text);
    EXPECT_FALSE(VerifyAuditLog(folder_, "").ok()) << i;
  }
  EXPECT_THAT(problem({lines[0], lines[2], lines[3], ""}, ""), HasSubstr(":2: it is entry 3, entry 2 should be here"));
  EXPECT_THAT(problem({lines[0], lines[1], lines[1], lines[3], ""}, ""), HasSubstr(":3: it is entry 2"));
  EXPECT_THAT(problem({lines[0], lines[1], "x", lines[3], ""}, ""), HasSubstr(":3: it is no line of an audit log"));
  // Its end cut off: only what was kept shows it.
  EXPECT_EQ(problem({lines[0], lines[1], ""}, ""), "");
  EXPECT_THAT(problem({lines[0], lines[1], ""}, kept), HasSubstr("its end was cut off, or it was written anew"));
  EXPECT_THAT(problem({""}, kept), HasSubstr("none of its 0 entries"));
}

TEST_F(AuditLogTest, CutsAnUnfinishedLineOffAndSaysSo) {
  WriteFour();
  const std::string whole = Read(Path());
  Write(Path(), whole + R"({"number":5,"ti)");
  EXPECT_TRUE(VerifyAuditLog(folder_, "").ok());  // It may be being written.
  auto log = Open();
  EXPECT_EQ(log->head().num_entries, 5);
  EXPECT_THAT(Read(Path()), HasSubstr("an unfinished last line was cut off"));
  EXPECT_TRUE(VerifyAuditLog(folder_, "").ok());
  log.reset();
  Write(Path(), Read(Path()) + "nothing of ours\n");
  EXPECT_THAT(std::string(AuditLog::Open(folder_, {}).status().message()), HasSubstr("move the folder away"));
}

TEST_F(AuditLogTest, KeepsTheBeginningOfLongTextsAndEscapesAll) {
  auto log = Open();
  Append(log.get(), "a\n\"b\"\xff\xfe", std::string(1 << 20, '\x01'));
  Append(log.get(), "next");
  EXPECT_LT(Read(Path()).size(), 10000);
  const auto head = VerifyAuditLog(folder_, "");
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->num_entries, 2);
}

TEST_F(AuditLogTest, WaitsTogetherForOneWrite) {
  auto log = Open();
  std::atomic<int> written{0};
  for (int i = 0; i < 10000; ++i) {
    log->Append({}, [&written] { ++written; });
  }
  log.reset();
  EXPECT_EQ(written, 10000);
  EXPECT_EQ(VerifyAuditLog(folder_, "")->num_entries, 10000);
}

TEST_F(AuditLogTest, WaitsForAFullDisk) {
  AuditLog::Options options;
  options.max_file_bytes = 0;
  options.retry_seconds = 0.01;
  auto log = Open(options);
  Append(log.get(), "one");
  std::filesystem::create_directory(Path(2));  // In the way of the next file.
  std::promise<void> written;
  log->Append({}, [&written] { written.set_value(); });
  auto future = written.get_future();
  EXPECT_EQ(future.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  EXPECT_EQ(log->head().num_entries, 1);
  std::filesystem::remove(Path(2));
  future.get();
  EXPECT_EQ(VerifyAuditLog(folder_, "")->num_entries, 2);
  // Nor does it hold up whoever ends.
  std::filesystem::create_directory(Path(3));
  std::promise<void> lost;
  log->Append({}, [&lost] { lost.set_value(); });
  log->StopWaiting();
  lost.get_future().get();
  EXPECT_EQ(log->head().num_entries, 2);
}

TEST(VerifyAuditLogTest, SaysThatThereIsNone) {
  const TestDirectory directory;
  EXPECT_EQ(VerifyAuditLog(directory.path(), "").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(VerifyAuditLog(directory.File("missing"), "").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tacc
