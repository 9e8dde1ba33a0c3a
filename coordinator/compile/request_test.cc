#include "coordinator/compile/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/compile/instructions.h"
#include "nlohmann/json.hpp"

namespace tacc::coordinator {
namespace {

constexpr char kProgram[] = R"program(tacc.program 1 planned
mesh dp=1 fsdp=2
stage 0 of 1
arena bytes=4096 workspace=0
state "weights/fc.weight" : f32[64,256] of f32[128,256] shard=[fsdp,-] kind=weight init="normal(0.02)" stored=[128,256] at=0
graph forward_backward {
  %w.1 = read "weights/fc.weight" : f32[64,256] of f32[128,256] shard=[fsdp,-] at=0 @fc
}
graph eval {
  %e.1 = read "weights/fc.weight" : f32[64,256] of f32[128,256] shard=[fsdp,-] at=0 @fc
}
step {
  call forward_backward micro_batch=0
}
eval {
  call eval micro_batch=0
}
)program";

v1::JobSpec Spec() {
  v1::JobSpec spec;
  spec.set_name("toy");
  spec.mutable_model()->set_path("/m");
  spec.mutable_train()->set_max_steps(7);
  return spec;
}

TEST(CompileRequestTest, KeepsThePrecisionOfEarlierAttempts) {
  v1::JobSpec spec = Spec();
  EXPECT_FALSE(InPrecision(spec, "", "").compute().has_bf16());
  EXPECT_TRUE(InPrecision(spec, "bf16", "f32").compute().bf16());
  const v1::JobSpec f32 = InPrecision(spec, "f32", "f32");
  EXPECT_TRUE(f32.compute().has_bf16() && !f32.compute().bf16());
  spec.mutable_compute()->set_tf32(true);
  EXPECT_FALSE(InPrecision(spec, "tf32", "f32").compute().has_bf16());
  spec.mutable_compute()->set_tf32(false);
  spec.mutable_compute()->set_bf16(false);
  EXPECT_FALSE(InPrecision(spec, "bf16", "f32").compute().bf16());
}

TEST(CompileRequestTest, KeepsTheResidualTypeThatThePlannerTook) {
  v1::JobSpec spec = Spec();
  EXPECT_EQ(InPrecision(spec, "bf16", "bf16").compute().residual_dtype(), v1::RESIDUAL_DTYPE_FLOAT32);
  spec.mutable_compute()->set_residual_dtype(v1::RESIDUAL_DTYPE_AUTO);
  EXPECT_EQ(InPrecision(spec, "", "").compute().residual_dtype(), v1::RESIDUAL_DTYPE_AUTO);
  EXPECT_EQ(InPrecision(spec, "bf16", "bf16").compute().residual_dtype(), v1::RESIDUAL_DTYPE_BFLOAT16);
  EXPECT_EQ(InPrecision(spec, "bf16", "f32").compute().residual_dtype(), v1::RESIDUAL_DTYPE_FLOAT32);
}

TEST(CompileRequestTest, FillsInDefaultsAndTheLengthOfTheData) {
  v1::DeviceProfile device;
  device.set_kind("cpu");
  device.set_memory_bytes(int64_t{8} << 30);
  device.set_devices_per_machine(2);
  (*device.mutable_matmul_flops_per_second())["bf16"] = 2.5e11;
  auto text = CompileRequest(Spec(), {2, device}, R"({"vocab_size": 100, "seq_len": 64})");
  ASSERT_TRUE(text.ok()) << text.status();
  const auto request = nlohmann::json::parse(*text);
  EXPECT_EQ(request["world"], 2);
  EXPECT_EQ(request["job"]["train"]["max_steps"], 7);
  EXPECT_EQ(request["job"]["train"]["adam_beta2"], 0.999);
  EXPECT_EQ(request["job"]["data"]["seq_len"], 64);
  EXPECT_EQ(request["device"]["memory_bytes"], int64_t{8} << 30);
  EXPECT_EQ(request["device"]["matmul_flops_per_second"]["bf16"], 2.5e11);
  EXPECT_EQ(request["data"]["vocab_size"], 100);
  EXPECT_EQ(request["device"]["devices_per_machine"], 2);
  EXPECT_EQ(request["device"]["multiplies_bf16"], false);
  EXPECT_FALSE(request["device"].contains("attention_flops_per_second"));
  device.set_kind("cuda");
  device.set_matmul_fraction(0.9);
  (*device.mutable_attention_flops_per_second())["flash"] = 4e14;
  device.set_devices_per_machine(8);
  (*device.mutable_peak_flops_per_second())["bf16"] = 989e12;
  const auto gpu = nlohmann::json::parse(*CompileRequest(Spec(), {2, device}, "{}"))["device"];
  EXPECT_EQ(gpu["matmul_fraction"], 0.9);
  EXPECT_EQ(gpu["attention_flops_per_second"]["flash"], 4e14);
  EXPECT_EQ(gpu["devices_per_machine"], 8);
  EXPECT_FALSE(gpu.contains("multiplies_bf16"));
  EXPECT_EQ(gpu["peak_flops_per_second"]["bf16"], 989e12);
  EXPECT_EQ(gpu["matmul_flops_per_second"]["bf16"], 2.5e11);
  auto open = CompileRequest(Spec(), {0, device}, "{}");
  ASSERT_TRUE(open.ok());
  EXPECT_FALSE(nlohmann::json::parse(*open).contains("world"));
  EXPECT_FALSE(CompileRequest(Spec(), {2, device}, "not JSON").ok());
}

TEST(CompileRequest, ForAClusterThatNeedNotBeHere) {
  v1::JobSpec spec = Spec();
  spec.mutable_resources()->set_workers(2);
  spec.mutable_data()->set_seq_len(32);
  const auto text = CompileRequest(spec, {0, {}, R"({"machine": "h100", "gpus": 16})"}, "");
  ASSERT_TRUE(text.ok()) << text.status();
  const auto request = nlohmann::json::parse(*text);
  EXPECT_EQ(request["cluster"], (nlohmann::json{{"machine", "h100"}, {"gpus", 16}}));
  EXPECT_FALSE(request.contains("device") || request.contains("world") || request.contains("data")) << *text;
  EXPECT_FALSE(request["job"].contains("resources"));
  EXPECT_EQ(request["job"]["model"]["weights"], "WEIGHTS_RANDOM");
  EXPECT_THAT(std::string(CompileRequest(spec, {0, {}, "[]"}, "").status().message()),
              ::testing::HasSubstr("cluster is no JSON object"));
}

TEST(CompileRequest, TakesNoClusterThatIsDeepOrLong) {
  v1::JobSpec spec = Spec();
  spec.mutable_data()->set_seq_len(32);
  const auto error = [&](const std::string& cluster) {
    return std::string(CompileRequest(spec, {0, {}, cluster}, "").status().message());
  };
  EXPECT_EQ(error(R"({"machine": "h100", "gpus": [8]})"), "cluster: gpus is a list; wanted a number or a name");
  EXPECT_EQ(error(R"({"machine": {}})"), "cluster: machine is an object; wanted a number or a name");
  const std::string deep(1000, '['), end(1000, ']');
  EXPECT_THAT(error(R"({"gpus": )" + deep + end + "}"), ::testing::StartsWith("cluster is no JSON object; "));
  const std::string deeper(1 << 20, '['), deeper_end(1 << 20, ']');
  EXPECT_EQ(error(R"({"gpus": )" + deeper + deeper_end + "}"),
            "cluster has 2097162 bytes; give a JSON object of at most 65536");
}

TEST(IdentityTest, DependsOnLogicalShapesAndNotOnTheLayout) {
  const std::string summary = R"({"seq_len": 64, "global_batch_size": 8})";
  const std::string data = R"({"num_tokens": 1000, "fingerprint": "ab"})";
  auto two = Identity(Spec(), {summary, data, "", "", {kProgram}});
  ASSERT_TRUE(two.ok()) << two.status();
  std::string whole = kProgram;
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"fsdp=2", "fsdp=1"},
                                 {"f32[64,256] of", "f32[128,256] of"},
                                 {"[fsdp,-]", "[-,-]"}}) {
    for (size_t at = whole.find(from); at != std::string::npos; at = whole.find(from, at + to.size()))
      whole.replace(at, from.size(), to);
  }
  auto one = Identity(Spec(), {summary, data, "", "", {whole}});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(*one, *two);
  const auto identity = nlohmann::json::parse(*one);
  EXPECT_EQ(identity["data"], "1000 tokens, ab");
  EXPECT_EQ(identity["seed"], 42);
  EXPECT_EQ(identity["model_path"], Spec().model().path());
  EXPECT_EQ(identity["data_path"], Spec().data().path());
  EXPECT_THAT(identity["model"].get<std::string>(), ::testing::StartsWith("32768 parameters, shapes "));
  std::string renamed = whole;
  for (size_t at = renamed.find("fc.weight"); at != std::string::npos; at = renamed.find("fc.weight", at + 1))
    renamed.replace(at, 2, "gc");
  // Stages of a pipeline, with a weight that both have.
  EXPECT_EQ(*Identity(Spec(), {summary, data, "", "", {whole, whole}}), *one);
  EXPECT_NE(*Identity(Spec(), {summary, data, "", "", {renamed}}), *one);
}

// Where training begins is part of what it is.
TEST(IdentityTest, TellsInitialWeightsApart) {
  const auto weights = [](v1::Weights from, const std::string& fingerprint, const std::string& program) {
    v1::JobSpec spec = Spec();
    spec.mutable_model()->set_weights(from);
    const auto identity = Identity(spec, {"{}", "{}", fingerprint, "", {program}});
    EXPECT_TRUE(identity.ok()) << identity.status();
    return nlohmann::json::parse(*identity)["weights"].get<std::string>();
  };
  const std::string random = weights(v1::WEIGHTS_RANDOM, "", kProgram);
  std::string wider = kProgram;
  const size_t at = wider.find("normal(0.02)");
  ASSERT_NE(at, std::string::npos);
  wider.replace(at, 12, "normal(0.05)");
  EXPECT_NE(weights(v1::WEIGHTS_RANDOM, "", wider), random);
  const auto of_folder = Identity(Spec(), {R"({"architecture": "LlamaForCausalLM", "config": {"norm_eps": "1e-05"},
                                               "config_keys": {"norm_eps": "rms_norm_eps"}})",
                                           "{}",
                                           "",
                                           "{\n \"rms_norm_eps\": 1e-5}\n",
                                           {kProgram}});
  const auto identity = nlohmann::json::parse(*of_folder);
  EXPECT_EQ(identity["architecture"], "LlamaForCausalLM");
  EXPECT_EQ(identity["config"], nlohmann::json({{"norm_eps", "1e-05"}}));
  EXPECT_EQ(identity["config_keys"], nlohmann::json({{"norm_eps", "rms_norm_eps"}}));
  EXPECT_EQ(identity["config_json"], "{\n \"rms_norm_eps\": 1e-5}\n");
  EXPECT_EQ(weights(v1::WEIGHTS_PRETRAINED, "2 tensors, 16 bytes, ab", kProgram),
            "pretrained, 2 tensors, 16 bytes, ab");
  // Where a graph's come from, compiling has found.
  v1::JobSpec graph = Spec();
  graph.mutable_model()->clear_path();
  graph.mutable_model()->set_graph("/models/m/m.graph");
  const auto of_graph = [&graph](const char* summary) {
    const auto identity = Identity(graph, {summary, "{}", "2 tensors, 16 bytes, ab", "", {kProgram}});
    return nlohmann::json::parse(*identity)["weights"].get<std::string>();
  };
  EXPECT_EQ(of_graph(R"({"weights": "pretrained"})"), "pretrained, 2 tensors, 16 bytes, ab");
  EXPECT_EQ(of_graph(R"({"weights": "random"})"), random);
  EXPECT_EQ(of_graph("{}"), random);
  // Nothing of it is used.
  EXPECT_EQ(weights(v1::WEIGHTS_PRETRAINED, "2 tensors, 16 bytes, ab", wider), "pretrained, 2 tensors, 16 bytes, ab");
}

TEST(DescribeNodeTest, NamesOpValueGraphAndModule) {
  EXPECT_EQ(DescribeNode(kProgram, 0, 0), "read %w.1 in forward_backward (fc)");
  EXPECT_EQ(DescribeNode(kProgram, 1, 0), "read %e.1 in eval (fc)");
  EXPECT_EQ(DescribeNode(kProgram, 0, 99), "call 0 node 99");
  EXPECT_EQ(DescribeNode(kProgram, -1, 0), "call -1 node 0");
  EXPECT_EQ(DescribeNode("garbage", 1, 2), "call 1 node 2");
}

}  // namespace
}  // namespace tacc::coordinator
