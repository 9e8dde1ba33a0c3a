#include "identity/call_limits.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tacc::identity {
namespace {

const Principal kAlice = {Role::kUser, "alice", "vision"};
const Principal kBob = {Role::kUser, "bob", "audio"};
const Principal kWorker = {Role::kWorker, "worker", ""};

class CallLimitsTest : public testing::Test {
 protected:
  CallLimits Make(CallLimits::Limits limits) {
    return {limits, [this] { return now_; }};
  }
  static int NumAdmitted(CallLimits* limits, const Principal& principal, int num_calls) {
    int num_admitted = 0;
    for (int i = 0; i < num_calls; ++i) num_admitted += limits->Admit(principal).ok() ? 1 : 0;
    return num_admitted;
  }

  double now_ = 1000;
};

TEST_F(CallLimitsTest, CountsEachPrincipalOverTenSeconds) {
  CallLimits limits = Make({.calls_per_second = 5});
  EXPECT_EQ(NumAdmitted(&limits, kAlice, 100), 50);
  EXPECT_EQ(NumAdmitted(&limits, kBob, 10), 10);
  const absl::Status refused = limits.Admit(kAlice);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(refused.message(),
            "user alice of project vision makes more than 5 calls a second (the coordinator's "
            "--max-calls-per-second); try again in 1 s");
  now_ += 1;
  EXPECT_EQ(NumAdmitted(&limits, kAlice, 100), 5) << "as it was told";
  now_ += 1000;
  EXPECT_EQ(NumAdmitted(&limits, kAlice, 100), 50);
}

TEST_F(CallLimitsTest, ANameInAnotherProjectIsSomebodyElses) {
  CallLimits limits = Make({.calls_per_second = 5});
  EXPECT_EQ(NumAdmitted(&limits, kAlice, 100), 50);
  EXPECT_EQ(NumAdmitted(&limits, {Role::kUser, "alice", "audio"}, 100), 50);
}

TEST_F(CallLimitsTest, OnlySoManyAreOpen) {
  CallLimits limits = Make({.max_open = 2});
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(limits.Admit(kAlice).ok());
    limits.Begin(kAlice);
  }
  const absl::Status refused = limits.Admit(kAlice);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(refused.message(),
            "user alice of project vision has 2 calls open, and may have 2 (the coordinator's --max-streams); try "
            "again when one has ended");
  EXPECT_TRUE(limits.Admit(kBob).ok());
  limits.End(kAlice);
  EXPECT_TRUE(limits.Admit(kAlice).ok());
}

TEST_F(CallLimitsTest, WhoDoesNotWaitFloods) {
  std::vector<std::string> floods;
  CallLimits limits(
      {.calls_per_second = 5, .max_refused = 20}, [this] { return now_; },
      [&](const Principal& who, const std::string& did) {
        floods.push_back(absl::StrCat(Describe(who), " ", did));
        limits.ShutOut(who, did);
      });
  EXPECT_EQ(NumAdmitted(&limits, kAlice, 70), 50);
  EXPECT_EQ(NumAdmitted(&limits, kWorker, 1000), 50) << "others may have its certificate";
  EXPECT_TRUE(floods.empty());
  NumAdmitted(&limits, kAlice, 100);
  EXPECT_EQ(floods, std::vector<std::string>({"user alice of project vision called on 20 times though it was told to "
                                              "wait"}));
  now_ += 1000;
  EXPECT_EQ(NumAdmitted(&limits, kAlice, 100), 50);
  CallLimits few(
      {.max_open = 1, .max_refused = 20}, [this] { return now_; },
      [&](const Principal&, const std::string& did) { floods.push_back(did); });
  few.Begin(kBob);
  EXPECT_EQ(NumAdmitted(&few, kBob, 21), 0);
  EXPECT_EQ(floods.size(), 3u) << "however it is refused";
}

TEST_F(CallLimitsTest, WhoIsShutOutIsToldWhyAndForHowLong) {
  CallLimits limits = Make({.shut_out_seconds = 30});
  limits.ShutOut(kAlice, "did harm");
  now_ += 0.5;
  const absl::Status refused = limits.Admit(kAlice);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << "clients wait";
  EXPECT_EQ(refused.message(), "user alice of project vision is shut out, for it did harm; try again in 30 s");
  EXPECT_TRUE(limits.Admit(kBob).ok());
  now_ += 29.5;
  EXPECT_TRUE(limits.Admit(kAlice).ok());
  limits.ShutOut(kWorker, "did harm");
  EXPECT_TRUE(limits.Admit(kWorker).ok()) << "it may be that of many machines";
}

TEST_F(CallLimitsTest, AThousandDevicesOfOneCertificateComeBackAtOnce) {
  CallLimits limits = Make({});
  for (int restart = 0; restart < 5; ++restart) {
    for (int device = 0; device < 1000; ++device) {
      ASSERT_TRUE(limits.Admit(kWorker).ok()) << device;
      limits.Begin(kWorker);
    }
    // Each fetches a file on a machine of eight.
    ASSERT_EQ(NumAdmitted(&limits, kWorker, 125), 125);
    for (int device = 0; device < 1000; ++device) limits.End(kWorker);
    now_ += 3;
  }
}

}  // namespace
}  // namespace tacc::identity
