#include "coordinator/core/job_state.h"

#include "absl/strings/str_join.h"
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
  EXPECT_EQ(ViewJob(job, "").max_steps(), 0);
  EXPECT_EQ(ViewJob(job, "").percent(), 0);
  job.spec.mutable_train()->set_max_steps(20);
  EXPECT_EQ(ViewJob(job, "").max_steps(), 20);
  EXPECT_EQ(ViewJob(job, "").percent(), 45);
}

TEST(ViewJob, SaysWhatOfItsTrafficIsNotEncrypted) {
  const auto unencrypted = [](const std::vector<std::string>& hosts, const std::string& client_host, int64_t gpu_bytes,
                              const std::string& clear_address = "") {
    JobState job;
    job.attempt.emplace();
    for (const std::string& host : hosts) {
      RankState& rank = job.attempt->ranks.emplace_back();
      rank.advertise = host;
      rank.device_memory_used_bytes = gpu_bytes;
      rank.endpoint.set_host(client_host);
    }
    return absl::StrJoin(ViewJob(job, clear_address).unencrypted(), "; ");
  };
  EXPECT_EQ(unencrypted({"127.0.0.1", "127.0.0.1"}, "", 0), "");
  EXPECT_EQ(unencrypted({"127.0.0.1", "127.0.0.1"}, "127.0.0.1", 0), "");
  EXPECT_EQ(unencrypted({"10.0.0.1"}, "", 0), "");
  EXPECT_EQ(unencrypted({"10.0.0.2", "10.0.0.1", "10.0.0.2"}, "", 0),
            "between ranks: not encrypted (Gloo over TCP, at 10.0.0.1, 10.0.0.2)");
  EXPECT_EQ(unencrypted({"10.0.0.1", "10.0.0.1"}, "", 1 << 30),
            "between ranks: not encrypted (NCCL, and Gloo over TCP, at 10.0.0.1)");
  EXPECT_EQ(unencrypted({"10.0.0.1"}, "10.0.0.1", 0),
            "between the job's client and ranks: not encrypted (TCP, at 10.0.0.1)");
  EXPECT_EQ(unencrypted({"a", "b", "c", "d", "e", "f"}, "", 0),
            "between ranks: not encrypted (Gloo over TCP, at a, b, c, d and 2 more)");
  EXPECT_EQ(unencrypted({"10.0.0.1", "10.0.0.2"}, "", 0, "0.0.0.0:7070"),
            "between the coordinator and its workers and clients: not encrypted (gRPC, at 0.0.0.0:7070); "
            "between ranks: not encrypted (Gloo over TCP, at 10.0.0.1, 10.0.0.2)");
  // Its spec has come there, also of one that never ran.
  EXPECT_THAT(ViewJob(JobState(), "10.0.0.1:7070").unencrypted(),
              testing::ElementsAre(
                  "between the coordinator and its workers and clients: not encrypted (gRPC, at 10.0.0.1:7070)"));
}

}  // namespace
}  // namespace tacc::coordinator
