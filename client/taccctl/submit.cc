// taccctl submit JOB.YAML: hands a job to the coordinator, or with --local trains it on this machine.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/taccctl/follow.h"
#include "client/taccctl/local/devices.h"
#include "client/taccctl/local/enough_workers.h"
#include "client/taccctl/local/local_cluster.h"
#include "client/taccctl/local/op_libraries.h"
#include "client/taccctl/local/scratch_folder.h"
#include "client/taccctl/plan_request.h"
#include "client/taccctl/session/coordinator_client.h"
#include "client/taccctl/session/exit_code.h"
#include "client/taccctl/session/job_argument.h"
#include "client/taccctl/show/message_json.h"
#include "client/taccctl/show/sample.h"
#include "client/taccctl/show/units.h"
#include "client/taccctl/subcommands.h"
#include "jobfile/job_paths.h"
#include "machine/folder_lock.h"
#include "proto/tacc/v1/validate_job.h"

namespace tacc::client {
namespace {

struct SubmitOptions {
  JobArgument job;
  bool local = false;
  bool follow = false;
  double timeout_seconds = 0;
  std::string request_id;
  // Of each local worker; unset: an equal share.
  int threads = 0;
  std::string memory;
  std::string device = kAutoDevice;
  std::vector<std::string> op_libraries;
};

// Whether the coordinator is a process of this machine, so that the folders it sees are those seen here. An address
// does not tell: it may be a tunnel's end.
bool IsOnThisMachine(const v1::GetVersionResponse& coordinator) {
  std::error_code ignored;
  return coordinator.pid() > 0 && !coordinator.state_dir().empty() &&
         std::filesystem::exists(absl::StrCat("/proc/", coordinator.pid()), ignored) &&
         std::filesystem::exists(coordinator.state_dir(), ignored);
}

// Of a job that runs on this machine: what it reads is there, and data, model and layout can be, by the words of those
// who would refuse it later.
absl::Status CheckInput(const v1::JobSpec& spec, Context& context) {
  if (absl::Status paths = jobfile::CheckPaths(spec); !paths.ok()) return paths;
  return CheckJob(spec, context);
}

void PrintNext(const v1::Job& job, const GlobalOptions& global, Context& context) {
  const std::string command = CommandStart(global, context);
  context.err << "Next:\n"
              << "  " << command << " watch " << job.id() << "\n"
              << "  " << command << " get " << job.id() << "\n"
              << "  " << command << " logs --follow " << job.id() << "\n"
              << "  " << command << " cancel " << job.id() << std::endl;
}

int SubmitRemote(const SubmitOptions& options, const v1::JobSpec& spec, const GlobalOptions& global, Context& context) {
  const absl::StatusOr<Endpoint> endpoint = FindCoordinator(global, context);
  if (!endpoint.ok()) return Fail(endpoint.status(), &context);
  CoordinatorClient client(*endpoint, &context.interrupt);
  absl::Status input;
  bool is_here = false;
  if (const absl::StatusOr<v1::GetVersionResponse> coordinator = client.GetVersion(); coordinator.ok()) {
    is_here = IsOnThisMachine(*coordinator);
    input = is_here ? CheckInput(spec, context) : CheckJob(spec, context);
  }
  if (context.interrupt.count() > 0)
    return Fail(absl::CancelledError("interrupted: the job was not submitted"), &context);
  if (!input.ok() && is_here) return Fail(input, &context);
  if (!input.ok()) {
    context.err << "warning: " << std::string(input.message())
                << "\nThat is what this machine sees; the workers may see other folders, so the job is submitted"
                << std::endl;
  }
  const absl::StatusOr<v1::SubmitResponse> response =
      client.Submit(spec, options.request_id.empty() ? NewRequestId() : options.request_id);
  if (!response.ok()) return Fail(response.status(), &context);
  const v1::Job& job = response->job();
  if (global.form == OutputForm::kJson) {
    nlohmann::ordered_json line = {{"kind", "submitted"}};
    line.update(MessageJson(job));
    context.out << JsonLine(line) << std::flush;
  } else {
    context.out << job.id() << std::endl;
  }
  if (response->existed()) context.err << "the request id was known: this is the job that it made" << std::endl;
  PrintNext(job, global, context);
  context.err << HowToHaveEnoughWorkers(job, global, &client, context) << std::flush;
  if (!options.follow) return kExitOk;
  context.end_with_reader();
  FollowOptions follow;
  follow.form = global.form;
  follow.timeout_seconds = options.timeout_seconds;
  return FollowExit(FollowJob(job, follow, &client, &context), job.id(), global.form, &context);
}

// Where logs of the coordinator and the workers go after a failure, if they can.
std::string LocalLogs(const v1::JobSpec& spec) { return absl::StrCat(spec.checkpoint().dir(), "/logs/local"); }

absl::StatusOr<LaunchOptions> LocalOptions(const SubmitOptions& options, const v1::JobSpec& spec, int num_workers,
                                           ScratchFolder* scratch, Context& context) {
  LaunchOptions launch;
  launch.binary_dir = context.binary_dir;
  launch.directory = scratch->path();
  launch.keep_logs = [scratch, logs = LocalLogs(spec)] { return scratch->KeepLogs(logs); };
  absl::StatusOr<std::vector<std::string>> devices = ChooseDevices(options.device, num_workers, num_workers, context);
  if (!devices.ok()) return devices.status();
  launch.devices = *std::move(devices);
  const absl::StatusOr<WorkerShare> share = ShareFor(ThisMachine(), launch.devices, options.threads, options.memory);
  if (!share.ok()) return share.status();
  launch.share = *share;
  launch.op_libraries = WholePaths(options.op_libraries);
  return launch;
}

int StoppedBeforeItBegan(Context& context) {
  context.err << "stopped before the job began" << std::endl;
  return kExitJobCancelled;
}

int FollowLocal(const SubmitOptions& options, const v1::JobSpec& spec, const std::string& address, OutputForm form,
                Context& context) {
  CoordinatorClient client(address, &context.interrupt);
  if (context.interrupt.count() > 0) return StoppedBeforeItBegan(context);
  const absl::StatusOr<v1::SubmitResponse> response = client.Submit(spec, NewRequestId());
  if (absl::IsCancelled(response.status())) return StoppedBeforeItBegan(context);
  if (!response.ok())
    return Fail(context.interrupt.aborted().ok() ? response.status() : context.interrupt.aborted(), &context);
  const v1::Job& job = response->job();
  FollowOptions follow;
  follow.form = form;
  follow.timeout_seconds = options.timeout_seconds;
  using Answer = FollowOptions::Answer;
  bool timed_out = false;
  int last_said = 0;  // Interrupts.
  // A coordinator that does not answer may not have heard it; a further Ctrl-C leaves.
  const auto answer = [&](const absl::StatusOr<v1::Job>& cancelled, bool is_first) {
    if (cancelled.ok() || absl::IsCancelled(cancelled.status())) return Answer::kGoOn;  // Or interrupted once more.
    if (is_first) context.err << std::string(cancelled.status().message()) << std::endl;
    const bool has_answered = !absl::IsUnavailable(cancelled.status()) && !absl::IsDeadlineExceeded(cancelled.status());
    return has_answered ? Answer::kGoOn : Answer::kAskAgain;
  };
  follow.on_timeout = [&] {
    const bool is_first = !timed_out;
    timed_out = true;
    return answer(client.Cancel(job.id(), v1::CANCEL_MODE_CHECKPOINT), is_first);
  };
  follow.on_interrupt = [&](int count, bool has_trained) {
    if (count > 2) return Answer::kLeave;
    const bool gently = count == 1 && !timed_out, is_first = count > last_said;
    last_said = count;
    const auto say = [&] {
      if (!is_first) return;
      context.err << (gently ? "\nstopping after a checkpoint; again to stop at once" : "\nstopping at once")
                  << std::endl;
    };
    // The coordinator may take its time.
    if (has_trained) say();
    const absl::StatusOr<v1::Job> cancelled =
        client.Cancel(job.id(), gently ? v1::CANCEL_MODE_CHECKPOINT : v1::CANCEL_MODE_NOW);
    // One that did not run has ended: there is nothing to save.
    if (!has_trained && (!cancelled.ok() || !HasEnded(cancelled->phase()))) say();
    return answer(cancelled, is_first);
  };
  const absl::StatusOr<v1::Job> ended = FollowJob(job, follow, &client, &context);
  if (ended.ok()) {
    const int code = ReportOutcome(*ended, form, &context);
    if (code == kExitOk && form == OutputForm::kTable) ShowSample(*ended, &context);
    if (code == kExitJobCancelled && timed_out) {
      context.err << job.id() << " had not ended after " << options.timeout_seconds << " s: "
                  << (ended->has_last_checkpoint()
                          ? absl::StrCat("stopped after a checkpoint at step ", ended->last_checkpoint().step(),
                                         "; submit again to go on")
                          : "stopped, and nothing was saved; submit again to begin anew")
                  << std::endl;
      return kExitTimedOut;
    }
    if (code == kExitJobCancelled) {
      context.err << "Next:\n  the same command again "
                  << (ended->has_last_checkpoint() ? "goes on from the checkpoint"
                                                   : "begins the job anew; nothing was saved")
                  << std::endl;
    }
    return code;
  }
  if (absl::IsCancelled(ended.status())) {
    context.err << job.id() << " was stopped without a checkpoint" << std::endl;
    return kExitJobCancelled;
  }
  if (timed_out && absl::IsDeadlineExceeded(ended.status())) {
    context.err << job.id() << " had not ended after " << options.timeout_seconds << " s: stopped without a checkpoint"
                << std::endl;
    return kExitTimedOut;
  }
  return Fail(ended.status(), &context);
}

int SubmitLocal(const SubmitOptions& options, const v1::JobSpec& spec, const GlobalOptions& global, Context& context) {
  const absl::Status input = CheckInput(spec, context);
  if (context.interrupt.count() > 0) return StoppedBeforeItBegan(context);
  if (!input.ok()) return Fail(input, &context);
  const absl::StatusOr<std::unique_ptr<ScratchFolder>> scratch = ScratchFolder::Make(context.TemporaryFolder());
  if (!scratch.ok()) return Fail(scratch.status(), &context);
  // Where the job does not say, one worker: a GPU, or a CPU worker with all threads.
  const int num_workers = std::max(1, RequestedWorld(spec));
  const absl::StatusOr<LaunchOptions> launch = LocalOptions(options, spec, num_workers, scratch->get(), context);
  if (context.interrupt.count() > 0) return StoppedBeforeItBegan(context);
  if (!launch.ok()) return Fail(launch.status(), &context);
  if (const std::string warning =
          TurnsWarning(ThisMachine(), num_workers, launch->share.threads, "resources.workers and the sizes under dist");
      !warning.empty())
    context.err << warning << std::endl;
  // As the worker would make it: this user's alone.
  const mode_t old_mask = umask(077);
  std::error_code ignored;  // The worker will say it.
  std::filesystem::create_directories(spec.checkpoint().dir(), ignored);
  const absl::StatusOr<std::unique_ptr<FolderLock>> lock =
      FolderLock::Take(spec.checkpoint().dir(), FolderLock::Kind::kAlone, absl::StrCat("job ", spec.name()));
  umask(old_mask);
  if (!lock.ok()) return Fail(lock.status(), &context);
  int code = kExitError;
  {
    const absl::StatusOr<std::unique_ptr<LocalCluster>> cluster = LocalCluster::Start(*launch, &context.interrupt);
    if (absl::IsCancelled(cluster.status())) {
      code = StoppedBeforeItBegan(context);
    } else if (!cluster.ok()) {
      code = Fail(cluster.status(), &context);
    } else {
      (*lock)->SetCoordinator((*cluster)->address());
      code = FollowLocal(options, spec, (*cluster)->address(), global.form, context);
    }
  }
  // Those that a message has named, too, as they are now.
  if (code == kExitJobFailed || code == kExitError || (*scratch)->has_kept_logs())
    context.err << "other logs:  " << (*scratch)->KeepLogs(LocalLogs(spec)) << std::endl;
  return code;
}

int Submit(const SubmitOptions& options, const GlobalOptions& global, Context& context) {
  if (!options.local && (options.threads > 0 || !options.memory.empty() || options.device != kAutoDevice ||
                         !options.op_libraries.empty())) {
    return Fail(absl::InvalidArgumentError("--device, --threads, --memory and --op-library are of the workers that "
                                           "--local starts; give --local as well"),
                &context);
  }
  if (options.local && (!global.address.empty() || !options.request_id.empty())) {
    return Fail(
        absl::InvalidArgumentError("--local starts a coordinator of its own; leave --address and --request-id out"),
        &context);
  }
  const absl::StatusOr<v1::JobSpec> spec = LoadJob(options.job, context);
  if (!spec.ok()) return Fail(spec.status(), &context);
  return options.local ? SubmitLocal(options, *spec, global, context) : SubmitRemote(options, *spec, global, context);
}

}  // namespace

void AddSubmit(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* command = app->add_subcommand("submit", "Submit a job file; prints the job's id");
  const auto options = std::make_shared<SubmitOptions>();
  AddJobArgument(command, &options->job);
  command->add_flag("--local", options->local,
                    "Train on this machine: starts a coordinator and workers for this job and follows it; Ctrl-C stops "
                    "after a checkpoint");
  command->add_flag("--follow", options->follow, "Follow the job to its end and exit with its outcome");
  command
      ->add_option("--timeout", options->timeout_seconds,
                   "Seconds to follow at most; exit code 7 after that. With --local the job is stopped then, after a "
                   "checkpoint")
      ->check(CLI::PositiveNumber);
  command->add_option("--request-id", options->request_id,
                      "Submitting again with the same id and job gives the same job (default: a new one)");
  command
      ->add_option("--device", options->device,
                   "Of each local worker: cuda (a GPU each), cpu, or auto: GPUs if there are enough")
      ->check(CLI::IsMember({kAutoDevice, kCpuDevice, kCudaDevice}))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Threads of each local worker (default: the CPUs are shared out)")
      ->check(CLI::Range(1, 4096));
  command->add_option(
      "--memory", options->memory,
      "Memory of each local worker, as 4GiB (default: the free memory is shared out; of a GPU what is free there)");
  AddOpLibraries(command, &options->op_libraries);
  command->callback([=] { *action = [=](Context& context) { return Submit(*options, *global, context); }; });
}

}  // namespace tacc::client
