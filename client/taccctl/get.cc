// taccctl get JOB: one job in full.
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/taccctl/follow.h"
#include "client/taccctl/local/enough_workers.h"
#include "client/taccctl/session/coordinator_client.h"
#include "client/taccctl/session/exit_code.h"
#include "client/taccctl/show/job_text.h"
#include "client/taccctl/show/message_json.h"
#include "client/taccctl/subcommands.h"

namespace tacc::client {
namespace {

int Get(const std::string& name, const GlobalOptions& global, Context& context) {
  const absl::StatusOr<Endpoint> endpoint = FindCoordinator(global, context);
  if (!endpoint.ok()) return Fail(endpoint.status(), &context);
  CoordinatorClient client(*endpoint, &context.interrupt);
  const absl::StatusOr<v1::Job> job = client.Get(name);
  if (!job.ok()) return Fail(job.status(), &context);
  if (global.form == OutputForm::kJson) {
    context.out << JsonLine(MessageJson(*job));
  } else {
    PrintJob(*job, context.out);
    context.out << std::flush;
    context.err << HowToHaveEnoughWorkers(*job, global, &client, context) << std::flush;
  }
  return kExitOk;
}

}  // namespace

void AddGet(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* command = app->add_subcommand(
      "get", "Show one job: phase and reason, progress, metrics, restarts, checkpoints, measured beside predicted");
  const auto name = std::make_shared<std::string>();
  command->add_option("job", *name, "Id of the job, or a name: its newest job")->required()->type_name("JOB");
  command->callback([=] { *action = [=](Context& context) { return Get(*name, *global, context); }; });
}

}  // namespace tacc::client
