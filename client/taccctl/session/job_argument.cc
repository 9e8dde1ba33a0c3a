#include "client/taccctl/session/job_argument.h"

#include "absl/status/status.h"

namespace tacc::client {

void AddSetOption(CLI::App* command, JobArgument* argument) {
  command
      ->add_option("--set", argument->sets,
                   "A field of the job, over what the file says: train.max_steps=200, dist.topology=[dp, fsdp], "
                   "memory=null (not given); may be repeated")
      ->type_name("FIELD=VALUE")
      ->allow_extra_args(false);
}

void AddJobArgument(CLI::App* command, JobArgument* argument) {
  command->add_option("file", argument->file, "The job file (docs/job.md); - reads it from stdin")
      ->required()
      ->type_name("JOB.YAML");
  AddSetOption(command, argument);
}

absl::StatusOr<v1::JobSpec> LoadJob(const JobArgument& argument, Context& context) {
  jobfile::JobFileOptions options;
  options.sets = argument.sets;
  // A terminal or a pipe may say nothing for ever.
  const Interrupt::Hook hook(&context.interrupt, context.interrupt.count(), context.end_interrupted);
  absl::StatusOr<v1::JobSpec> spec = argument.file == "-" ? jobfile::ReadJobFile(context.in, "stdin", ".", options)
                                                          : jobfile::LoadJobFile(argument.file, options);
  if (!spec.ok()) return absl::InvalidArgumentError(spec.status().message());
  return spec;
}

}  // namespace tacc::client
