#include "coordinator/core/job_state.h"

#include "coordinator/core/view.h"
#include "gtest/gtest.h"

namespace tacc::coordinator {
namespace {

Summary Parse(const std::string& text) {
  Summary summary;
  EXPECT_TRUE(Summary::Parse(text, &summary).ok());
  return summary;
}

TEST(Summary, TheStageIsTheCoordinateOnThePipelinesAxis) {
  const Summary outside = Parse(R"({"world": 6, "mesh": {"pp": 2, "fsdp": 3}, "axes": ["pp", "fsdp"]})");
  const Summary inside = Parse(R"({"world": 6, "mesh": {"pp": 2, "fsdp": 3}, "axes": ["fsdp", "pp"]})");
  const Summary between = Parse(R"({"world": 8, "mesh": {"dp": 2, "pp": 2, "tp": 2}, "axes": ["dp", "pp", "tp"]})");
  std::string stages;
  for (const Summary* summary : {&outside, &inside, &between}) {
    EXPECT_EQ(summary->NumStages(), 2);
    for (int rank = 0; rank < summary->plan.world(); ++rank) stages += std::to_string(summary->StageOf(rank));
    stages += ' ';
  }
  EXPECT_EQ(stages, "000111 010101 00110011 ");
  EXPECT_EQ(Parse(R"({"world": 2, "mesh": {"dp": 2}, "axes": ["dp"]})").StageOf(1), 0);
}

TEST(ViewJob, AClientThatEndsWhenItLikesWantsNoNumberOfSteps) {
  JobState job;
  job.step = 9;
  job.spec.mutable_data()->mutable_client();
  job.spec.mutable_train()->set_max_steps(1'000'000'000);
  EXPECT_EQ(ViewJob(job).max_steps(), 0);
  EXPECT_EQ(ViewJob(job).percent(), 0);
  job.spec.mutable_train()->set_max_steps(20);
  EXPECT_EQ(ViewJob(job).max_steps(), 20);
  EXPECT_EQ(ViewJob(job).percent(), 45);
}

}  // namespace
}  // namespace tacc::coordinator
