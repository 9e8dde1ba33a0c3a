// taccctl down: stops what `up` started and removes its state.
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/taccctl/follow.h"
#include "client/taccctl/local/socket_address.h"
#include "client/taccctl/session/coordinator_client.h"
#include "client/taccctl/session/exit_code.h"
#include "client/taccctl/session/up_state.h"
#include "client/taccctl/show/message_json.h"
#include "client/taccctl/subcommands.h"

namespace tacc::client {
namespace {

constexpr double kCancelSeconds = 120;
constexpr int kStopMilliseconds = 10000;

// Stops jobs that have not ended, after a checkpoint; says which. Cancelled: interrupted before each was asked to. (An
// interrupt later leaves the waiting for checkpoints.)
absl::Status CancelJobs(const std::string& address, Context& context) {
  CoordinatorClient client(address, &context.interrupt);
  const absl::StatusOr<std::vector<v1::Job>> jobs = client.List(1000);
  if (!jobs.ok()) return absl::IsCancelled(jobs.status()) ? jobs.status() : absl::OkStatus();
  std::vector<std::string> stopped;
  for (const v1::Job& job : *jobs) {
    if (HasEnded(job.phase())) continue;
    const absl::StatusOr<v1::Job> cancelled = client.Cancel(job.id(), v1::CANCEL_MODE_CHECKPOINT);
    if (absl::IsCancelled(cancelled.status())) return cancelled.status();
    if (!cancelled.ok()) continue;
    if (HasEnded(cancelled->phase())) {
      context.err << "cancelled " << job.id() << ", which did not run" << std::endl;
    } else {
      stopped.push_back(job.id());
    }
  }
  if (stopped.empty()) return absl::OkStatus();
  context.err << "stopping " << absl::StrJoin(stopped, ", ") << " after a checkpoint" << std::endl;
  for (const std::string& id : stopped) {
    v1::WatchRequest request;
    request.set_job(id);
    const absl::Status status = client.Watch(request, kCancelSeconds, [](const v1::WatchResponse&) {});
    if (!status.ok()) break;
  }
  return absl::OkStatus();
}

// SIGTERM to all, SIGKILL to those that are still there after ten seconds.
void StopProcesses(const std::vector<UpProcess>& processes) {
  const auto signal_all = [&](int signal) {
    for (const UpProcess& process : processes) {
      if (IsRunning(process)) kill(process.pid, signal);
    }
  };
  const auto all_gone = [&](int milliseconds) {
    for (int waited = 0; waited <= milliseconds; waited += 20) {
      bool running = false;
      for (const UpProcess& process : processes) running = running || IsRunning(process);
      if (!running) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  };
  signal_all(SIGTERM);
  if (all_gone(kStopMilliseconds)) return;
  signal_all(SIGKILL);
  all_gone(kStopMilliseconds);
}

int Down(const GlobalOptions& global, Context& context) {
  const std::string directory = UpDirectory(context);
  const absl::StatusOr<UpState> state = ReadUpState(directory);
  if (!state.ok()) return Fail(state.status(), &context);
  const UpLock lock(directory);
  if (!lock.held())
    return Fail(absl::FailedPreconditionError(absl::StrCat("another `taccctl up` or `down` is at work in ", directory)),
                &context);
  if (const absl::Status asked = CancelJobs(state->address, context); !asked.ok())
    return Fail(absl::CancelledError("interrupted: nothing was stopped but jobs; run the command again"), &context);
  std::vector<UpProcess> workers, others;
  for (const UpProcess& process : state->processes)
    (absl::StartsWith(process.name, "worker-") ? workers : others).push_back(process);
  // Workers end their ranks; the coordinator hears of it.
  StopProcesses(workers);
  StopProcesses(others);
  RemoveSocketFolder(state->address);
  std::error_code error;
  std::filesystem::remove_all(directory, error);
  // The folders above, when nothing else is in them.
  std::error_code ignored;
  std::filesystem::remove(std::filesystem::path(directory).parent_path(), ignored);
  if (error)
    return Fail(absl::InternalError(absl::StrCat("cannot remove ", directory, ": ", error.message())), &context);
  if (global.form == OutputForm::kJson) {
    context.out << JsonLine({{"address", state->address}, {"stopped", state->processes.size()}});
  } else {
    context.err << "stopped the coordinator at " << state->address
                << " and its workers; checkpoints stay where they are" << std::endl;
  }
  return kExitOk;
}

}  // namespace

void AddDown(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* command = app->add_subcommand(
      "down", "Stop what `taccctl up` started, jobs after a checkpoint; their list goes, checkpoints stay");
  command->callback([=] { *action = [=](Context& context) { return Down(*global, context); }; });
}

}  // namespace tacc::client
