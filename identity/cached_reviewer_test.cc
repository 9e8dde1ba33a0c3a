#include "identity/cached_reviewer.h"

#include <atomic>
#include <future>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace tacc::identity {
namespace {

class CachedReviewerTest : public testing::Test {
 protected:
  // Tokens that begin with "good" are of a viewer of that name, "bad" of nobody; of others it cannot say.
  absl::StatusOr<TokenReview> Ask(absl::string_view token) {
    ++num_asked_;
    if (token.substr(0, 4) == "good") return TokenReview{{Role::kViewer, std::string(token), ""}, expires_};
    if (token.substr(0, 3) == "bad") return absl::UnauthenticatedError("nobody");
    return absl::UnavailableError("no answer");
  }
  CachedReviewer Make(CachedReviewer::Limits limits = {}) {
    return CachedReviewer(limits, [this](absl::string_view token) { return Ask(token); }, [this] { return now_; });
  }

  double now_ = 1000, expires_ = std::numeric_limits<double>::infinity();
  std::atomic<int> num_asked_{0};
};

TEST_F(CachedReviewerTest, AsksOnceAWhile) {
  CachedReviewer reviewer = Make();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(reviewer.Review("good")->name, "good");
    EXPECT_TRUE(absl::IsUnauthenticated(reviewer.Review("bad").status()));
  }
  EXPECT_EQ(num_asked_, 2);
  now_ += 31;
  EXPECT_TRUE(reviewer.Review("good").ok());
  EXPECT_EQ(num_asked_, 2);
  EXPECT_FALSE(reviewer.Review("bad").ok());
  EXPECT_EQ(num_asked_, 3);
  now_ += 270;
  EXPECT_TRUE(reviewer.Review("good").ok());
  EXPECT_EQ(num_asked_, 4);
}

TEST_F(CachedReviewerTest, KeepsNoTokenBeyondItsEnd) {
  expires_ = now_ + 10;
  CachedReviewer reviewer = Make();
  EXPECT_TRUE(reviewer.Review("good").ok());
  now_ += 9;
  EXPECT_TRUE(reviewer.Review("good").ok());
  EXPECT_EQ(num_asked_, 1);
  now_ += 1;
  EXPECT_TRUE(reviewer.Review("good").ok());
  EXPECT_EQ(num_asked_, 2);
}

TEST_F(CachedReviewerTest, KeepsNoWantOfAnAnswer) {
  CachedReviewer reviewer = Make();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(absl::IsUnavailable(reviewer.Review("other").status()));
  EXPECT_EQ(num_asked_, 2);
}

TEST_F(CachedReviewerTest, AsksSoOftenAlone) {
  CachedReviewer reviewer = Make();
  EXPECT_TRUE(reviewer.Review("good").ok());
  int num_refused = 0;
  for (int i = 0; i < 30; ++i)
    if (absl::IsUnavailable(reviewer.Review(absl::StrCat("bad", i)).status())) ++num_refused;
  EXPECT_EQ(num_asked_, 10);
  EXPECT_EQ(num_refused, 21);
  EXPECT_TRUE(reviewer.Review("good").ok()) << "what is known costs nothing";
  now_ += 0.5;
  for (int i = 0; i < 30; ++i) (void)reviewer.Review(absl::StrCat("bad again", i));
  EXPECT_EQ(num_asked_, 15);
}

TEST_F(CachedReviewerTest, KeepsSoManyAlone) {
  CachedReviewer reviewer = Make({.max_kept = 2, .reviews_per_second = 100});
  EXPECT_TRUE(reviewer.Review("good").ok());
  for (int i = 0; i < 20; ++i) (void)reviewer.Review(absl::StrCat("bad", i));
  EXPECT_EQ(num_asked_, 21);
  EXPECT_TRUE(reviewer.Review("good").ok()) << "bad ones push out no good one";
  EXPECT_EQ(num_asked_, 21);
}

TEST_F(CachedReviewerTest, RecallsWithoutAsking) {
  CachedReviewer reviewer = Make();
  EXPECT_TRUE(absl::IsUnauthenticated(reviewer.Recall("good").status()));
  EXPECT_EQ(num_asked_, 0);
  EXPECT_TRUE(reviewer.Review("good").ok());
  EXPECT_FALSE(reviewer.Review("bad").ok());
  EXPECT_EQ(reviewer.Recall("good")->name, "good");
  EXPECT_TRUE(absl::IsUnauthenticated(reviewer.Recall("bad").status()));
  EXPECT_EQ(num_asked_, 2);
}

TEST_F(CachedReviewerTest, AsksOnceForAllWhoWait) {
  CachedReviewer reviewer = Make();
  std::vector<std::thread> callers;
  for (int i = 0; i < 20; ++i) callers.emplace_back([&] { EXPECT_TRUE(reviewer.Review("good").ok()); });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(num_asked_, 1);
}

TEST_F(CachedReviewerTest, AllWhoWaitHaveTheOneWantOfAnAnswer) {
  constexpr int kCallers = 5;
  std::promise<void> answers;
  std::atomic<int> num_come{0};
  CachedReviewer reviewer(
      {},
      [&, may_answer = answers.get_future().share()](absl::string_view token) {
        may_answer.wait();
        return Ask(token);
      },
      [&] {
        ++num_come;  // With the reviewer's lock, which a caller lets go of when it waits.
        return now_;
      });
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i)
    callers.emplace_back([&] { EXPECT_TRUE(absl::IsUnavailable(reviewer.Review("other").status())); });
  while (num_come < kCallers) std::this_thread::yield();
  answers.set_value();
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(num_asked_, 1) << "or the last waits as often as there are callers";
}

TEST_F(CachedReviewerTest, SoManyCallsAloneWait) {
  std::promise<void> answers;
  std::atomic<int> num_waiting{0};
  CachedReviewer reviewer(
      {.max_waiting = 2},
      [&, may_answer = answers.get_future().share()](absl::string_view token) {
        if (token == "good") return Ask(token);
        ++num_waiting;
        may_answer.wait();
        return Ask(token);
      },
      [this] { return now_; });
  EXPECT_TRUE(reviewer.Review("good").ok());
  std::vector<std::thread> callers;
  for (int i = 0; i < 2; ++i) callers.emplace_back([&, i] { (void)reviewer.Review(absl::StrCat("other", i)); });
  while (num_waiting < 2) std::this_thread::yield();
  for (const char* token : {"another", "other0"}) EXPECT_TRUE(absl::IsUnavailable(reviewer.Review(token).status()));
  EXPECT_TRUE(reviewer.Review("good").ok()) << "what is known does not wait";
  answers.set_value();
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(reviewer.Review("good too").ok());
}

}  // namespace
}  // namespace tacc::identity
