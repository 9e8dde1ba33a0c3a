#include "coordinator/core/start_file.h"

#include <string>

#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tacc::coordinator {
namespace {

std::string Owner(const std::string& dist) {
  JobState job;
  job.id = "a-1";
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString("name: 'a' dist { " + dist + " }", &job.spec));
  return OwnerText(job, "1f6b");
}

TEST(OwnerText, KeepsEveryKindOfSetting) {
  const std::string before = Owner(
      "topology: 'fsdp' topology: 'dp' fsdp { zero_stage: 2 } pins { key: 'b.*' value: '[tp]' } pins { key: 'a' value: "
      "'[-]' }");
  EXPECT_TRUE(ChangedSettings(before, before).empty());
  EXPECT_THAT(
      ChangedSettings(before, Owner("topology: 'dp' topology: 'fsdp' pins { key: 'a' value: '[-]' }")),
      testing::ElementsAre("dist.fsdp.zero_stage 2 -> unset", R"(dist.pins {"a":"[-]","b.*":"[tp]"} -> {"a":"[-]"})",
                           R"(dist.topology ["fsdp","dp"] -> ["dp","fsdp"])"));
}

TEST(StartFile, TellsTheDeviceHowToCompute) {
  JobState job;
  job.attempt.emplace();
  const auto start = [&] { return nlohmann::json::parse(StartFile(job, 0, "0.1.0", "1f6b", 300)); };
  EXPECT_EQ(start()["train"]["deterministic"], false);
  EXPECT_EQ(start()["compute"]["tf32"], false);
  job.spec.mutable_train()->set_deterministic(true);
  EXPECT_EQ(start()["train"]["deterministic"], true);
  EXPECT_EQ(start()["compute"]["tf32"], false);
  job.spec.mutable_compute()->set_tf32(true);
  EXPECT_EQ(start()["compute"]["tf32"], true);
}

TEST(StartFile, TakesTheJobsOptionsByTheirNames) {
  JobState job;
  job.attempt.emplace();
  const auto start = [&] { return nlohmann::json::parse(StartFile(job, 0, "0.1.0", "1f6b", 300)); };
  EXPECT_EQ(start()["train"]["eval_steps"], 500);
  EXPECT_FALSE(start().contains("eval"));
  job.spec.mutable_train()->set_eval_steps(7);
  job.spec.mutable_eval()->set_max_batches(2);
  job.spec.mutable_data()->set_eval_path("/e");
  EXPECT_EQ(start()["train"]["eval_steps"], 7);
  EXPECT_EQ(start()["eval"], nlohmann::json::parse(R"({"max_batches": 2})"));
  EXPECT_EQ(start()["data"]["eval_path"], "/e");
}

TEST(StartFile, TheWeightsOfAGraphAreBesideIt) {
  JobState job;
  job.attempt.emplace();
  job.spec.mutable_model()->set_graph("/models/m/m.graph");
  const auto start = [&] {
    const auto file = nlohmann::json::parse(StartFile(job, 0, "0.1.0", "1f6b", 300));
    return file["weights"].get<std::string>() + " " + file["model_dir"].get<std::string>();
  };
  EXPECT_EQ(start(), "random ");
  job.summary.weights = "pretrained";
  EXPECT_EQ(start(), "pretrained /models/m");
  job.summary.weights = "random";
  EXPECT_EQ(start(), "random ");
  job.spec.mutable_model()->clear_graph();
  job.spec.mutable_model()->set_path("/models/hf");
  EXPECT_EQ(start(), "random /models/hf");
}

TEST(StartFile, AJobKeepsWhoComputesAttention) {
  JobState job;
  job.attempt.emplace();
  const auto start = [&] { return nlohmann::json::parse(StartFile(job, 1, "0.1.0", "1f6b", 300)); };
  EXPECT_FALSE(start().contains("attention"));
  v1::AttentionChoice& choice = job.attention.emplace_back();
  choice.set_shape("bf16[1,8,2,64] of [1,8,2,64]");
  choice.set_backend("flash");
  EXPECT_EQ(start()["attention"], nlohmann::json::parse(R"({"bf16[1,8,2,64] of [1,8,2,64]": "flash"})"));
}

TEST(StartFile, AJobKeepsByWhatItMultiplies) {
  JobState job;
  job.attempt.emplace();
  const auto start = [&] { return nlohmann::json::parse(StartFile(job, 1, "0.1.0", "1f6b", 300)); };
  EXPECT_FALSE(start().contains("products"));
  v1::ProductChoice& choice = job.products.emplace_back();
  choice.set_shape("bf16 [8,4] x [2,4]^T");
  choice.set_algorithm("cublaslt-1:42");
  choice.set_seconds(1e-3);
  v1::ProductChoice makeshift;
  makeshift.set_shape("bf16 [8,4] x [4,9]");
  makeshift.set_algorithm("libtorch");
  makeshift.set_makeshift(true);
  job.products.push_back(makeshift);
  EXPECT_EQ(start()["products"], nlohmann::json::parse(R"({"bf16 [8,4] x [2,4]^T": "cublaslt-1:42"})"));
}

TEST(StartFile, TheFirstRankKnowsWhatItsRecordOfTheRunTakes) {
  JobState job;
  job.spec.set_name("a");
  job.attempt.emplace();
  job.attempt->peak_flops_per_second = 2e11;
  v1::PlanSummary& plan = job.summary.plan;
  plan.set_world(2);
  plan.add_axes("dp");
  plan.add_axes("fsdp");
  (*plan.mutable_mesh())["dp"] = 1;
  (*plan.mutable_mesh())["fsdp"] = 2;
  plan.set_flops_per_step(1e9);
  (*plan.mutable_memory_bytes())["total"] = 1000;
  for (int attempt = 1; attempt <= 25; ++attempt) {
    v1::Restart& restart = job.restarts.emplace_back();
    restart.set_attempt(attempt);
    restart.set_cause(std::string(1000, 'x'));
  }
  const auto start = [&](int rank) { return nlohmann::json::parse(StartFile(job, rank, "0.1.0", "1f6b", 300)); };
  const nlohmann::json run = start(0)["run"];
  EXPECT_EQ(run["name"], "a");
  EXPECT_EQ(run["flops_per_step"], 1e9);
  EXPECT_EQ(run["peak_flops_per_second"], 2e11);
  EXPECT_EQ(run["plan"]["layout"], "2 ranks fsdp=2");
  EXPECT_EQ(run["plan"]["total_bytes"], 1000);
  // A start file stays small.
  EXPECT_EQ(run["restarts"].size(), 20u);
  EXPECT_EQ(run["restarts"].back()["attempt"], 25);
  EXPECT_EQ(run["restarts"].back()["cause"].get<std::string>().size(), 500u);
  EXPECT_FALSE(start(1).contains("run"));
}

TEST(StartFile, TheFolderIsClaimedForTheService) {
  JobState job;
  job.id = "a-1";
  job.attempt.emplace();
  const nlohmann::json checkpoint = nlohmann::json::parse(StartFile(job, 0, "0.1.0", "1f6b", 300))["checkpoint"];
  EXPECT_EQ(checkpoint["claimed"], true);
  EXPECT_EQ(checkpoint["service"], "1f6b");
  EXPECT_EQ(nlohmann::json::parse(OwnerText(job, "1f6b"))["service"], "1f6b");
}

TEST(StartFile, TheFirstRankWritesTheTrace) {
  JobState job;
  job.attempt.emplace();
  const auto start = [&](int rank) { return nlohmann::json::parse(StartFile(job, rank, "0.1.0", "1f6b", 300)); };
  EXPECT_FALSE(start(0).contains("trace"));
  job.spec.mutable_checkpoint()->set_dir("/runs/a");
  job.spec.mutable_train()->set_trace_step(4);
  EXPECT_EQ(start(0)["trace"], nlohmann::json::parse(R"({"path": "/runs/a/trace.json", "step": 4})"));
  EXPECT_FALSE(start(1).contains("trace"));
}

}  // namespace
}  // namespace tacc::coordinator
