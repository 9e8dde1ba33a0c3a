// taccctl logs JOB: the log lines of the ranks; Ctrl-C detaches.
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/taccctl/follow.h"
#include "client/taccctl/session/coordinator_client.h"
#include "client/taccctl/session/exit_code.h"
#include "client/taccctl/show/message_json.h"
#include "client/taccctl/show/table.h"
#include "client/taccctl/show/units.h"
#include "client/taccctl/subcommands.h"

namespace tacc::client {
namespace {

struct LogsOptions {
  std::string job;
  int rank = -1;
  int tail = 0;
  bool follow = false;
};

int Logs(const LogsOptions& options, const GlobalOptions& global, Context& context) {
  const absl::StatusOr<Endpoint> endpoint = FindCoordinator(global, context);
  if (!endpoint.ok()) return Fail(endpoint.status(), &context);
  context.end_with_reader();
  CoordinatorClient client(*endpoint, &context.interrupt);
  v1::LogsRequest request;
  request.set_job(options.job);
  if (options.rank >= 0) request.set_rank(options.rank);
  request.set_tail(options.tail);
  request.set_follow(options.follow);
  // After a break the lines come again from the beginning: those that were shown are skipped.
  int64_t shown = 0;
  bool connected = false, away = false;
  Backoff backoff;
  const int seen = client.interrupts_seen();
  while (true) {
    int64_t received = 0;
    const absl::Status status = client.Logs(request, [&](const v1::LogsResponse& response) {
      connected = true;
      backoff.Reset();
      if (away) context.err << "the coordinator is back" << std::endl;
      away = false;
      for (const v1::LogLine& line : response.lines()) {
        if (++received <= shown) continue;
        ++shown;
        if (global.form == OutputForm::kJson) {
          context.out << JsonLine(MessageJson(line));
        } else {
          context.out << FormatTime(line.time()) << " [" << line.attempt() << "/"
                      << (line.rank() < 0 ? "-" : absl::StrCat(line.rank())) << "] " << Printable(line.text()) << "\n";
        }
      }
      context.out.flush();
    });
    if (status.ok() && shown == 0)
      context.err << "no log lines" << (options.rank >= 0 ? absl::StrCat(" of rank ", options.rank) : "") << "; `"
                  << context.program << " events " << options.job << "` says what happened to the job" << std::endl;
    if (status.ok()) return kExitOk;
    if (context.interrupt.count() > seen) {
      context.err << "\ndetached; " << options.job << " goes on" << std::endl;
      return kExitError;
    }
    // Where a tail began cannot be found again by counting.
    if (!absl::IsUnavailable(status) || !connected || !options.follow || options.tail > 0)
      return Fail(status, &context);
    if (!away)
      context.err << "the coordinator at " << client.endpoint().address << " is away; trying to reconnect" << std::endl;
    away = true;
    client.WaitToReconnect(backoff.Next(), seen);
  }
}

}  // namespace

void AddLogs(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* command = app->add_subcommand("logs",
                                          "Show what happened to a job and what its ranks wrote, as [attempt/rank] "
                                          "text, rank - for the coordinator; Ctrl-C detaches");
  const auto options = std::make_shared<LogsOptions>();
  command->add_option("job", options->job, "Id of the job, or a name: its newest job")->required()->type_name("JOB");
  command->add_option("--rank", options->rank, "Only this rank")->check(CLI::NonNegativeNumber);
  command->add_option("--tail", options->tail, "Only the last lines")->check(CLI::PositiveNumber);
  command->add_flag("-f,--follow", options->follow, "Go on until the job has ended");
  command->callback([=] { *action = [=](Context& context) { return Logs(*options, *global, context); }; });
}

}  // namespace tacc::client
