// taccctl list: the jobs, newest first.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/taccctl/follow.h"
#include "client/taccctl/session/coordinator_client.h"
#include "client/taccctl/session/exit_code.h"
#include "client/taccctl/show/job_text.h"
#include "client/taccctl/show/message_json.h"
#include "client/taccctl/show/table.h"
#include "client/taccctl/show/units.h"
#include "client/taccctl/subcommands.h"

namespace tacc::client {
namespace {

// Characters of a reason in the table; `get` has all of it.
constexpr size_t kMaxReason = 60;

// What of a reason goes into a table: its first line, which is cut at a word.
std::string ShortReason(const std::string& reason) {
  std::string line = reason.substr(0, reason.find('\n'));
  if (line == reason && line.size() <= kMaxReason) return line;
  if (line.size() > kMaxReason) {
    const size_t space = line.rfind(' ', kMaxReason);
    line.resize(space == std::string::npos ? kMaxReason : space);
  }
  return line + " ...";
}

int List(int limit, const GlobalOptions& global, Context& context) {
  const absl::StatusOr<Endpoint> endpoint = FindCoordinator(global, context);
  if (!endpoint.ok()) return Fail(endpoint.status(), &context);
  CoordinatorClient client(*endpoint, &context.interrupt);
  const absl::StatusOr<std::vector<v1::Job>> jobs = client.List(limit);
  if (!jobs.ok()) return Fail(jobs.status(), &context);
  const bool have_projects =
      std::any_of(jobs->begin(), jobs->end(), [](const v1::Job& job) { return !job.project().empty(); });
  std::vector<std::string> head = {"JOB", "PHASE", "STEPS", "LOSS", "ETA", "SUBMITTED", "REASON"};
  if (have_projects) head.insert(head.begin() + 1, "PROJECT");
  std::vector<std::vector<std::string>> rows;
  for (const v1::Job& job : *jobs) {
    if (global.form == OutputForm::kJson) context.out << JsonLine(MessageJson(job));
    rows.push_back({job.id(), PhaseText(job.phase()), StepsDone(job),
                    job.has_last_step() ? FormatNumber(job.last_step().loss(), 5) : "-",
                    job.has_eta_seconds() ? FormatDuration(job.eta_seconds()) : "-", FormatTime(job.submitted_time()),
                    ShortReason(job.reason())});
    if (have_projects) rows.back().insert(rows.back().begin() + 1, job.project().empty() ? "-" : job.project());
  }
  if (global.form == OutputForm::kTable) PrintTable(head, rows, context.out);
  return kExitOk;
}

}  // namespace

void AddList(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* command = app->add_subcommand("list", "List the jobs, newest first");
  const auto limit = std::make_shared<int>(100);
  command->add_option("--limit", *limit, "At most this many")->check(CLI::Range(1, 1000))->capture_default_str();
  command->callback([=] { *action = [=](Context& context) { return List(*limit, *global, context); }; });
}

}  // namespace tacc::client
