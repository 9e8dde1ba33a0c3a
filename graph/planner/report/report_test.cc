#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "graph/ir/text.h"
#include "graph/passes/testing/test_model.h"
#include "graph/planner/report/explain.h"
#include "graph/planner/report/explain_layout.h"
#include "graph/planner/report/html.h"
#include "graph/planner/report/timeline.h"
#include "graph/planner/report/trace_page.h"
#include "graph/planner/report/words.h"
#include "graph/planner/simulate/trace.h"
#include "graph/planner/testing/test_request.h"
#include "graph/trace/step_trace.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The test model on H100, and the best plan for it.
class PlannedTest : public ::testing::Test {
 protected:
  void MakeBest(const Machine& machine, int64_t gpus, const std::string& text) {
    const ForwardBuilder model = [&text](int64_t batch, int64_t seq_len) -> absl::StatusOr<ForwardModel> {
      ParseOptions options;
      options.symbols = {{"B", batch}, {"S", seq_len}};
      auto graph = ParseGraph(text, options);
      if (!graph.ok()) return graph.status();
      return ForwardModel{*std::move(graph), {"layers.0", "layers.1"}, "", 600};
    };
    request_.world = gpus;
    request_.seq_len = 6;
    request_.training.max_steps = 1000;
    request_.cluster = *MakeCluster(machine, gpus);
    request_.device = ProfileOf(request_.cluster.machine);
    auto planned = PlanCandidates(request_, model, ops_);
    ASSERT_TRUE(planned.ok()) << planned.status();
    planned_ = *std::move(planned);
    auto best = MakeFinalist(request_, planned_.candidates[0], planned_.programs, ops_);
    ASSERT_TRUE(best.ok()) << best.status();
    best_ = *std::move(best);
  }

  std::string MustExplain(const std::string& name) {
    const auto text = Explain(best_, ops_, name);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.value_or("");
  }

  const OpTable ops_;
  PlanRequest request_;
  Planned planned_;
  Finalist best_;
};

// On two nodes of eight, fsdp inside a node.
class ReportTest : public PlannedTest {
 protected:
  void SetUp() override {
    request_.sizes[Axis::kDp] = 2;
    request_.sizes[Axis::kFsdp] = 8;
    request_.zero_stage = 3;
    request_.global_batch = 64;
    ASSERT_NO_FATAL_FAILURE(MakeBest(*FindMachine("h100"), 16, TestModelText()));
    ASSERT_GT(planned_.candidates.size(), 1u);
  }
};

// A stage of two on each of two nodes; the head has the embedding's weight. Four micro-batches.
class PipelineReportTest : public PlannedTest {
 protected:
  void SetUp() override {
    request_.sizes[Axis::kPp] = request_.sizes[Axis::kFsdp] = 2;
    request_.zero_stage = 3;
    request_.global_batch = 8;
    request_.micro_batch = 1;
    request_.schedule = PipelineSchedule::k1F1B;
    request_.recompute_units = 0;
    Machine machine = *FindMachine("h100");
    machine.devices_per_node = 2;
    const std::string tied = absl::StrReplaceAll(
        TestModelText(), {{"%wh = param \"head.weight\" axes=[vocab,embed] init=\"normal(0.5)\" : f32[13,8]\n", ""},
                          {", %wh spec", ", %table spec"}});
    ASSERT_NO_FATAL_FAILURE(MakeBest(machine, 4, tied));
    ASSERT_EQ(best_.stages.size(), 2u);
  }
};

TEST_F(ReportTest, SaysWhatTheJobWillDo) {
  const std::vector<std::string> words = InWords(best_, 1000);
  ASSERT_EQ(words.size(), 5u);
  EXPECT_THAT(words[0], AllOf(HasSubstr("The job trains 600 parameters in bf16 on 2 nodes of 8 NVIDIA H100"),
                              HasSubstr("64 samples of 6 tokens: 4 samples on each GPU at a time.")));
  const double seconds = best_.simulation.step_seconds;
  EXPECT_THAT(words[1],
              HasSubstr("A step takes " + SecondsText(seconds) + " (" +
                        RangeText(SecondsText(0.938 * seconds), SecondsText(1.111 * seconds)) + ") by simulation: "));
  EXPECT_THAT(words[1], HasSubstr("no run of tacc on a GPU is among them"));
  EXPECT_THAT(words[1], AllOf(HasSubstr("A step takes "), HasSubstr("(MFU). 1,000 steps are 384 thousand tokens")));
  EXPECT_THAT(words[2], AllOf(HasSubstr("dp=2: the job runs 2 times over"), HasSubstr("(across 2 nodes)"),
                              HasSubstr("fsdp=8: 8 GPUs share one copy"), HasSubstr("(inside a node)")));
  EXPECT_THAT(words[3], HasSubstr("of its 80.0 GiB"));
  int64_t bytes = 0;
  for (const MemoryKind& kind : MemoryKinds(best_.candidate)) {
    bytes += kind.bytes;
    EXPECT_GE(kind.bytes, 0) << kind.name;
  }
  EXPECT_EQ(bytes, best_.candidate.plan.total_bytes);
  EXPECT_THAT(words[4], HasSubstr("nothing hides"));
}

TEST_F(ReportTest, SaysWhatCopiesOfWeightsTakeAndSave) {
  best_.candidate.plan.keeps_copies = 1;
  best_.candidate.memory.copies_bytes = int64_t{3} << 30;
  best_.candidate.copies_save_seconds = 0.0042;
  EXPECT_THAT(InWords(best_, 1000)[3], HasSubstr(" Of the weights 3.0 GiB are copies in bf16, written by the update: "
                                                 "that nothing is cast where it is used saves 4.2 ms a step."));
}

TEST_F(ReportTest, SaysWhyALoserLost) {
  const Candidate& best = planned_.candidates[0];
  Candidate slow = best;
  slow.plan.step_seconds = best.plan.step_seconds * 1.25;
  slow.times.exposed_seconds += best.plan.step_seconds * 0.2;
  slow.times.compute_seconds += best.plan.step_seconds * 0.05;
  EXPECT_THAT(
      WhyLost(best, slow, 0),
      AllOf(HasSubstr("25 % slower: +"), HasSubstr(" communication that nothing hides, +"), HasSubstr(" computation")));
  Candidate large = best;
  large.fits = false;
  large.plan.total_bytes = int64_t{90} << 30;
  large.memory.optimizer_bytes = int64_t{60} << 30;
  EXPECT_EQ(WhyLost(best, large, int64_t{80} << 30),
            "does not fit: needs 90.0 GiB of 80.0 GiB, most for optimizer (60.0 GiB)");
}

TEST_F(ReportTest, RowsSumToTheSimulation) {
  const StageTimes& times = best_.simulation.stages[0];
  double compute = 0, communication = 0, exposed = 0;
  for (const ComputeRow& row : ComputeOf(best_, 0, ops_)) compute += row.seconds;
  EXPECT_NEAR(compute + times.contention_seconds, times.compute_seconds, 1e-9 * times.compute_seconds);
  bool weights = false, gradients = false;
  for (const CommunicationRow& row : CommunicationOf(best_, 0)) {
    communication += row.seconds;
    exposed += row.exposed;
    weights |= row.cargo == Cargo::kWeights && row.op == "all_gather" && row.axes == "fsdp";
    gradients |= row.cargo == Cargo::kGradients && row.op == "reduce_scatter" && row.axes == "fsdp";
  }
  EXPECT_TRUE(weights);
  EXPECT_TRUE(gradients);
  EXPECT_GE(communication, times.communication_seconds * (1 - 1e-9));
  EXPECT_GE(exposed, times.exposed_seconds * (1 - 1e-9));
}

TEST_F(ReportTest, ExplainsAParameter) {
  const std::string text = MustExplain("embed.weight");
  EXPECT_THAT(text, AllOf(HasSubstr("weights/embed.weight: weight, f32[13,8], 416 B in all"),
                          HasSubstr("its first 2 dims are cut as one of 104\n"),
                          HasSubstr("split over fsdp (8): rank 0 has [0, 13), the last rank [91, 104)"),
                          HasSubstr("fsdp (8) cuts it so that shards lie one behind the other"),
                          HasSubstr("rests alike on the ranks along dp (2)")));
  EXPECT_EQ(MustExplain("weights/embed.weight"), text);
  EXPECT_THAT(MustExplain("layers.1.q.weight"),
              AllOf(HasSubstr("rests with dim"), HasSubstr("moved by %"), HasSubstr("used by %")));
  ASSERT_EQ(best_.candidate.plan.keeps_copies, 1);
  EXPECT_THAT(MustExplain("layers.1.q.weight"),
              HasSubstr("copies/layers.1.q.weight: copy, bf16[4,2,8], 128 B in all, 16 B on a rank\n  written by the "
                        "update beside the weight, so that it is not cast where it is used\n  its first 2 dims are cut "
                        "as one of 8\n  rests with dim"));
}

TEST_F(ReportTest, ExplainsACollective) {
  EXPECT_THAT(MustExplain("all_gather"),
              AllOf(HasSubstr("all_gather of weights over fsdp: "), HasSubstr("a rank sends "), HasSubstr("why: %"),
                    HasSubstr("who: 2 groups of 8 ranks; the first is 0 1 2 3 4 5 6 7; inside a node"),
                    HasSubstr("so its other operands must be whole there")));
  EXPECT_THAT(MustExplain("reduce_scatter"), AllOf(HasSubstr("sums over dim 0 of %"), HasSubstr("which fsdp splits"),
                                                   HasSubstr("then: each rank has its part of the sum")));
  const std::string all_reduce = MustExplain("all_reduce");
  EXPECT_THAT(all_reduce, AllOf(HasSubstr("8 groups of 2 ranks; the first is 0 8; across 2 nodes"),
                                HasSubstr("then: every rank has the sum")));
}

TEST_F(ReportTest, ExplainsAValue) {
  std::string name;  // of attention's result
  for (const Node& node : best_.stages[0].graphs[0].nodes) {
    if (node.op == "attention_joined") name = best_.stages[0].graphs[0].values[node.results[0]].name;
  }
  ASSERT_FALSE(name.empty());
  EXPECT_THAT(MustExplain("%" + name), AllOf(HasSubstr("= attention"), HasSubstr("split over dp (2) and fsdp (8)"),
                                             HasSubstr("why: dim 0 goes with dim 0 of %")));
}

TEST_F(ReportTest, AnUnknownNameIsAnErrorWithTheNearest) {
  EXPECT_THAT(std::string(Explain(best_, ops_, "embed.wieght").status().message()),
              AllOf(HasSubstr("is called so; nearest: "), HasSubstr("embed.weight")));
  EXPECT_THAT(std::string(Explain(best_, ops_, ".weight").status().message()),
              AllOf(HasSubstr("states end so: weights/embed.weight"), HasSubstr("give more of the name")));
}

TEST_F(PipelineReportTest, ExplainsWhereAStateLies) {
  EXPECT_THAT(MustExplain("layers.1.q.weight"),
              AllOf(HasSubstr("split over fsdp (2): a stage's first rank has [0, 2), its last [2, 4)"),
                    HasSubstr("\n  on stage 1 of 2\n"), HasSubstr(" in forward.0 of stage 1"),
                    HasSubstr(" in backward.0 of stage 1"), Not(HasSubstr("pp (2)")), Not(HasSubstr("of stage 0"))));
  EXPECT_THAT(MustExplain("embed.weight"),
              AllOf(HasSubstr("on stages 0 and 1 of 2, which all use it: each sums its own part of the gradient"),
                    HasSubstr(" in forward.0 of stage 0"), HasSubstr(" in forward.0 of stage 1")));
}

TEST_F(PipelineReportTest, ExplainsAStash) {
  std::string sent;
  for (const Node& node : best_.stages[0].FindGraph("forward.0")->nodes) {
    if (node.op == Op::kSend) sent = node.symbol;
  }
  ASSERT_FALSE(sent.empty());
  const State* there = best_.stages[1].FindState(sent);
  ASSERT_NE(there, nullptr);
  EXPECT_THAT(MustExplain(sent),
              AllOf(HasSubstr(sent + ": stash, "), HasSubstr("of the micro-batches under way: "),
                    HasSubstr(" on stage 0, " + std::to_string(there->slots) + " cop"),
                    HasSubstr("moved by send in forward.0 of stage 0"),
                    HasSubstr("moved by recv in receive.forward.0 of stage 1"), Not(HasSubstr("pp (2)"))));
}

TEST_F(PipelineReportTest, ExplainsAValueWhereItIsMade) {
  const Graph& first = *best_.stages[0].FindGraph("forward.0");
  for (const Node& node : first.nodes) {
    if (node.op != Op::kSend) continue;
    const std::string value = node.symbol.substr(node.symbol.find('/') + 1);
    EXPECT_THAT(MustExplain("%" + value), HasSubstr("%" + value + " in forward.0 of stage 0: "));
  }
}

TEST_F(PipelineReportTest, ExplainsWhatStagesSay) {
  EXPECT_THAT(MustExplain("send"), AllOf(HasSubstr("send of activations over pp on stage 0: 4 a step; a rank sends "),
                                         HasSubstr("send of activations over pp on stage 1: 4 a step"),
                                         HasSubstr("why: it is made on stage 0 and used on stage 1"),
                                         HasSubstr("who: each rank of stage 0, to the one in its place on stage 1")));
  EXPECT_THAT(MustExplain("recv"), AllOf(HasSubstr("who: each rank of stage 0, from the one in its place on stage 1"),
                                         HasSubstr("costs: a rank receives "), Not(HasSubstr("sends 0 B"))));
  EXPECT_THAT(MustExplain("stage_sum"),
              AllOf(HasSubstr("why: stages 0 and 1 each know a part of %"),
                    HasSubstr("who: 2 groups of 2 ranks, one of each of the stages 0 and 1; the first is 0 2; across 2 "
                              "nodes")));
  EXPECT_THAT(MustExplain("all_gather"), AllOf(HasSubstr("all_gather of weights over fsdp on stage 0: "),
                                               HasSubstr("all_gather of weights over fsdp on stage 1: "),
                                               HasSubstr("who: all 2 ranks of stage 0; inside a node")));
}

class PipelineTraceTest : public PipelineReportTest {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(PipelineReportTest::SetUp());
    const json trace =
        json::parse(TraceJson(best_.simulation, best_.programs(), {"first", "second"}, best_.times, ops_), nullptr,
                    /*allow_exceptions=*/false);
    ASSERT_TRUE(trace.is_object());
    for (const json& event : trace["traceEvents"]) {
      const int stage = event["pid"];
      if (event["name"] == "process_name") processes_[stage] = event["args"]["name"];
      if (event["name"] == "thread_name") threads_[{stage, event["tid"].get<int>()}] = event["args"]["name"];
      if (event["ph"] == "X") slices_[{stage, event["name"].get<std::string>()}].push_back(event);
    }
  }
  double End(int stage, const char* name) {
    const json& slice = slices_[{stage, name}][0];
    return slice["ts"].get<double>() + slice["dur"].get<double>();
  }

  std::map<int, std::string> processes_;
  std::map<std::pair<int, int>, std::string> threads_;               // by stage and thread
  std::map<std::pair<int, std::string>, std::vector<json>> slices_;  // by stage and name
};

TEST_F(PipelineTraceTest, EveryMicroBatchGoesThroughBothStages) {
  EXPECT_EQ(processes_, (std::map<int, std::string>{{0, "first"}, {1, "second"}}));
  for (int m = 0; m < 4; ++m) {
    for (const char* pass : {"forward.0 ", "backward.0 "}) {
      for (int stage : {0, 1}) EXPECT_EQ((slices_[{stage, pass + std::to_string(m)}].size()), 1u) << pass << m;
    }
  }
  // The second stage waits for the first, forward; the first for the second, back.
  EXPECT_LT(End(0, "forward.0 0"), End(1, "forward.0 0"));
  EXPECT_LT(End(1, "backward.0 0"), End(0, "backward.0 0"));
}

TEST_F(PipelineTraceTest, AMessageIsOnBothItsStagesAtOnce) {
  for (const auto& [from, to] : {std::pair(0, 1), std::pair(1, 0)}) {
    const std::vector<json>& sent = slices_[{from, "send to stage " + std::to_string(to)}];
    const std::vector<json>& received = slices_[{to, "recv from stage " + std::to_string(from)}];
    ASSERT_EQ(sent.size(), 4u);
    ASSERT_EQ(received.size(), 4u);
    for (size_t m = 0; m < sent.size(); ++m) {
      EXPECT_EQ(sent[m]["ts"], received[m]["ts"]);
      EXPECT_EQ(sent[m]["dur"], received[m]["dur"]);
      EXPECT_EQ(sent[m]["args"]["micro_batch"], m);
      EXPECT_EQ(sent[m]["args"]["name"], received[m]["args"]["name"]);
      EXPECT_GT(sent[m]["args"]["sent_bytes"], 0);
    }
    EXPECT_THAT((threads_[{from, sent[0]["tid"].get<int>()}]), HasSubstr("communication channel "));
  }
}

// Every tag is closed, and nothing is loaded from anywhere.
void CheckPage(const std::string& html) {
  EXPECT_THAT(html,
              AllOf(Not(HasSubstr("src=")), Not(HasSubstr("url(")), Not(HasSubstr("@import")), Not(HasSubstr("<link")),
                    HasSubstr("prefers-color-scheme:dark"), HasSubstr("width=device-width")));
  // The only address in it is the name of SVG's namespace.
  EXPECT_THAT(absl::StrReplaceAll(html, {{"http://www.w3.org/2000/svg", ""}}), Not(HasSubstr("://")));
  std::vector<std::string> open;
  const std::string body = html.substr(html.find("<body>"), html.find("<script>") - html.find("<body>"));
  for (size_t at = body.find('<'); at != std::string::npos; at = body.find('<', at + 1)) {
    const size_t end = body.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = body.substr(at + 1, end - at - 1);
    const std::string name = tag.substr(0, tag.find_first_of(" />", 1));
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty()) << tag;
      EXPECT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (tag.back() != '/' && name != "input") {
      open.push_back(name);
    }
  }
  EXPECT_EQ(open, std::vector<std::string>{"body"});
}

TEST_F(ReportTest, DrawsTracesBelowEachOther) {
  const std::string text = TraceJson(best_.simulation, best_.programs(), {"each of 16 ranks"}, best_.times, ops_);
  const auto html = TraceHtml({{"predicted <a>", text}, {"measured", text}});
  ASSERT_TRUE(html.ok()) << html.status();
  CheckPage(html->html);
  EXPECT_EQ(html->warning, "");
  EXPECT_THAT(html->html, AllOf(HasSubstr("predicted &lt;a&gt;, each of 16 ranks: layers"),
                                HasSubstr("measured, each of 16 ranks: layers"), HasSubstr("communication fsdp"),
                                HasSubstr("class=\"backward\" data-l=\"layers.1\""), HasSubstr("<td>einsum</td>")));
  EXPECT_THAT(std::string(TraceHtml({{"x.json", "{}"}}).status().message()),
              HasSubstr("x.json: not a trace; wanted a file of"));
  EXPECT_FALSE(TraceHtml({{"x.json", R"({"traceEvents": [1, {"ph": "X", "pid": "a", "args": 3}]})"}}).ok());
}

TEST_F(PipelineReportTest, WarnsOfTracesOfDifferentLayouts) {
  const std::string text = TraceJson(best_.simulation, best_.programs(), {"first", "second"}, best_.times, ops_);
  const std::string layout = LayoutOf(*best_.programs()[0]);
  EXPECT_THAT(layout, AllOf(testing::StartsWith("pp=2 "), testing::EndsWith(", 4 micro-batches")));
  EXPECT_EQ(layout, LayoutOf(*best_.programs()[1]));
  const auto same = TraceHtml({{"predicted", text}, {"measured", text}});
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->warning, "");
  const std::string other = absl::StrReplaceAll(text, {{layout, "fsdp=4, 1 <micro-batch"}});
  const auto differ = TraceHtml({{"predicted", other}, {"measured", text}});
  ASSERT_TRUE(differ.ok()) << differ.status();
  CheckPage(differ->html);
  EXPECT_EQ(
      differ->warning,
      "the layouts differ, so these steps are not comparable: predicted: fsdp=4, 1 <micro-batch; measured: " + layout);
  EXPECT_THAT(
      differ->html,
      HasSubstr("<b>the layouts differ, so these steps are not comparable: predicted: fsdp=4, 1 &lt;micro-batch;"));
  // Of an older version.
  const auto unknown = TraceHtml({{"old", absl::StrReplaceAll(text, {{"process_labels", "x"}})}, {"measured", text}});
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_THAT(unknown->warning, HasSubstr("old: not said; measured: pp=2"));
}

// A step of a rank on a device: compute, communicators by their numbers, copies.
TEST(TraceHtml, OrdersThreadsAndSaysWhatTheirColoursMean) {
  json events =
      json::array({{{"ph", "M"}, {"name", "process_name"}, {"pid", 0}, {"tid", 0}, {"args", {{"name", "rank 0"}}}}});
  const auto add = [&](int thread, const char* name, int sort_index, const char* category, const char* slice) {
    const auto describe = [&](const char* what, const json& arguments) {
      events.push_back({{"ph", "M"}, {"name", what}, {"pid", 0}, {"tid", thread}, {"args", arguments}});
    };
    describe("thread_name", {{"name", name}});
    describe("thread_sort_index", {{"sort_index", sort_index}});
    events.push_back(
        {{"ph", "X"}, {"name", slice}, {"cat", category}, {"pid", 0}, {"tid", thread}, {"ts", 1}, {"dur", 5}});
  };
  add(0, "compute", 0, "node", "add");
  add(1, "copy", 2, "copy", "upload");
  add(2, "communication channel 10", 1, "collective", "send");
  add(3, "communication channel 2", 1, "collective", "recv");
  const auto html = TraceHtml({{"step", json({{"traceEvents", events}}).dump()}});
  ASSERT_TRUE(html.ok()) << html.status();
  CheckPage(html->html);
  size_t at = 0;
  for (const char* row :
       {"rank 0: layers", ">kernels<", ">communication channel 2<", ">communication channel 10<", ">copy<"}) {
    const size_t next = html->html.find(row);
    ASSERT_NE(next, std::string::npos) << row;
    EXPECT_GT(next, at) << row;
    at = next;
  }
  EXPECT_THAT(html->html,
              AllOf(HasSubstr("copies between host and device"), HasSubstr("class=\"g6\" data-l=\"upload\""),
                    HasSubstr("data-l=\"recv, 0\""), Not(HasSubstr("communication that is waited for"))));
}

TEST_F(ReportTest, ALayoutByItsNameIsPartOfARequest) {
  EXPECT_TRUE(NamesLayout("tp=8"));
  EXPECT_FALSE(NamesLayout("all_gather"));
  PlanRequest asked = request_;
  ASSERT_TRUE(SetLayout("dp=4,fsdp=4, gc=true", asked).ok());
  EXPECT_EQ(asked.sizes[Axis::kDp], 4);
  EXPECT_EQ(asked.sizes[Axis::kFsdp], 4);
  EXPECT_EQ(asked.recompute_units, PlanRequest::kAllUnits);
  const auto error = [&](const std::string& text) { return std::string(SetLayout(text, asked).message()); };
  EXPECT_EQ(error("tp=x"), "--explain tp=x: tp = x; wanted a whole number from 1");
  EXPECT_EQ(error("gc=1"), "--explain gc=1: gc = 1; wanted true or false");
  EXPECT_EQ(error("reduce_each_micro_batch=1"),
            "--explain reduce_each_micro_batch=1: reduce_each_micro_batch = 1; wanted true or false");
  EXPECT_EQ(error("zero_stage=4"), "--explain zero_stage=4: zero_stage = 4; wanted 1, 2 or 3");
  EXPECT_EQ(error("tp=2,tp=4"), "--explain tp=2,tp=4: tp is there twice");
  EXPECT_THAT(error("pt=2"), HasSubstr("\"pt\" is not known; known: pp, dp, fsdp, ep, cp, tp, gc"));
}

TEST_F(ReportTest, ExplainsALayoutBesideTheOneThatIsTaken) {
  PlanRequest asked = request_;
  ASSERT_TRUE(SetLayout("dp=4,fsdp=4", asked).ok());
  const auto planned = PlanCandidates(asked, TestModel(2), ops_);
  ASSERT_TRUE(planned.ok()) << planned.status();
  const auto finalist = MakeFinalist(asked, planned->candidates[0], planned->programs, ops_);
  ASSERT_TRUE(finalist.ok()) << finalist.status();
  const std::string text = ExplainLayout(best_, planned->candidates[0], &*finalist, ops_, "dp=4,fsdp=4");
  EXPECT_THAT(text, AllOf(HasSubstr("taken: dp=2 fsdp=8; "), HasSubstr("asked: dp=4 fsdp=4; "),
                          HasSubstr("matrix products"), HasSubstr("bytes of a rank")));
  // The parts of both add up to their steps.
  const auto sum = [](double step) { return absl::StrCat("  ", SecondsText(step)); };
  const size_t at = text.find("together");
  ASSERT_NE(at, std::string::npos);
  const std::string together = text.substr(at, text.find('\n', at) - at);
  EXPECT_THAT(together,
              AllOf(HasSubstr(sum(best_.simulation.step_seconds)), HasSubstr(sum(finalist->simulation.step_seconds))));
  EXPECT_THAT(ExplainLayout(best_, best_.candidate, &best_, ops_, "dp=2"), HasSubstr("That is what is taken."));
  Candidate large = planned->candidates[0];
  large.fits = false;
  EXPECT_THAT(ExplainLayout(best_, large, nullptr, ops_, "dp=4"), HasSubstr("It does not fit: it needs "));
}

TEST(TimelineSvg, StaysWithinItsPieces) {
  // Twenty rows of alternating pieces, each wide enough to be seen.
  std::vector<TimelineRow> rows;
  for (int r = 0; r < 20; ++r) {
    TimelineRow& row = rows.emplace_back(TimelineRow{absl::StrCat("row ", r), kLowRow, {}});
    for (int i = 0; i < 2000; ++i)
      row.pieces.push_back({i / 2000.0, (i + 0.9) / 2000.0, i % 2 ? "hidden" : "exposed", "x", "y"});
  }
  const std::string svg = TimelineSvg(rows, 1);
  size_t rects = 0;
  for (size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1)) ++rects;
  EXPECT_LE(rects, kMaxPieces);
  EXPECT_GE(rects, kMaxPieces / 4);
}

TEST_F(ReportTest, TheHtmlMarksEstimates) {
  const std::string html = ReportHtml({"job", 1000, &best_, &planned_}, ops_);
  EXPECT_THAT(html, AllOf(HasSubstr("<td>simulation</td>"), HasSubstr("), simulated</span>"),
                          HasSubstr("Rows with ~ are estimates")));
  Planned with_loser = planned_;
  with_loser.losers.push_back({{planned_.candidates[0].layout, {.seconds = 2.5}, {}}, true, "2.50 s"});
  EXPECT_THAT(ReportHtml({"job", 1000, &best_, &with_loser}, ops_),
              AllOf(HasSubstr("<td>estimate</td>"), HasSubstr(">~2.50 s<")));
}

TEST_F(ReportTest, TheHtmlStandsAlone) {
  const std::string html = ReportHtml({"a <job> & more", 1000, &best_, &planned_}, ops_);
  EXPECT_THAT(html, AllOf(HasSubstr("a &lt;job&gt; &amp; more"), Not(HasSubstr("<job>"))));
  CheckPage(html);
  for (int rank = 0; rank < 16; ++rank) EXPECT_THAT(html, HasSubstr("data-rank=\"" + std::to_string(rank) + "\""));
}

}  // namespace
}  // namespace tacc::graph
