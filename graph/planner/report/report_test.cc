#include <nlohmann/json.hpp>

#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "graph/ir/text.h"
#include "graph/passes/test_model.h"
#include "graph/planner/report/explain.h"
#include "graph/planner/report/html.h"
#include "graph/planner/report/trace_page.h"
#include "graph/planner/report/words.h"
#include "graph/planner/simulate/trace.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Words, Numbers) {
  EXPECT_EQ(BytesText(12), "12 B");
  EXPECT_EQ(BytesText(1.5 * 1073741824), "1.5 GiB");
  EXPECT_EQ(SecondsText(2.149), "2.15 s");
  EXPECT_EQ(SecondsText(0.0311), "31.1 ms");
  EXPECT_EQ(SecondsText(1.2e-5), "12 us");
  EXPECT_EQ(DurationText(21480), "5 h 58 min");
  EXPECT_EQ(DurationText(3.17 * 86400), "3 days 4 h");
  EXPECT_EQ(WholeText(262144), "262,144");
  EXPECT_EQ(WholeText(-1000), "-1,000");
  EXPECT_EQ(WholeText(-100), "-100");
  EXPECT_EQ(CountText(6.738e9), "6.74 billion");
  EXPECT_EQ(CountText(999.6e3), "1 million");
}

// The test model on two nodes of eight H100, fsdp inside a node.
class ReportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const ForwardBuilder model = [](int64_t batch, int64_t seq_len) -> absl::StatusOr<ForwardModel> {
      ParseOptions options;
      options.symbols = {{"B", batch}, {"S", seq_len}};
      auto graph = ParseGraph(TestModelText(), options);
      if (!graph.ok()) return graph.status();
      return ForwardModel{*std::move(graph), {"layers.0", "layers.1"}, "", 600};
    };
    request_.world = 16;
    request_.seq_len = 6;
    request_.dp = 2;
    request_.fsdp = 8;
    request_.global_batch = 64;
    request_.training.max_steps = 1000;
    request_.cluster = *MakeCluster(*FindMachine("h100"), 16);
    request_.device = ProfileOf(request_.cluster.machine);
    auto planned = PlanCandidates(request_, model, ops_);
    ASSERT_TRUE(planned.ok()) << planned.status();
    planned_ = *std::move(planned);
    ASSERT_GT(planned_.candidates.size(), 1u);
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

TEST_F(ReportTest, SaysWhatTheJobWillDo) {
  const std::vector<std::string> words = InWords(best_, 1000);
  ASSERT_EQ(words.size(), 5u);
  EXPECT_THAT(words[0], AllOf(HasSubstr("The job trains 600 parameters in bf16 on 2 nodes of 8 NVIDIA H100"),
                              HasSubstr("64 samples of 6 tokens: 4 samples on each GPU at a time.")));
  EXPECT_THAT(words[1], AllOf(HasSubstr("A step takes "), HasSubstr("(MFU). 1,000 steps are 384 thousand tokens")));
  EXPECT_THAT(words[2], AllOf(HasSubstr("dp=2: the job runs 2 times over"), HasSubstr("(across 2 nodes)"),
                              HasSubstr("fsdp=8: 8 GPUs share one copy"), HasSubstr("(inside a node)")));
  EXPECT_THAT(words[3], HasSubstr("of its 80.0 GiB"));
  EXPECT_THAT(words[4], HasSubstr("nothing hides"));
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
                          HasSubstr("split over fsdp (8): rank 0 has [0, 1), the last rank [7, 8)"),
                          HasSubstr("rests alike on the ranks along dp (2)")));
  EXPECT_EQ(MustExplain("weights/embed.weight"), text);
  EXPECT_THAT(MustExplain("layers.1.q.weight"),
              AllOf(HasSubstr("rests with dim"), HasSubstr("moved by %"), HasSubstr("used by %")));
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
  // Any gathered weight, by its value.
  std::string name;
  for (const Node& node : best_.stages[0].graphs[0].nodes) {
    if (node.op == "attention") name = best_.stages[0].graphs[0].values[node.results[0]].name;
  }
  ASSERT_FALSE(name.empty());
  EXPECT_THAT(MustExplain("%" + name), AllOf(HasSubstr("= attention"), HasSubstr("split over dp (2) and fsdp (8)"),
                                             HasSubstr("why: dim 0 goes with dim 0 of %")));
}

TEST_F(ReportTest, NamesTheNearest) {
  EXPECT_THAT(std::string(Explain(best_, ops_, "embed.wieght").status().message()),
              AllOf(HasSubstr("is called so; nearest: "), HasSubstr("embed.weight")));
  EXPECT_THAT(std::string(Explain(best_, ops_, ".weight").status().message()),
              AllOf(HasSubstr("states end so: weights/embed.weight"), HasSubstr("give more of the name")));
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

TEST_F(ReportTest, TracesBelowEachOther) {
  const std::string text = TraceJson(best_.simulation, best_.programs(), {"each of 16 ranks"}, best_.times, ops_);
  const auto html = TraceHtml({{"predicted <a>", text}, {"measured", text}});
  ASSERT_TRUE(html.ok()) << html.status();
  CheckPage(*html);
  EXPECT_THAT(*html, AllOf(HasSubstr("predicted &lt;a&gt;, each of 16 ranks: layers"),
                           HasSubstr("measured, each of 16 ranks: layers"), HasSubstr("communication fsdp"),
                           HasSubstr("class=\"backward\" data-l=\"layers.1\""), HasSubstr("<td>einsum</td>")));
  EXPECT_THAT(std::string(TraceHtml({{"x.json", "{}"}}).status().message()),
              HasSubstr("x.json: not a trace; wanted a file of"));
  EXPECT_FALSE(TraceHtml({{"x.json", R"({"traceEvents": [1, {"ph": "X", "pid": "a", "args": 3}]})"}}).ok());
}

TEST_F(ReportTest, TheHtmlStandsAlone) {
  const std::string html = ReportHtml({"a <job> & more", 1000, &best_, &planned_}, ops_);
  EXPECT_THAT(html, AllOf(HasSubstr("a &lt;job&gt; &amp; more"), Not(HasSubstr("<job>"))));
  CheckPage(html);
  for (int rank = 0; rank < 16; ++rank) EXPECT_THAT(html, HasSubstr("data-rank=\"" + std::to_string(rank) + "\""));
}

}  // namespace
}  // namespace tacc::graph
