#include "client/taccctl/show/progress.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/taccctl/show/message_json.h"
#include "client/taccctl/show/table.h"
#include "client/taccctl/show/units.h"

namespace tacc::client {
namespace {

constexpr auto kTextPeriod = std::chrono::seconds(5);
constexpr auto kDrawPeriod = std::chrono::milliseconds(100);

// The fields of `message` after its kind.
std::string KindLine(const char* kind, const google::protobuf::Message& message) {
  nlohmann::ordered_json line = {{"kind", kind}};
  line.update(MessageJson(message));
  return JsonLine(line);
}

}  // namespace

std::string EventText(const v1::JobEvent& event) {
  return Printable(
      absl::StrCat(FormatTime(event.time()), "  ", event.message().empty() ? event.type() : event.message()));
}

Progress::Progress(Context* context, OutputForm form, int64_t max_steps)
    : context_(context), form_(form), max_steps_(max_steps) {}

Progress::~Progress() { Clear(); }

void Progress::Take(const v1::WatchResponse& item) {
  if (form_ == OutputForm::kJson) {
    if (item.has_step()) context_->out << KindLine("step", item.step());
    if (item.has_eval()) context_->out << KindLine("eval", item.eval());
    if (item.has_event()) context_->out << KindLine("event", item.event());
    context_->out.flush();
    return;
  }
  if (item.has_step()) {
    TakeStep(item.step());
    return;
  }
  Clear();
  if (item.has_eval()) {
    eval_loss_ = item.eval().eval_loss();
    context_->out << FormatTime(item.eval().time()) << "  eval: step " << item.eval().step() << ", held-out loss "
                  << FormatNumber(item.eval().eval_loss(), 5) << std::endl;
  }
  if (item.has_event()) context_->out << EventText(item.event()) << std::endl;
  if (step_.has_value()) Draw();
}

void Progress::TakeStep(const v1::StepMetrics& step) {
  step_ = step;
  step_seconds_ = step_seconds_ == 0 ? step.seconds() : 0.9 * step_seconds_ + 0.1 * step.seconds();
  step_printed_ = false;
  const auto now = Clock::now();
  const Clock::duration period =
      context_->err_is_terminal ? Clock::duration(kDrawPeriod) : Clock::duration(kTextPeriod);
  if (last_shown_.has_value() && now - *last_shown_ < period) return;
  last_shown_ = now;
  if (context_->err_is_terminal) {
    Draw();
  } else {
    context_->out << StepText() << std::endl;
    step_printed_ = true;
  }
}

std::string Progress::StepText(size_t width) const {
  const v1::StepMetrics& step = *step_;
  // In the order of the line. Of `need` what is left out first has the largest; 0 stays.
  struct Part {
    int need;
    std::string text;
  };
  std::vector<Part> parts = {
      {0, absl::StrCat("step ", step.step(), max_steps_ > 0 ? absl::StrCat("/", max_steps_) : "")}};
  if (max_steps_ > 0)
    parts.push_back(
        {4, absl::StrCat(" ", FormatPercent(static_cast<double>(step.step()) / static_cast<double>(max_steps_)))});
  parts.push_back({0, absl::StrCat("  loss ", FormatNumber(step.loss(), 5))});
  if (eval_loss_.has_value()) parts.push_back({2, absl::StrCat("  held-out ", FormatNumber(*eval_loss_, 5))});
  if (step.has_loss_scale()) parts.push_back({6, absl::StrCat("  loss scale ", FormatNumber(step.loss_scale(), 5))});
  if (step.skipped() != 0) parts.push_back({1, "  skipped (gradient norm not finite)"});
  parts.push_back({3, absl::StrCat("  ", FormatCount(step.tokens_per_second()), " tokens/s")});
  if (step.has_mfu()) parts.push_back({5, absl::StrCat("  MFU ", FormatPercent(step.mfu()))});
  if (max_steps_ > step.step() && !has_ended_) {
    const double seconds = step_seconds_ * static_cast<double>(max_steps_ - step.step());
    parts.push_back({0, absl::StrCat("  ETA ", FormatDuration(seconds))});
  }
  while (true) {
    const std::string text =
        absl::StrJoin(parts, "", [](std::string* out, const Part& part) { out->append(part.text); });
    const auto least =
        std::max_element(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.need < b.need; });
    if (text.size() <= width || least->need == 0) return text.substr(0, width);
    parts.erase(least);
  }
}

void Progress::Draw() {
  if (!context_->err_is_terminal) return;
  context_->err << "\r\x1b[K" << StepText(static_cast<size_t>(std::max(10, context_->columns - 1))) << std::flush;
  drawn_ = true;
}

void Progress::Clear() {
  if (drawn_) context_->err << "\r\x1b[K" << std::flush;
  drawn_ = false;
}

void Progress::Note(const std::string& text) {
  Clear();
  context_->err << text << std::endl;
  if (step_.has_value() && form_ == OutputForm::kTable) Draw();
}

void Progress::Finish() {
  if (form_ == OutputForm::kJson || !step_.has_value()) return;
  Clear();
  has_ended_ = true;
  if (!step_printed_) context_->out << StepText() << std::endl;
  step_printed_ = true;
}

}  // namespace tacc::client
