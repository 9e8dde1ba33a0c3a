// taccctl export: a checkpoint as a plain Hugging Face folder.
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/taccctl/follow.h"
#include "client/taccctl/local/tool.h"
#include "client/taccctl/session/coordinator_client.h"
#include "client/taccctl/session/exit_code.h"
#include "client/taccctl/show/message_json.h"
#include "client/taccctl/subcommands.h"

namespace tacc::client {
namespace {

constexpr double kExportSeconds = 3600;

struct ExportOptions {
  std::string source;
  std::string out;
  std::string model;
  std::string data;
  int step = 0;
  bool merge = false;
};

struct Source {
  std::string checkpoint;
  std::string model;
};

absl::StatusOr<Source> FromJob(const ExportOptions& options, const GlobalOptions& global, Context& context) {
  const absl::StatusOr<Endpoint> endpoint = FindCoordinator(global, context);
  if (!endpoint.ok()) return endpoint.status();
  CoordinatorClient client(*endpoint, &context.interrupt);
  const absl::StatusOr<v1::Job> job = client.Get(options.source);
  if (!job.ok()) return job.status();
  if (job->checkpoints().empty())
    return absl::FailedPreconditionError(absl::StrCat(job->id(), " has no checkpoint yet"));
  const v1::Checkpoint* chosen = &job->checkpoints(job->checkpoints_size() - 1);
  if (options.step > 0) {
    chosen = nullptr;
    std::vector<int64_t> steps;
    for (const v1::Checkpoint& checkpoint : job->checkpoints()) {
      steps.push_back(checkpoint.step());
      if (checkpoint.step() == options.step) chosen = &checkpoint;
    }
    if (chosen == nullptr)
      return absl::NotFoundError(absl::StrCat(job->id(), " has no checkpoint of step ", options.step, "; there are ",
                                              absl::StrJoin(steps, ", ")));
  }
  return Source{absl::StrCat(job->checkpoint_dir(), "/", chosen->name()), job->spec().model().path()};
}

int Export(const ExportOptions& options, const GlobalOptions& global, Context& context) {
  Source source{options.source, options.model};
  std::error_code ignored;
  if (!LooksLikeFile(options.source)) {
    const absl::StatusOr<Source> found = FromJob(options, global, context);
    if (!found.ok()) return Fail(found.status(), &context);
    source = *found;
    if (!options.model.empty()) source.model = options.model;
  } else if (options.step > 0) {
    return Fail(
        absl::InvalidArgumentError("--step chooses among a job's checkpoints; give the folder of the checkpoint alone"),
        &context);
  }
  std::vector<std::string> arguments = {"export", "--checkpoint", source.checkpoint, "--out", options.out};
  // A model that was written as a graph has no folder.
  if (!source.model.empty()) arguments.insert(arguments.end(), {"--model", source.model});
  // Without it the checkpoint says where its data was.
  if (!options.data.empty()) arguments.insert(arguments.end(), {"--data", options.data});
  if (options.merge) arguments.push_back("--merge");
  const absl::StatusOr<std::string> out = RunTool("tacc-data", arguments, kExportSeconds, context);
  if (!out.ok()) return Fail(out.status(), &context);
  const std::string path = std::filesystem::absolute(options.out, ignored).lexically_normal().string();
  if (global.form == OutputForm::kJson) {
    context.out << JsonLine({{"path", path}, {"checkpoint", source.checkpoint}});
  } else {
    context.out << path << "\n";
  }
  return kExitOk;
}

}  // namespace

void AddExport(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* command =
      app->add_subcommand("export", "Write a checkpoint as a plain Hugging Face folder; prints its path");
  const auto options = std::make_shared<ExportOptions>();
  command
      ->add_option("source", options->source,
                   "Id or name of a job (its newest checkpoint), or the folder of a checkpoint")
      ->required()
      ->type_name("JOB|DIR");
  command->add_option("--out", options->out, "Folder to write")->required()->type_name("DIR");
  command
      ->add_option("--model", options->model,
                   "Folder of the model that was trained (default: the job's, or the checkpoint's)")
      ->type_name("DIR");
  command
      ->add_option("--data", options->data,
                   "Folder of the data, for its tokenizer where the model has none (default: the checkpoint's)")
      ->type_name("DIR");
  command->add_option("--step", options->step, "The job's checkpoint of this step")->check(CLI::PositiveNumber);
  command->add_flag("--merge", options->merge,
                    "Of a training of adapters: the whole model with the adapters merged into it, not the adapters");
  command->callback([=] { *action = [=](Context& context) { return Export(*options, *global, context); }; });
}

}  // namespace tacc::client
