// taccctl cancel JOB: stops a job, after a checkpoint unless told otherwise.
#include <memory>

#include "client/taccctl/follow.h"
#include "client/taccctl/session/coordinator_client.h"
#include "client/taccctl/session/exit_code.h"
#include "client/taccctl/show/job_text.h"
#include "client/taccctl/show/message_json.h"
#include "client/taccctl/show/table.h"
#include "client/taccctl/subcommands.h"

namespace tacc::client {
namespace {

struct CancelOptions {
  std::string job;
  bool now = false;
};

int Cancel(const CancelOptions& options, const GlobalOptions& global, Context& context) {
  const absl::StatusOr<Endpoint> endpoint = FindCoordinator(global, context);
  if (!endpoint.ok()) return Fail(endpoint.status(), &context);
  CoordinatorClient client(*endpoint, &context.interrupt);
  const absl::StatusOr<v1::Job> job =
      client.Cancel(options.job, options.now ? v1::CANCEL_MODE_NOW : v1::CANCEL_MODE_CHECKPOINT);
  if (!job.ok()) return Fail(job.status(), &context);
  if (global.form == OutputForm::kJson) {
    context.out << JsonLine(MessageJson(*job));
  } else {
    context.out << job->id() << ": " << PhaseText(job->phase());
    if (job->phase() == v1::PHASE_CANCELLED && !job->reason().empty())
      context.out << " (" << Printable(job->reason()) << ")";
    context.out << "\n";
  }
  if (!HasEnded(job->phase())) {
    context.err << "When it has stopped, and what it saved: " << context.program << " watch " << job->id() << "\n";
  }
  return kExitOk;
}

}  // namespace

void AddCancel(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* command = app->add_subcommand("cancel", "Stop a job; it writes a checkpoint first");
  const auto options = std::make_shared<CancelOptions>();
  command->add_option("job", options->job, "Id of the job, or a name: its newest job")->required()->type_name("JOB");
  command->add_flag("--now", options->now, "Kill the ranks, without a checkpoint");
  command->callback([=] { *action = [=](Context& context) { return Cancel(*options, *global, context); }; });
}

}  // namespace tacc::client
