// taccctl events JOB: what happened to a job so far.
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

int Events(const std::string& job, const GlobalOptions& global, Context& context) {
  const absl::StatusOr<Endpoint> endpoint = FindCoordinator(global, context);
  if (!endpoint.ok()) return Fail(endpoint.status(), &context);
  CoordinatorClient client(*endpoint, &context.interrupt);
  v1::WatchRequest request;
  request.set_job(job);
  request.set_no_follow(true);
  request.set_no_metrics(true);
  std::vector<std::vector<std::string>> rows;
  const absl::Status status = client.Watch(request, 60, [&](const v1::WatchResponse& item) {
    if (!item.has_event()) return;
    const v1::JobEvent& event = item.event();
    if (global.form == OutputForm::kJson) context.out << JsonLine(MessageJson(event));
    // How far training was then, which is not what a message may tell of: a checkpoint is of an earlier step.
    rows.push_back({FormatTime(event.time()), event.attempt() > 0 ? absl::StrCat(event.attempt()) : "-",
                    event.step() > 0 ? absl::StrCat("step ", event.step()) : "-", event.type(), event.message()});
  });
  if (!status.ok()) return Fail(status, &context);
  if (global.form == OutputForm::kTable) PrintTable({"TIME", "ATTEMPT", "AT", "EVENT", "MESSAGE"}, rows, context.out);
  return kExitOk;
}

}  // namespace

void AddEvents(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* command = app->add_subcommand("events", "Show what happened to a job so far");
  const auto job = std::make_shared<std::string>();
  command->add_option("job", *job, "Id of the job, or a name: its newest job")->required()->type_name("JOB");
  command->callback([=] { *action = [=](Context& context) { return Events(*job, *global, context); }; });
}

}  // namespace tacc::client
