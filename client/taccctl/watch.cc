// taccctl watch JOB: follows a job; Ctrl-C detaches.
#include <memory>

#include "client/taccctl/follow.h"
#include "client/taccctl/session/coordinator_client.h"
#include "client/taccctl/subcommands.h"

namespace tacc::client {
namespace {

struct WatchOptions {
  std::string job;
  double timeout_seconds = 0;
};

int Watch(const WatchOptions& options, const GlobalOptions& global, Context& context) {
  const absl::StatusOr<Endpoint> endpoint = FindCoordinator(global, context);
  if (!endpoint.ok()) return Fail(endpoint.status(), &context);
  context.end_with_reader();
  CoordinatorClient client(*endpoint, &context.interrupt);
  const absl::StatusOr<v1::Job> job = client.Get(options.job);
  if (!job.ok()) return Fail(job.status(), &context);
  FollowOptions follow;
  follow.form = global.form;
  follow.timeout_seconds = options.timeout_seconds;
  return FollowExit(FollowJob(*job, follow, &client, &context), job->id(), global.form, &context);
}

}  // namespace

void AddWatch(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* command =
      app->add_subcommand("watch", "Follow a job to its end: events and metrics from its beginning; Ctrl-C detaches");
  const auto options = std::make_shared<WatchOptions>();
  command->add_option("job", options->job, "Id of the job, or a name: its newest job")->required()->type_name("JOB");
  command->add_option("--timeout", options->timeout_seconds, "Seconds to follow at most; exit code 7 after that")
      ->check(CLI::PositiveNumber);
  command->callback([=] { *action = [=](Context& context) { return Watch(*options, *global, context); }; });
}

}  // namespace tacc::client
