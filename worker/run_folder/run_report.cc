#include "worker/run_folder/run_report.h"

#include <errno.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "json/parse_json.h"
#include "machine/tacc_python.h"
#include "page/numbers.h"
#include "page/page.h"
#include "page/svg.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/run_folder/curve_chart.h"

namespace tacc::worker {
namespace {

using Json = nlohmann::json;
using svg::Escaped;

// Steps behind the medians.
constexpr size_t kRecentSteps = 100;
constexpr int64_t kMaxPageBytes = 64 << 20;
constexpr int64_t kPieceBytes = 1 << 20;
constexpr size_t kMaxLineBytes = 1 << 20;  // Of metrics; a step's has some hundred.
constexpr double kTallChart = 340, kLowChart = 190;

// Points of one number over the steps.
using Points = std::vector<std::pair<double, double>>;

struct History {
  Points loss, eval_loss, grad_norm, learning_rate, tokens_per_second;
  std::vector<double> seconds, communication, rates, mfu;  // Of the last steps.
  double begin = 0, end = 0;                               // Times of first and last point.
  double tokens = 0;
};

double NumberOr(const Json& object, const char* key, double otherwise) {
  if (!object.is_object()) return otherwise;
  const auto value = object.find(key);
  return value != object.end() && value->is_number() ? value->get<double>() : otherwise;
}

std::string StringOr(const Json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto value = object.find(key);
  return value != object.end() && value->is_string() ? value->get<std::string>() : "";
}

// Whoever may write to the folder may have made the file: it is read up to a line that is too long.
void ForEachLine(const std::string& path, const std::function<void(const std::string& line)>& take) {
  const absl::StatusOr<std::unique_ptr<InputFile>> file = InputFile::Open(path);
  std::string text;
  for (int64_t offset = 0; file.ok() && offset < (*file)->num_bytes();) {
    const size_t before = text.size();
    const int64_t num_bytes = std::min(kPieceBytes, (*file)->num_bytes() - offset);
    text.resize(before + static_cast<size_t>(num_bytes));
    if (!(*file)->Read(offset, text.data() + before, num_bytes).ok()) return;
    offset += num_bytes;
    size_t begin = 0;
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
      take(text.substr(begin, end - begin));
    text.erase(0, begin);
    if (text.size() > kMaxLineBytes) return;
  }
  take(text);
}

History ReadHistory(const std::string& path) {
  History history;
  const auto keep_last = [](std::vector<double>& values, const Json& point, const char* key) {
    const auto value = point.find(key);
    if (value == point.end() || !value->is_number()) return;
    if (values.size() == kRecentSteps) values.erase(values.begin());
    values.push_back(value->get<double>());
  };
  ForEachLine(path, [&](const std::string& line) {
    const Json point = ParseJson(line);
    if (!point.is_object()) return;
    const double step = NumberOr(point, "step", 0), time = NumberOr(point, "time", 0);
    if (history.begin == 0) history.begin = time;
    history.end = time;
    for (const auto& [key, curve] :
         {std::pair{"loss", &history.loss}, std::pair{"eval_loss", &history.eval_loss},
          std::pair{"grad_norm", &history.grad_norm}, std::pair{"learning_rate", &history.learning_rate},
          std::pair{"tokens_per_second", &history.tokens_per_second}}) {
      if (const auto value = point.find(key); value != point.end() && value->is_number())
        curve->emplace_back(step, value->get<double>());
    }
    if (point.contains("eval_loss")) return;
    history.tokens += NumberOr(point, "tokens", 0);
    keep_last(history.seconds, point, "seconds");
    keep_last(history.communication, point, "communication_seconds");
    keep_last(history.rates, point, "tokens_per_second");
    keep_last(history.mfu, point, "mfu");
  });
  return history;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string Percent(double fraction) { return absl::StrFormat("%.1f %%", 100 * fraction); }

std::string Tile(const std::string& value, const std::string& label) {
  return absl::StrCat("<div class=\"tile\"><b>", Escaped(value), "</b><span>", Escaped(label), "</span></div>\n");
}

std::string Code(const std::string& text) {
  return absl::StrCat("<pre style=\"overflow-x:auto;margin:0 0 10px\"><code>", Escaped(text), "</code></pre>\n");
}

std::string Table(const std::vector<std::string>& head, const std::vector<std::vector<std::string>>& rows,
                  size_t first_number, size_t last_number) {
  std::string table = "<div class=\"wide\"><table>";
  if (!head.empty()) absl::StrAppend(&table, "<tr>", TableRow("th", head, first_number, last_number), "</tr>\n");
  for (const std::vector<std::string>& row : rows)
    absl::StrAppend(&table, "<tr>", TableRow("td", row, first_number, last_number), "</tr>\n");
  return table + "</table></div>\n";
}

std::string Tiles(const RunReport& report, const History& history) {
  std::string tiles = "<div class=\"tiles\">\n";
  tiles +=
      Tile(report.step == report.max_steps ? WholeText(report.step)
                                           : absl::StrCat(WholeText(report.step), " of ", WholeText(report.max_steps)),
           "steps");
  if (!history.loss.empty()) tiles += Tile(absl::StrFormat("%.4f", history.loss.back().second), "training loss");
  if (!history.eval_loss.empty())
    tiles += Tile(absl::StrFormat("%.4f", history.eval_loss.back().second), "held-out loss");
  tiles += Tile(CountText(history.tokens), "tokens");
  if (!history.rates.empty()) tiles += Tile(CountText(Median(history.rates)), "tokens a second");
  tiles += Tile(DurationText(history.end - history.begin), "from the first point to the last");
  return tiles + "</div>\n";
}

std::string Curves(const History& history) {
  std::string body = absl::StrCat("<p class=\"note\">", Key("forward", "training loss"));
  if (!history.eval_loss.empty()) body += Key("exposed", "held-out loss");
  absl::StrAppend(
      &body, "over steps, in nats a token</p>\n<div class=\"wide\">",
      CurveChart("Loss over steps", {{"forward", history.loss}, {"exposed", history.eval_loss, true}}, kTallChart),
      "</div>\n");
  for (const auto& [title, colour, points] : {std::tuple{"Gradient norm", "backward", &history.grad_norm},
                                              std::tuple{"Learning rate", "update", &history.learning_rate},
                                              std::tuple{"Tokens a second", "g4", &history.tokens_per_second}}) {
    absl::StrAppend(&body, "<p class=\"note\">", Key(colour, title), "</p>\n<div class=\"wide\">",
                    CurveChart(absl::StrCat(title, " over steps"), {{colour, *points}}, kLowChart), "</div>\n");
  }
  return body;
}

std::string PredictedAndMeasured(const RunReport& report, const History& history) {
  const Json plan = report.run.value("plan", Json::object());
  const auto shown = [](double value, const auto& text) { return value > 0 ? text(value) : std::string("-"); };
  const auto share = [](double part, double whole) { return whole > 0 ? Percent(part / whole) : std::string("-"); };
  const double predicted = NumberOr(plan, "predicted_step_seconds", 0), measured = Median(history.seconds);
  const double flops = NumberOr(report.run, "flops_per_step", 0),
               peak = NumberOr(report.run, "peak_flops_per_second", 0);
  const std::string layout = StringOr(plan, "layout");
  std::string words;
  if (!layout.empty()) {
    const double parameters = NumberOr(plan, "num_parameters", 0);
    const double trained = NumberOr(plan, "num_trained_parameters", parameters);
    words =
        absl::StrCat("<p>",
                     Escaped(absl::StrCat(
                         CountText(parameters), " parameters",
                         trained < parameters ? absl::StrCat(", of which ", CountText(trained), " are trained,") : "",
                         " in ", StringOr(plan, "precision"), " on ", layout, "; a step is ",
                         WholeText(static_cast<int64_t>(NumberOr(plan, "global_batch_size", 0))), " samples of ",
                         WholeText(static_cast<int64_t>(NumberOr(plan, "seq_len", 0))), " tokens, ",
                         WholeText(static_cast<int64_t>(NumberOr(plan, "per_device_train_batch_size", 0))),
                         " at a time on a worker.")),
                     "</p>\n");
  }
  return absl::StrCat(
      words,
      Table({"", "predicted", "measured"},
            {{"step", shown(predicted, SecondsText), shown(measured, SecondsText)},
             {"tokens a second", shown(NumberOr(plan, "predicted_tokens_per_second", 0), CountText),
              shown(Median(history.rates), CountText)},
             {"waiting for other ranks", share(NumberOr(plan, "predicted_wait_seconds", 0), predicted),
              share(Median(history.communication), measured)},
             {"memory of a rank", shown(NumberOr(plan, "total_bytes", 0), BytesText),
              shown(static_cast<double>(report.peak_memory_bytes), BytesText)},
             {"MFU", share(flops, predicted * peak), history.mfu.empty() ? "-" : Percent(Median(history.mfu))}},
            1, 2),
      "<p class=\"note\">Measured: the median of the last ", history.seconds.size(),
      " steps; memory is the most that rank 0 had, with the copy for checkpoints.</p>\n");
}

std::string Restarts(const Json& run) {
  std::vector<std::vector<std::string>> rows;
  const Json restarts = run.value("restarts", Json::array());
  for (const Json& restart : restarts) {
    rows.push_back({absl::StrFormat("%.0f", NumberOr(restart, "attempt", 0)),
                    absl::StrFormat("%.0f", NumberOr(restart, "step", 0)), StringOr(restart, "cause")});
  }
  return rows.empty() ? "" : Section("Restarts", Table({"attempt", "reached step", "cause"}, rows, 0, 1));
}

std::string Model(const RunReport& report) {
  if (report.export_dir.empty()) return "";
  return Section(
      "Use the model",
      Code(absl::StrCat("from transformers import pipeline\ncomplete = pipeline(\"text-generation\", ",
                        Json(report.export_dir).dump(-1, ' ', false, Json::error_handler_t::replace),
                        ")\nprint(complete(\"Once upon a time\", max_new_tokens=60)[0][\"generated_text\"])")));
}

// `python -m tacc sample --report` looks for the comments and the ids.
std::string Sample(const RunReport& report) {
  if (report.export_dir.empty()) return "";
  return absl::StrCat(
      "<!-- sample: ", absl::StrJoin(report.prompt_ids, " "), " -->\n",
      Section("A sample of its text",
              absl::StrCat("<p class=\"note\">There is none yet; this makes it:</p>\n",
                           Code(absl::StrCat(WithTaccPython("python -m tacc sample "), ShellWord(report.export_dir),
                                             " --report ", ShellWord(ReportPath(report.dir)))))),
      "<!-- end of sample -->\n");
}

// What SayItGoesOn replaces.
constexpr char kState[] = "<!-- state -->\n", kEndOfState[] = "<!-- end of state -->\n";

std::string State(const RunReport& report) {
  std::string text = absl::StrCat("<p>The training ", report.outcome, " at step ", WholeText(report.step), ".</p>\n");
  if (!report.failure.empty()) {
    const std::string note =
        report.may_go_on
            ? absl::StrCat("<p class=\"note\">As rank 0 saw it when attempt ", report.attempt,
                           " ended. Where another attempt follows, this page says so, and is written anew at its end.",
                           "</p>\n")
            : "";
    text += Section("Why", absl::StrCat("<p>", Escaped(report.failure), "</p>\n", note));
  }
  return absl::StrCat(kState, text, kEndOfState);
}

absl::Status Replace(const std::string& dir, const std::string& page) {
  const std::string path = ReportPath(dir), written = absl::StrCat(dir, "/.report.html");
  if (absl::Status status = WriteSmallFile(written, page); !status.ok()) return status;
  return std::rename(written.c_str(), path.c_str()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, path);
}

std::string Files(const RunReport& report) {
  std::vector<std::vector<std::string>> rows;
  if (!report.export_dir.empty()) rows.push_back({"model", report.export_dir});
  if (!report.checkpoint.empty()) rows.push_back({"last checkpoint", report.checkpoint});
  rows.push_back({"metrics, a line a step", absl::StrCat(report.dir, "/metrics.jsonl")});
  rows.push_back({"for TensorBoard", absl::StrCat(report.dir, "/tensorboard")});
  // The daemon's to write.
  const std::string logs = absl::StrCat(report.dir, "/logs");
  if (std::error_code error; std::filesystem::is_directory(logs, error)) rows.push_back({"logs of the ranks", logs});
  return Section("Files", Table({}, rows, 2, 1));
}

}  // namespace

std::string ReportPath(const std::string& dir) { return absl::StrCat(dir, "/report.html"); }

absl::Status WriteReport(const RunReport& report) {
  const History history = ReadHistory(absl::StrCat(report.dir, "/metrics.jsonl"));
  const std::string name = StringOr(report.run, "name");
  const std::string body = absl::StrCat(
      State(report), Tiles(report, history), Section("Curves", Curves(history)), Sample(report), Model(report),
      Section("Predicted and measured", PredictedAndMeasured(report, history)), Restarts(report.run), Files(report));
  return Replace(report.dir, Page({absl::StrCat(name.empty() ? "run" : name, ": report"),
                                   name.empty() ? report.dir : name, name.empty() ? "" : report.dir},
                                  body, ""));
}

absl::Status SayItGoesOn(const std::string& dir, int64_t attempt, int64_t step) {
  const absl::StatusOr<std::string> read = ReadSmallFile(ReportPath(dir), kMaxPageBytes);
  if (absl::IsNotFound(read.status())) return absl::OkStatus();
  if (!read.ok()) return read.status();
  std::string page = *read;
  const size_t begin = page.find(kState), end = page.find(kEndOfState);
  if (begin == std::string::npos || end == std::string::npos || end < begin) return absl::OkStatus();
  page.replace(begin, end - begin,
               absl::StrCat(kState, "<p>The training goes on: attempt ", attempt, " began after step ", WholeText(step),
                            ". What follows was written before that; the page is written anew at the end.</p>\n"));
  return Replace(dir, page);
}

}  // namespace tacc::worker
