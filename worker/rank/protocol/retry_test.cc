#include "worker/rank/protocol/retry.h"

#include <vector>

#include "gtest/gtest.h"

namespace tacc::worker {
namespace {

class RetryTest : public testing::Test {
 protected:
  // The status of a work that ends with `ends` in turn, waited for as long as `wait_seconds` say.
  absl::Status Run(std::vector<absl::Status> ends, const std::vector<int>& wait_seconds) {
    RetryOptions options;
    options.wait_seconds = wait_seconds;
    options.may_pass = [](const absl::Status& status) { return absl::IsResourceExhausted(status); };
    options.wait = [this](const absl::Status& status, int seconds) {
      EXPECT_TRUE(absl::IsResourceExhausted(status));
      waited_.push_back(seconds);
      return wait_ends_;
    };
    return Retry(options, [&] { return ends.at(num_tries_++); });
  }

  const absl::Status full_ = absl::ResourceExhaustedError("full"), broken_ = absl::InternalError("broken");
  absl::Status wait_ends_;
  std::vector<int> waited_;
  size_t num_tries_ = 0;
};

TEST_F(RetryTest, EndsWithTheFirstThatGoesWell) {
  EXPECT_EQ(Run({full_, full_, absl::OkStatus()}, {1, 5, 25}), absl::OkStatus());
  EXPECT_EQ(waited_, (std::vector<int>{1, 5}));
}

TEST_F(RetryTest, EndsWithWhatDoesNotPass) {
  EXPECT_EQ(Run({full_, broken_}, {1, 5, 25}), broken_);
  EXPECT_EQ(waited_, (std::vector<int>{1}));
}

TEST_F(RetryTest, EndsAfterTheLastWait) {
  EXPECT_EQ(Run({full_, full_, full_}, {1, 5}), full_);
  EXPECT_EQ(waited_, (std::vector<int>{1, 5}));
  EXPECT_EQ(num_tries_, 3u);
}

TEST_F(RetryTest, EndsWithAWaitThatFails) {
  wait_ends_ = broken_;
  EXPECT_EQ(Run({full_, full_}, {1}), broken_);
  EXPECT_EQ(num_tries_, 1u);
}

}  // namespace
}  // namespace tacc::worker
