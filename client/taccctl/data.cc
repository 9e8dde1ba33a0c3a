// taccctl data show: the token ids of a step's global batch.
#include <filesystem>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/taccctl/follow.h"
#include "client/taccctl/local/tool.h"
#include "client/taccctl/session/coordinator_client.h"
#include "client/taccctl/session/exit_code.h"
#include "client/taccctl/session/job_argument.h"
#include "client/taccctl/subcommands.h"

namespace tacc::client {
namespace {

struct DataShowOptions {
  // Of a job file, or the id or name of a job.
  JobArgument job;
  int step = 1;
  int global_batch_size = 0;
};

// What decides the order of the samples.
struct Order {
  std::string path;
  int seq_len = 0;
  int global_batch_size = 0;
  int seed = 0;
};

Order OrderOf(const v1::JobSpec& spec) {
  return {spec.data().path(), spec.data().seq_len(), spec.train().global_batch_size(), spec.train().seed()};
}

absl::StatusOr<Order> FindOrder(const JobArgument& argument, const GlobalOptions& global, Context& context) {
  const std::string& name = argument.file;
  if (name == "-" || LooksLikeFile(name)) {
    const absl::StatusOr<v1::JobSpec> spec = LoadJob(argument, context);
    if (!spec.ok()) return spec.status();
    return OrderOf(*spec);
  }
  if (!argument.sets.empty())
    return absl::InvalidArgumentError(absl::StrCat("--set is of a job file; \"", name, "\" is the name of a job"));
  const absl::StatusOr<Endpoint> endpoint = FindCoordinator(global, context);
  if (!endpoint.ok()) return endpoint.status();
  CoordinatorClient client(*endpoint, &context.interrupt);
  const absl::StatusOr<v1::Job> job = client.Get(name);
  if (!job.ok()) return job.status();
  Order order = OrderOf(job->spec());
  // As planned, where the job file did not say.
  if (job->has_plan()) {
    order.seq_len = job->plan().seq_len();
    order.global_batch_size = job->plan().global_batch_size();
  }
  return order;
}

int DataShow(const DataShowOptions& options, const GlobalOptions& global, Context& context) {
  absl::StatusOr<Order> order = FindOrder(options.job, global, context);
  if (!order.ok()) return Fail(order.status(), &context);
  if (options.global_batch_size > 0) order->global_batch_size = options.global_batch_size;
  if (order->global_batch_size < 1) {
    return Fail(absl::InvalidArgumentError("train.global_batch_size is the planner's to decide; give "
                                           "--global-batch-size, or the id of a job that was planned"),
                &context);
  }
  std::vector<std::string> arguments = {"show",
                                        "--data",
                                        order->path,
                                        "--global-batch-size",
                                        absl::StrCat(order->global_batch_size),
                                        "--seed",
                                        absl::StrCat(order->seed),
                                        "--step",
                                        absl::StrCat(options.step)};
  if (order->seq_len > 0) arguments.insert(arguments.end(), {"--seq-len", absl::StrCat(order->seq_len)});
  if (global.form == OutputForm::kJson) arguments.push_back("--json");
  const absl::StatusOr<std::string> out = RunTool("tacc-data", arguments, 600, context);
  if (!out.ok()) return Fail(out.status(), &context);
  context.out << *out;
  return kExitOk;
}

}  // namespace

void AddData(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* data = app->add_subcommand("data", "Look at training data");
  data->require_subcommand(1);
  data->fallthrough();
  CLI::App* command = data->add_subcommand("show", "Print the token ids of the global batch of a step, one row a line");
  command->fallthrough();
  const auto options = std::make_shared<DataShowOptions>();
  command->add_option("job", options->job.file, "Id or name of a job, or a job file (- reads it from stdin)")
      ->required()
      ->type_name("JOB|JOB.YAML");
  AddSetOption(command, &options->job);
  command->add_option("--step", options->step, "The step; 1 is the first")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--global-batch-size", options->global_batch_size,
                   "Rows of a batch, where a job file leaves it to the planner")
      ->check(CLI::PositiveNumber);
  command->callback([=] { *action = [=](Context& context) { return DataShow(*options, *global, context); }; });
}

}  // namespace tacc::client
