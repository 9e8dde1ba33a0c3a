#include "worker/run_folder/run_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "machine/testing/test_directory.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/run_folder/curve_chart.h"

namespace tacc::worker {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

RunReport ReportIn(const TestDirectory& directory) {
  RunReport report;
  report.dir = directory.path();
  report.run = {{"name", "a<b"},
                {"flops_per_step", 1e9},
                {"peak_flops_per_second", 1e11},
                {"plan", {{"layout", "2 ranks (fsdp=2)"}, {"predicted_step_seconds", 0.05}, {"total_bytes", 1 << 30}}},
                {"restarts", {{{"attempt", 1}, {"step", 2}, {"cause", "rank 1: killed by signal 9 <&>"}}}}};
  report.outcome = "finished";
  report.step = report.max_steps = 3;
  report.export_dir = directory.File("hf");
  report.checkpoint = directory.File("step-00000003.a2");
  report.peak_memory_bytes = 3 << 29;
  report.prompt_ids = {5, 6};
  std::string lines;
  for (int step = 1; step <= 3; ++step)
    absl::StrAppend(
        &lines, R"({"step":)", step, R"(,"time":10,"loss":)", 4 - step,
        R"(,"grad_norm":1,"learning_rate":0.1,"tokens":100,"seconds":0.1,"mfu":0.25,"communication_seconds":0.01})",
        "\n");
  TestDirectory::Write(directory.File("metrics.jsonl"), lines + R"({"step":3,"time":70,"eval_loss":1.5})" + "\n");
  return report;
}

std::string Page(const TestDirectory& directory, const RunReport& report) {
  EXPECT_TRUE(WriteReport(report).ok());
  return TestDirectory::Read(ReportPath(directory.path()));
}

TEST(RunReport, SaysWhatBecameOfTheRun) {
  const TestDirectory directory;
  const std::string page = Page(directory, ReportIn(directory));
  EXPECT_THAT(page, AllOf(HasSubstr("<h1>a&lt;b</h1>"), HasSubstr("The training finished at step 3."),
                          HasSubstr("<b>1.0000</b><span>training loss"), HasSubstr("<b>1.5000</b><span>held-out loss"),
                          HasSubstr("<b>300</b><span>tokens"), HasSubstr("killed by signal 9 &lt;&amp;&gt;")));
  // Predicted beside measured.
  EXPECT_THAT(page, AllOf(HasSubstr("<td>step</td><td class=\"n\">50 ms</td><td class=\"n\">100 ms</td>"),
                          HasSubstr("<td>MFU</td><td class=\"n\">20.0 %</td><td class=\"n\">25.0 %</td>"),
                          HasSubstr("<td class=\"n\">1.0 GiB</td><td class=\"n\">1.5 GiB</td>")));
  EXPECT_THAT(page, AllOf(HasSubstr("pipeline(&quot;text-generation&quot;, &quot;" + directory.File("hf")),
                          HasSubstr("<!-- sample: 5 6 -->"), HasSubstr("<!-- end of sample -->"),
                          HasSubstr("python -m tacc sample " + directory.File("hf"))));
  // Nothing is loaded from anywhere.
  EXPECT_THAT(page, AllOf(Not(HasSubstr("src=")), Not(HasSubstr("href=")), Not(HasSubstr("url("))));
}

// Of somebody who may write to the folder.
TEST(RunReport, MetricsThatNeverEndAreNotReadToTheirEnd) {
  const TestDirectory directory;
  const RunReport report = ReportIn(directory);
  const std::string metrics = directory.File("metrics.jsonl");
  // As large as a file of zeros may be that takes no room.
  std::filesystem::resize_file(metrics, int64_t{1} << 40);
  EXPECT_THAT(Page(directory, report), HasSubstr("<b>300</b><span>tokens"));
  std::filesystem::remove(metrics);
  std::filesystem::create_symlink("/dev/zero", metrics);
  EXPECT_THAT(Page(directory, report), HasSubstr("finished at step 3"));
  std::filesystem::remove(metrics);
  ASSERT_EQ(mkfifo(metrics.c_str(), 0666), 0);  // Which nobody writes.
  EXPECT_THAT(Page(directory, report), HasSubstr("finished at step 3"));
}

TEST(RunReport, ARunThatWasStoppedHasNoModel) {
  const TestDirectory directory;
  RunReport report = ReportIn(directory);
  report.outcome = "stopped";
  report.max_steps = 10;
  report.export_dir = "";
  report.run = nlohmann::json::object();
  EXPECT_THAT(Page(directory, report), AllOf(HasSubstr("The training stopped at step 3."), HasSubstr("<b>3 of 10</b>"),
                                             Not(HasSubstr("sample")), Not(HasSubstr("Restarts"))));
}

TEST(RunReport, ARunThatFailedSaysWhyAtTheTop) {
  const TestDirectory directory;
  RunReport report = ReportIn(directory);
  report.outcome = "failed";
  report.failure = "stuck: the loss is < 1";
  report.may_go_on = true;
  report.attempt = 2;
  report.export_dir = "";
  const std::string page = Page(directory, report);
  EXPECT_THAT(page, AllOf(HasSubstr("The training failed at step 3."), HasSubstr("<p>stuck: the loss is &lt; 1</p>"),
                          HasSubstr("when attempt 2 ended"), Not(HasSubstr("<!-- sample")), Not(HasSubstr("/logs"))));
  EXPECT_LT(page.find("stuck: "), page.find("training loss"));
  report.may_go_on = false;
  EXPECT_THAT(Page(directory, report), Not(HasSubstr("Where another attempt follows")));
  ASSERT_TRUE(MakeDirectory(directory.File("logs")).ok());
  EXPECT_THAT(Page(directory, report), HasSubstr(directory.File("logs")));
}

TEST(RunReport, OneThatGoesOnSaysSo) {
  const TestDirectory directory;
  RunReport report = ReportIn(directory);
  report.outcome = "failed";
  report.failure = "collective: rank 1 did not answer";
  const std::string before = Page(directory, report);
  ASSERT_TRUE(SayItGoesOn(directory.path(), 3, 2000).ok());
  const std::string page = TestDirectory::Read(ReportPath(directory.path()));
  EXPECT_THAT(page, AllOf(HasSubstr("The training goes on: attempt 3 began after step 2,000."),
                          Not(HasSubstr("The training failed")), Not(HasSubstr("did not answer"))));
  // The rest is as it was, and what is said is said again.
  const std::string end = "<!-- end of state -->";
  EXPECT_EQ(page.substr(page.find(end)), before.substr(before.find(end)));
  ASSERT_TRUE(SayItGoesOn(directory.path(), 4, 2100).ok());
  EXPECT_THAT(TestDirectory::Read(ReportPath(directory.path())),
              AllOf(HasSubstr("attempt 4 began after step 2,100."), Not(HasSubstr("attempt 3"))));
}

TEST(RunReport, WhereThereIsNoPageNothingIsSaid) {
  const TestDirectory directory;
  EXPECT_TRUE(SayItGoesOn(directory.path(), 3, 2).ok());
  TestDirectory::Write(ReportPath(directory.path()), "<html>of an earlier version</html>");
  EXPECT_TRUE(SayItGoesOn(directory.path(), 3, 2).ok());
  EXPECT_EQ(TestDirectory::Read(ReportPath(directory.path())), "<html>of an earlier version</html>");
  EXPECT_EQ(TestDirectory::Names(directory.path()), (std::vector<std::string>{"report.html"}));
}

TEST(RunReport, WithoutMetricsThereIsStillAPage) {
  const TestDirectory directory;
  RunReport report = ReportIn(directory);
  TestDirectory::Write(directory.File("metrics.jsonl"), "");
  EXPECT_THAT(Page(directory, report), HasSubstr("There are no points."));
}

TEST(RunReport, NamesTheFileThatCannotBeWritten) {
  const TestDirectory directory;
  RunReport report = ReportIn(directory);
  report.dir = directory.File("none");
  EXPECT_THAT(std::string(WriteReport(report).message()), HasSubstr("none/.report.html"));
}

TEST(CurveChart, ManyPointsAreDrawnAsMeansInABand) {
  Curve curve = {"forward", {}};
  for (int i = 0; i < 10 * static_cast<int>(kMaxPoints); ++i) curve.points.emplace_back(i, i % 2);
  const std::string chart = CurveChart("Loss", {curve}, 100);
  EXPECT_THAT(chart, HasSubstr("<polygon"));
  const std::string line = chart.substr(chart.find("<polyline"));
  EXPECT_EQ(std::count(line.begin(), line.begin() + static_cast<ptrdiff_t>(line.find("/>")), ','), kMaxPoints);
  // One point, and values that are all the same, are no error.
  EXPECT_THAT(CurveChart("Loss", {{"forward", {{1, 2}}}}, 100), HasSubstr("<circle"));
  EXPECT_THAT(CurveChart("Loss", {{"forward", {{1, 0}, {2, 0}}}}, 100),
              AllOf(HasSubstr("<polyline"), Not(HasSubstr("nan"))));
}

}  // namespace
}  // namespace tacc::worker
