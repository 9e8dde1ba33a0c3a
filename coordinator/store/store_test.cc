#include "coordinator/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>

#include "absl/strings/str_cat.h"
#include "machine/testing/test_directory.h"

namespace tacc::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(Store::Options(), &no_failpoints_); }
  void Open(Store::Options options, Failpoints* failpoints) {
    store_.reset();
    auto store = Store::Open(dir_ + "/tacc.db", options, failpoints);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
  }
  static Decision Accepted(const std::string& job, int64_t number) {
    LogFact log;
    log.fact.set_job(job);
    log.fact.mutable_job_accepted()->set_number(number);
    log.fact.mutable_job_accepted()->set_request_id(job);
    return log;
  }
  static Decision Step(const std::string& job, int64_t step, int attempt) {
    StoreStep store;
    store.job = job;
    store.step.set_step(step);
    store.step.set_attempt(attempt);
    return store;
  }
  static Decision Event(const std::string& job, const std::string& message) {
    StoreEvent store;
    store.job = job;
    store.event.set_message(message);
    return store;
  }
  // "1.a2" for step 1 of attempt 2, or an event's message.
  std::vector<std::string> Records(const std::string& job, uint64_t after = 0) {
    Store::Selection selection;
    selection.job = job;
    selection.after = after;
    selection.limit = 100000;
    auto records = store_->Read(selection);
    EXPECT_TRUE(records.ok()) << records.status();
    std::vector<std::string> names;
    for (const v1::WatchResponse& record : *records) {
      names.push_back(record.has_event() ? record.event().message()
                                         : absl::StrCat(record.step().step(), ".a", record.step().attempt()));
    }
    return names;
  }

  TestDirectory directory_;
  const std::string dir_ = directory_.path();
  Failpoints no_failpoints_;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, GivesBackWhatWasCommittedInOrder) {
  StoreSequence sequence;
  sequence.id = IdOf("a-1", 1, 0);
  sequence.sequence = 7;
  ASSERT_TRUE(store_->Commit({Accepted("a-1", 1), Event("a-1", "accepted"), Step("a-1", 1, 1), sequence}).ok());
  ASSERT_TRUE(store_->Commit({Step("a-1", 2, 1), Event("b-1", "other"), Event("a-1", "more")}).ok());
  Open(Store::Options(), &no_failpoints_);
  EXPECT_THAT(Records("a-1"), ElementsAre("accepted", "1.a1", "2.a1", "more"));
  EXPECT_THAT(Records("a-1", 2), ElementsAre("2.a1", "more"));
  EXPECT_EQ(*store_->LastCursor("a-1"), 5u);
  EXPECT_EQ(*store_->LastCursor("nobody"), 0u);

  Core core(Core::Options{"0.1.0"}, nullptr);
  ASSERT_TRUE(store_->Load(&core).ok());
  ASSERT_NE(core.Find("a-1", {.all = true}), nullptr);
  EXPECT_EQ(core.Find("a-1", {.all = true})->last_step->step(), 2);
}

TEST_F(StoreTest, KeepsAPointOnceForEachAttempt) {
  ASSERT_TRUE(store_->Commit({Step("a-1", 1, 1), Step("a-1", 1, 1), Step("a-1", 1, 2)}).ok());
  ASSERT_TRUE(store_->Commit({Step("a-1", 1, 1)}).ok());
  EXPECT_THAT(Records("a-1"), ElementsAre("1.a1", "1.a2"));
}

TEST_F(StoreTest, ThinsOldPointsOutEvenlyAndKeepsTheNewest) {
  Store::Options options;
  options.max_points = 100;
  Open(options, &no_failpoints_);
  for (int step = 1; step <= 1000; step += 4) {
    ASSERT_TRUE(store_
                    ->Commit({Step("a-1", step, 1), Step("a-1", step + 1, 1), Step("a-1", step + 2, 1),
                              Step("a-1", step + 3, 1)})
                    .ok());
  }
  const std::vector<std::string> kept = Records("a-1");
  EXPECT_LE(kept.size(), 100u);
  EXPECT_GE(kept.size(), 50u);
  EXPECT_EQ(kept.back(), "1000.a1");
  // The last ten are whole, and the gaps before them are of one size but for the part that is not thinned yet.
  for (int step = 991; step <= 1000; ++step) EXPECT_THAT(kept, ::testing::Contains(absl::StrCat(step, ".a1")));
  EXPECT_EQ(std::stoi(kept[1]) - std::stoi(kept[0]), std::stoi(kept[0]));
}

TEST_F(StoreTest, KeepsTheNewestEvents) {
  Store::Options options;
  options.max_events = 20;
  Open(options, &no_failpoints_);
  for (int i = 1; i <= 100; ++i) ASSERT_TRUE(store_->Commit({Event("a-1", absl::StrCat("e", i))}).ok());
  EXPECT_LE(Records("a-1").size(), 20u);
  EXPECT_EQ(Records("a-1").back(), "e100");
}

TEST_F(StoreTest, ForgetsAJobAndNoOther) {
  StoreSequence sequence;
  sequence.id = IdOf("a-1", 1, 0);
  sequence.sequence = 7;
  ASSERT_TRUE(store_->Commit({Accepted("a-1", 1), Event("a-1", "gone"), Step("a-1", 1, 1), sequence}).ok());
  ASSERT_TRUE(store_->Commit({Accepted("b-1", 2), Event("b-1", "kept"), ForgetJob{"a-1"}}).ok());
  EXPECT_THAT(Records("a-1"), ElementsAre());
  EXPECT_THAT(Records("b-1"), ElementsAre("kept"));
  Core core(Core::Options{"0.1.0"}, nullptr);
  ASSERT_TRUE(store_->Load(&core).ok());
  EXPECT_EQ(core.Find("a-1", {.all = true}), nullptr);
  EXPECT_NE(core.Find("b-1", {.all = true}), nullptr);
}

TEST_F(StoreTest, AFailureBeforeTheCommitStoresNothing) {
  auto failpoints = Failpoints::Parse("before_log_commit=error@1");
  ASSERT_TRUE(failpoints.ok());
  Open(Store::Options(), failpoints->get());
  EXPECT_FALSE(store_->Commit({Event("a-1", "lost"), Accepted("a-1", 1)}).ok());
  EXPECT_THAT(Records("a-1"), ElementsAre());
  EXPECT_TRUE(store_->Commit({Event("a-1", "kept"), Accepted("a-1", 1)}).ok());
  EXPECT_THAT(Records("a-1"), ElementsAre("kept"));
}

TEST_F(StoreTest, AFailureAfterTheCommitHasStoredAll) {
  auto failpoints = Failpoints::Parse("after_log_commit=error@1");
  ASSERT_TRUE(failpoints.ok());
  Open(Store::Options(), failpoints->get());
  EXPECT_FALSE(store_->Commit({Event("a-1", "kept"), Accepted("a-1", 1)}).ok());
  EXPECT_THAT(Records("a-1"), ElementsAre("kept"));
}

TEST_F(StoreTest, RefusesFilesThatAreNotOurs) {
  sqlite3* db = nullptr;
  ASSERT_EQ(sqlite3_open((dir_ + "/other.db").c_str(), &db), SQLITE_OK);
  sqlite3_exec(db, "PRAGMA application_id=5; CREATE TABLE t (x)", nullptr, nullptr, nullptr);
  sqlite3_close(db);
  auto other = Store::Open(dir_ + "/other.db", Store::Options(), &no_failpoints_);
  ASSERT_FALSE(other.ok());
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("database of another program"));

  FILE* file = fopen((dir_ + "/text.db").c_str(), "w");
  for (int i = 0; i < 1000; ++i) fputs("not a database ", file);
  fclose(file);
  auto text = Store::Open(dir_ + "/text.db", Store::Options(), &no_failpoints_);
  ASSERT_FALSE(text.ok());
  EXPECT_THAT(std::string(text.status().message()), HasSubstr("text.db"));

  store_.reset();
  ASSERT_EQ(sqlite3_open((dir_ + "/tacc.db").c_str(), &db), SQLITE_OK);
  sqlite3_exec(db, "PRAGMA user_version=99", nullptr, nullptr, nullptr);
  sqlite3_close(db);
  auto newer = Store::Open(dir_ + "/tacc.db", Store::Options(), &no_failpoints_);
  ASSERT_FALSE(newer.ok());
  EXPECT_THAT(std::string(newer.status().message()), HasSubstr("schema 99"));
}

// A start and a job that is forgotten cost what they read, however much of other jobs is kept.
TEST_F(StoreTest, IndicesLeadToWhatIsReadAndForgotten) {
  Decisions decisions;
  for (const char* job : {"a-1", "b-2"}) {
    decisions.push_back(Accepted(job, job[2] - '0'));
    for (int64_t step = 1; step <= 1000; ++step) {
      StoreStep point = std::get<StoreStep>(Step(job, step, 1));
      point.step.set_skipped(step == 500);
      decisions.push_back(point);
      decisions.push_back(Event(job, absl::StrCat("event ", step)));
      StoreEval eval{job, {}};
      eval.eval.set_step(step);
      decisions.push_back(eval);
    }
  }
  ASSERT_TRUE(store_->Commit(decisions).ok());
  Open(Store::Options(), &no_failpoints_);
  Core core(Core::Options{"0.1.0"}, nullptr);
  ASSERT_TRUE(store_->Load(&core).ok());
  const JobState& job = core.jobs().at("a-1");
  ASSERT_TRUE(job.last_step.has_value());
  EXPECT_EQ(job.last_step->step(), 1000);
  EXPECT_EQ(job.skipped_steps, 1);
  const int64_t facts_and_sequences = store_->scanned_rows();
  EXPECT_LE(facts_and_sequences, 4);
  ASSERT_TRUE(store_->Commit({ForgetJob{"a-1"}}).ok());
  EXPECT_EQ(store_->scanned_rows(), facts_and_sequences);
  EXPECT_TRUE(Records("a-1").empty());
  EXPECT_EQ(Records("b-2").size(), 3000u);
}

TEST_F(StoreTest, ADamagedLogIsSaidWithItsEntry) {
  LogFact orphan;
  orphan.fact.set_job("ghost-1");
  orphan.fact.mutable_job_ended()->set_phase(v1::PHASE_FAILED);
  ASSERT_TRUE(store_->Commit({orphan}).ok());
  Core core(Core::Options{"0.1.0"}, nullptr);
  const absl::Status status = store_->Load(&core);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("entry 1: the log names job ghost-1"));
}

}  // namespace
}  // namespace tacc::coordinator
