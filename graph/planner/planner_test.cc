#include "graph/planner/planner.h"

#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "graph/planner/plan_json.h"
#include "graph/planner/testing/test_request.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using ::testing::HasSubstr;

// What is planned must be.
Planned MustPlan(const PlanRequest& request, const ForwardBuilder& model = TestModel()) {
  static const OpTable& ops = *new OpTable();
  auto planned = PlanCandidates(request, model, ops);
  EXPECT_TRUE(planned.ok()) << planned.status();
  return planned.ok() ? *std::move(planned) : Planned{{Candidate()}, {}, {}, 0, 0};
}

std::string Refusal(const PlanRequest& request) {
  static const OpTable& ops = *new OpTable();
  return std::string(PlanCandidates(request, TestModel(), ops).status().message());
}

void SetWorkers(PlanRequest& plan, int64_t workers) {
  plan.world = workers;
  plan.cluster = *MakeCluster(MachineOf(plan.device), workers);
}

PlanRequest DataParallelOnly() {
  PlanRequest plan = Parse(kRequest).plan;
  plan.sizes[Axis::kPp] = plan.sizes[Axis::kEp] = plan.sizes[Axis::kCp] = plan.sizes[Axis::kTp] = 1;
  return plan;
}

// Axes of size 1 left out.
std::string MeshText(const Layout& layout) {
  const std::string text = layout.ToString();
  return text.substr(0, text.find(','));
}

TEST(Planner, WeighsEveryMesh) {
  const Planned planned = MustPlan(Parse(kRequest).plan);
  std::set<std::string> meshes;
  for (const Candidate& c : planned.candidates) {
    meshes.insert(MeshText(c.layout));
    EXPECT_EQ(c.plan.global_batch(), 8);
    EXPECT_EQ(c.plan.compute_dtype, DType::kBF16);  // twice as fast on this device
    EXPECT_EQ(c.model_flops, planned.candidates[0].model_flops);
    EXPECT_LE(planned.candidates[0].plan.step_seconds, c.plan.step_seconds * (1 + 4 * kKindMustEarn));
  }
  for (const Loser& loser : planned.losers) {
    EXPECT_FALSE(loser.why.empty());
    meshes.insert(MeshText(loser.scored.layout));
  }
  EXPECT_THAT(meshes, ::testing::UnorderedElementsAre("dp=2", "fsdp=2", "tp=2", "pp=2"));
  EXPECT_EQ(planned.num_meshes, 4);
}

TEST(Planner, KeepsCopiesOfWeightsWhereThereIsRoomAndTheyPay) {
  CompileRequest request = Parse(kRequest);
  PlanRequest& plan = request.plan;
  SetWorkers(plan, 1);
  plan.global_batch = plan.micro_batch = 1;
  plan.recompute_units = 0;
  const Planned with = MustPlan(plan);
  const Candidate& kept = with.candidates[0];
  EXPECT_EQ(kept.plan.keeps_copies, 1);
  EXPECT_GE(kept.copies_save_seconds, kCopiesMustEarn * kept.plan.step_seconds);
  EXPECT_NE(with.programs[0].FindState("copies/layers.0.q.weight"), nullptr);
  EXPECT_GT(kept.memory.copies_bytes, 0);
  EXPECT_TRUE(CandidateJson(request, kept)["keeps_copies"]);
  EXPECT_EQ(CandidateJson(request, kept)["memory"]["copies_bytes"], kept.memory.copies_bytes);

  PlanRequest less = plan;
  less.device.memory_bytes = kept.plan.total_bytes - 1;
  const Planned without = MustPlan(less);
  EXPECT_TRUE(without.candidates[0].fits);
  EXPECT_EQ(without.candidates[0].plan.keeps_copies, 0);
  EXPECT_EQ(without.candidates[0].copies_save_seconds, 0);
  EXPECT_EQ(without.programs[0].FindState("copies/layers.0.q.weight"), nullptr);
  EXPECT_GT(without.candidates[0].plan.step_seconds, kept.plan.step_seconds);

  PlanRequest fast = plan;  // that casts take no time of
  fast.device.memory_bytes_per_second = 1e15;
  fast.cluster = *MakeCluster(MachineOf(fast.device), 1);
  EXPECT_EQ(MustPlan(fast).candidates[0].plan.keeps_copies, 0);

  PlanRequest cpu = plan;
  cpu.device.kind = "cpu";
  cpu.cluster = *MakeCluster(MachineOf(cpu.device), 1);
  EXPECT_EQ(MustPlan(cpu).candidates[0].plan.keeps_copies, 0);

  PlanRequest wide = plan;
  wide.bf16 = false;
  EXPECT_EQ(MustPlan(wide).candidates[0].plan.keeps_copies, 0);
}

TEST(Planner, KeepsWhatTheJobSays) {
  PlanRequest plan = Parse(kRequest).plan;
  SetWorkers(plan, 8);
  plan.sizes[Axis::kPp] = 2;
  plan.sizes[Axis::kFsdp] = 2;
  plan.micro_batch = 1;
  plan.recompute_units = 1;
  plan.schedule = PipelineSchedule::kZeroBubble;
  for (const Candidate& c : MustPlan(plan).candidates) {
    EXPECT_EQ(c.layout.sizes[Axis::kPp], 2);
    EXPECT_EQ(c.layout.sizes[Axis::kFsdp], 2);
    EXPECT_EQ(c.plan.micro_batch, 1);
    EXPECT_EQ(c.plan.recompute_units, 1);
    EXPECT_EQ(c.plan.schedule, PipelineSchedule::kZeroBubble);
  }
}

// A step is one micro-batch if losses depend on which samples are together, unless the job says otherwise.
TEST(Planner, KeepsTheSamplesOfBatchNormsTogether) {
  const ForwardBuilder model = [](int64_t batch, int64_t seq_len) -> absl::StatusOr<ForwardModel> {
    constexpr char kNormed[] = R"TEXT(tacc.graph 1
%tokens = input "tokens" : i32[B,S]
%x = cast %tokens dtype=f32 : f32[B,S]
%sums, %squares = channel_sums %x : f64[S], f64[S]
%mean, %variance = batch_moments %sums, %squares extents=[B] : f64[S], f64[S]
%y = channel_affine %x, %variance, %mean : f32[B,S] @norm
%w = param "w" init=ones : f32[S]
%z = mul %y, %w : f32[B,S]
%loss = reduce_sum %z dims=[0,1] : f32[]
%count = constant value=B dtype=f32 shape=[] : f32[]
output "loss" %loss
output "target_tokens" %count
)TEXT";
    ParseOptions parse;
    parse.symbols = {{"B", batch}, {"S", seq_len}};
    TACC_ASSIGN_OR_RETURN(Graph forward, ParseGraph(kNormed, parse));
    return ForwardModel{.forward = std::move(forward), .num_parameters = seq_len};
  };
  PlanRequest plan = DataParallelOnly();
  plan.global_batch = 8;
  for (const Candidate& c : MustPlan(plan, model).candidates) EXPECT_EQ(c.plan.accumulation, 1);
  plan.micro_batch = 2;
  for (const Candidate& c : MustPlan(plan, model).candidates) EXPECT_EQ(c.plan.accumulation, 2);
  SetWorkers(plan, 1);
  plan.micro_batch = 1;
  const OpTable ops;
  EXPECT_EQ(
      PlanCandidates(plan, model, ops).status().message(),
      "the batch norm at the top level has one number a channel in a micro-batch of 1 sample, and so no variance; "
      "use a larger train.per_device_train_batch_size or train.global_batch_size");
  SetWorkers(plan, 2);
  MustPlan(plan, model);
  plan.sync_batchnorm = false;
  EXPECT_EQ(
      PlanCandidates(plan, model, ops).status().message(),
      "the batch norm at the top level has one number a channel in a micro-batch of 1 sample, and so no variance; "
      "use a larger train.per_device_train_batch_size or train.global_batch_size, or compute.sync_batchnorm: true");
}

// As is a step of a loss that the parts of a batch do not add up to. Nothing else is asked for then.
TEST(Planner, KeepsTheSamplesOfALossTogether) {
  const ForwardBuilder model = [](int64_t batch, int64_t seq_len) -> absl::StatusOr<ForwardModel> {
    constexpr char kRoot[] = R"TEXT(tacc.graph 1
%tokens = input "tokens" : i32[B,S]
%x = cast %tokens dtype=f32 : f32[B,S]
%w = param "w" init=ones : f32[S]
%y = mul %x, %w : f32[B,S]
%sum = reduce_sum %y dims=[0,1] : f32[]
%loss = sqrt %sum : f32[]
%count = constant value=B dtype=f32 shape=[] : f32[]
output "loss" %loss splittable=false
output "target_tokens" %count
)TEXT";
    ParseOptions parse;
    parse.symbols = {{"B", batch}, {"S", seq_len}};
    TACC_ASSIGN_OR_RETURN(Graph forward, ParseGraph(kRoot, parse));
    return ForwardModel{.forward = std::move(forward), .num_parameters = seq_len};
  };
  PlanRequest plan = DataParallelOnly();
  plan.global_batch = 64;
  for (const Candidate& c : MustPlan(plan, model).candidates) EXPECT_EQ(c.plan.accumulation, 1);
  plan.micro_batch = 32;
  for (const Candidate& c : MustPlan(plan, model).candidates) EXPECT_EQ(c.plan.accumulation, 1);
  plan.micro_batch = 4;
  const OpTable ops;
  EXPECT_THAT(PlanCandidates(plan, model, ops).status().message(),
              HasSubstr("train.per_device_train_batch_size = 4 splits a step of 64 samples into several micro-batches, "
                        "but the model's loss is no mean over samples or targets"));
  plan.micro_batch.reset();
  plan.num_micro_batches = 2;
  EXPECT_THAT(PlanCandidates(plan, model, ops).status().message(), HasSubstr("dist.pp.num_micro_batches = 2 splits"));
}

TEST(Planner, NamesTheNearestLegalSizes) {
  PlanRequest plan = DataParallelOnly();
  plan.global_batch = 7;
  EXPECT_EQ(Refusal(plan), "train.global_batch_size = 7 does not divide over 2 workers; nearest legal values: 6 and 8");
  plan.global_batch = 8;
  plan.micro_batch = 3;
  EXPECT_EQ(Refusal(plan),
            "train.per_device_train_batch_size = 3 does not divide the 4 samples of a worker (global_batch_size 8 over "
            "2 workers); nearest legal values: 2 and 4");
  plan.micro_batch = 2;
  plan.num_micro_batches = 4;
  EXPECT_EQ(
      Refusal(plan),
      "dist.pp.num_micro_batches = 4 do not divide the 4 samples of a worker (global_batch_size 8 over 2 workers, "
      "train.per_device_train_batch_size 2); nearest legal values: 2");
  plan.micro_batch = 4;
  plan.num_micro_batches.reset();
  plan.sizes[Axis::kFsdp] = 3;
  EXPECT_EQ(Refusal(plan), "dist.fsdp.size = 3 does not divide the 2 workers; nearest legal values: 2");
  plan.sizes[Axis::kFsdp] = plan.sizes[Axis::kDp] = 2;
  EXPECT_THAT(Refusal(plan), HasSubstr("dist.dp.size 2 x dist.fsdp.size 2 x dist.ep.size 1 x dist.cp.size 1 x "
                                       "dist.tp.size 1 = 4 does not divide the 2 workers; the product may be 1, 2"));
  // What no data parallelism can deal out, another layout can.
  plan = Parse(kRequest).plan;
  plan.global_batch = 7;
  EXPECT_EQ(MustPlan(plan).candidates[0].plan.num_data_ranks(), 1);
}

TEST(Planner, CutsTensorParallelismByTheModelsHeads) {
  PlanRequest plan = Parse(kRequest).plan;
  SetWorkers(plan, 8);
  plan.sizes[Axis::kTp] = 4;
  plan.sizes[Axis::kPp] = 1;
  for (const Candidate& c : MustPlan(plan).candidates) {
    // 4 heads and 2 kv heads: each kv head is held by two ranks.
    EXPECT_THAT(c.plan.mesh.ToString(), testing::AnyOf("dp=2 fsdp=1 tp=2 tpq=2", "dp=1 fsdp=2 tp=2 tpq=2"));
    EXPECT_EQ(c.plan.global_batch(), 8);
  }
  plan.sizes[Axis::kTp] = 8;
  EXPECT_EQ(Refusal(plan), "dist.tp.size = 8 does not divide the model's 4 heads and 2 kv heads; use 1, 2, 4");
  plan.sizes[Axis::kTp] = 3;
  EXPECT_EQ(Refusal(plan), "dist.tp.size = 3 does not divide the 8 workers; nearest legal values: 2 and 4");
}

TEST(Planner, OrdersTheAxesAsTheJobSays) {
  const OpTable ops;
  PlanRequest plan =
      Parse(Replaced(kRequest, "\"dist\": {", "\"dist\": {\"topology\": [\"tp\", \"fsdp\", \"pp\"], ")).plan;
  EXPECT_EQ(plan.topology, (std::vector<std::string>{"tp", "fsdp", "pp"}));
  SetWorkers(plan, 16);
  plan.sizes[Axis::kTp] = 4;
  plan.sizes[Axis::kPp] = 2;
  const Planned planned = MustPlan(plan);
  // dp, which is not named, is 1; tp stands for its parts.
  for (const Candidate& c : planned.candidates) EXPECT_EQ(c.plan.mesh.ToString(), "dp=1 tp=2 tpq=2 fsdp=2 pp=2");
  EXPECT_EQ(CandidateJson(Parse(kRequest), planned.candidates[0])["axes"].dump(),
            "[\"dp\",\"tp\",\"tpq\",\"fsdp\",\"pp\"]");
  // The job leaves most axes open, its order few.
  PlanRequest open = plan;
  open.sizes[Axis::kTp] = open.sizes[Axis::kPp] = std::nullopt;
  open.topology = {"tp", "fsdp"};
  for (const Candidate& c : MustPlan(open).candidates) {
    EXPECT_EQ(
        c.layout.sizes[Axis::kDp] * c.layout.sizes[Axis::kPp] * c.layout.sizes[Axis::kCp] * c.layout.sizes[Axis::kEp],
        1)
        << c.plan.mesh.ToString();
  }
  plan.topology = {"pp", "fsdp"};
  EXPECT_EQ(PlanCandidates(plan, TestModel(), ops).status().message(),
            "dist.topology leaves out tp, which splits 2 ways; name all axes that are split, from between nodes to "
            "inside a node; unless said otherwise they lie as pp, dp, fsdp, ep, cp, tp");
  plan.topology = {"pp", "x"};
  EXPECT_EQ(PlanCandidates(plan, TestModel(), ops).status().message(),
            "dist.topology: 'x' is no axis; there are pp, dp, fsdp, ep, cp, tp");
}

TEST(Planner, PinsWhatTheJobPins) {
  const OpTable ops;
  const std::string text =
      Replaced(kRequest, "\"dist\": {", "\"dist\": {\"pins\": {\"layers.*.mlp\": \"[dp, -, tp]\"}, ");
  PlanRequest plan = Parse(text).plan;
  EXPECT_EQ(plan.pins, (Pins{{"layers.*.mlp", "[dp, -, tp]"}}));
  plan.sizes[Axis::kTp] = 2;
  const auto pinned = PlanCandidates(plan, TestModel(), ops);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  plan.pins.clear();
  const auto free = PlanCandidates(plan, TestModel(), ops);
  ASSERT_TRUE(free.ok()) << free.status();
  EXPECT_NE(pinned->candidates[0].cost.num_collectives, free->candidates[0].cost.num_collectives);
  // A deep model is not put together from a few of its layers: it is these that are pinned.
  plan.pins = {{"layers.15.mlp", "[dp, -, tp]"}};
  EXPECT_TRUE(PlanCandidates(plan, TestModel(16), ops).ok());
  plan.pins = {{"layers.*.mlp", "[dp, tp]"}};
  EXPECT_EQ(PlanCandidates(plan, TestModel(), ops).status().message(),
            "dist.pins: \"layers.*.mlp\": it has 2 dims, but results of layers.0.mlp have 3");
  EXPECT_EQ(ParseCompileRequest(Replaced(text, "\"[dp, -, tp]\"", "3")).status().message(),
            "compile request: job.dist.pins has a wrong type: {\"layers.*.mlp\":3}");
}

TEST(Planner, PredictsWithTheAttentionThatWasMeasured) {
  const auto predict = [](const std::string& measured) {
    return MustPlan(
               Parse(Replaced(kRequest, "\"device\": {", absl::StrCat("\"device\": {\"kind\": \"cuda\", ", measured)))
                   .plan)
        .candidates[0]
        .plan.step_seconds;
  };
  EXPECT_GT(predict(R"("attention_flops_per_second": {"tiles": 1e6}, )"), 2 * predict(""));
}

// What lost by estimate lost without the pins.
TEST(Planner, SaysThatEstimatesLeaveOutPins) {
  PlanRequest plan = Parse(kRequest).plan;
  SetWorkers(plan, 8);
  for (const Pins& pins : {Pins(), Pins{{"layers.*.mlp", "[dp, -, tp]"}}}) {
    plan.pins = pins;
    const Planned planned = MustPlan(plan);
    EXPECT_FALSE(planned.losers.empty());
    for (const Loser& loser : planned.losers)
      EXPECT_EQ(loser.why.find(" (estimated without dist.pins)") == std::string::npos, pins.empty()) << loser.why;
  }
}

TEST(Planner, CutsTheSequence) {
  PlanRequest plan = Parse(kRequest).plan;
  SetWorkers(plan, 6);
  plan.sizes[Axis::kCp] = 3;
  plan.sizes[Axis::kPp] = plan.sizes[Axis::kTp] = 1;
  for (const Candidate& c : MustPlan(plan).candidates) {
    EXPECT_THAT(c.plan.mesh.ToString(), testing::AnyOf("dp=2 fsdp=1 cp=3", "dp=1 fsdp=2 cp=3"));
    EXPECT_EQ(c.plan.global_batch(), 8);
  }
  SetWorkers(plan, 2);
  plan.sizes[Axis::kCp] = plan.sp = 2;
  EXPECT_EQ(MustPlan(plan).candidates[0].plan.mesh.ToString(), "dp=1 fsdp=1 sp=2");
  plan.sp = 1;
  EXPECT_EQ(Refusal(plan),
            "dist.cp.size = 2 with dist.sp.size = 1 does not fit a sequence of 6 tokens, 4 heads and 2 kv heads; "
            "dist.sp.size must divide dist.cp.size and the heads, and data.seq_len be a multiple of 2 x dist.cp.size; "
            "dist.sp.size may be 2");
  plan.sizes[Axis::kCp] = 4;
  // 2 divides them, but not the sequence.
  EXPECT_EQ(Refusal(plan), "dist.cp.size = 4 does not divide the 2 workers; nearest legal values: 1");
}

// What a candidate says of itself, put into the job, gives the candidate.
TEST(Planner, SettingsReproduceACandidate) {
  const nlohmann::json request = nlohmann::json::parse(kRequest);
  for (const int world : {1, 2, 4}) {
    nlohmann::json open = request;
    open["world"] = world;
    const CompileRequest asked = Parse(open.dump());
    const Planned planned = MustPlan(asked.plan);
    ASSERT_GE(planned.candidates.size(), world == 1 ? 1u : 2u);
    for (const Candidate& candidate : planned.candidates) {
      nlohmann::json pasted = open;
      pasted["job"].merge_patch(CandidateJson(asked, candidate)["settings"]);
      nlohmann::json& schedule = pasted["job"]["dist"]["pp"];
      if (schedule.is_object() && schedule.contains("schedule"))  // as protobuf writes it
        schedule["schedule"] = "PIPELINE_SCHEDULE_" + absl::AsciiStrToUpper(schedule["schedule"].get<std::string>());
      EXPECT_EQ(MustPlan(Parse(pasted.dump()).plan).candidates[0].layout.ToString(), candidate.layout.ToString())
          << pasted["job"].dump();
    }
  }
}

// The least memory of a rank with which some layout runs: with a little more than that the planner must find one.
TEST(Planner, FindsWhatFitsWhenMemoryIsShort) {
  PlanRequest plan = Parse(kRequest).plan;
  plan.global_batch = 64;
  plan.bf16 = false;
  plan.sizes[Axis::kFsdp] = 2;  // with staging of collectives, which is more than all of this model
  const Planned rich = MustPlan(plan);
  plan.device.memory_bytes = 1;  // nothing fits; the smallest comes first
  const int64_t least = MustPlan(plan).candidates[0].plan.total_bytes;
  ASSERT_LT(least, rich.candidates[0].plan.total_bytes);
  plan.device.memory_bytes = least + 64;
  const Planned poor = MustPlan(plan);
  EXPECT_TRUE(poor.candidates[0].fits);
  EXPECT_GT(poor.candidates[0].plan.recompute_units, 0);
}

}  // namespace
}  // namespace tacc::graph
