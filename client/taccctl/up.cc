// taccctl up: a coordinator and workers on this machine that stay.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/taccctl/coordinator_client.h"
#include "client/taccctl/exit_code.h"
#include "client/taccctl/follow.h"
#include "client/taccctl/launch.h"
#include "client/taccctl/message_json.h"
#include "client/taccctl/subcommands.h"
#include "client/taccctl/table.h"
#include "client/taccctl/units.h"
#include "client/taccctl/up_state.h"

namespace tacc::client {
namespace {

struct UpOptions {
  std::string listen = "127.0.0.1:7070";
  std::string metrics_listen = "127.0.0.1:7071";
  int workers = 2;
  int threads = 0;
  std::string memory;
};

// Held while a command changes what is up.
class UpLock {
 public:
  explicit UpLock(const std::string& directory)
      : fd_(open((directory + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    held_ = fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) == 0;
  }
  ~UpLock() {
    if (fd_ >= 0) close(fd_);
  }
  bool held() const { return held_; }

 private:
  const int fd_;
  bool held_ = false;
};

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 && name[0] != 0 ? name : "local";
}

// All processes of one `up`; stopped again unless they are released.
struct Members {
  std::vector<std::pair<std::string, std::unique_ptr<ChildProcess>>> processes;
  bool released = false;
  ~Members() {
    if (released) return;
    for (auto it = processes.rbegin(); it != processes.rend(); ++it) it->second->Signal(SIGTERM);
    for (auto it = processes.rbegin(); it != processes.rend(); ++it) {
      if (it->second->Wait(10)) continue;
      it->second->Signal(SIGKILL);
      it->second->Wait(10);
    }
  }
};

absl::StatusOr<std::string> StartAll(const UpOptions& options, const LaunchOptions& launch, Context& context,
                                     Members* members) {
  absl::StatusOr<LaunchedCoordinator> coordinator = LaunchCoordinator(launch, options.listen, options.metrics_listen);
  if (!coordinator.ok()) return coordinator.status();
  members->processes.emplace_back("coordinator", std::move(coordinator->process));
  for (int i = 0; i < options.workers; ++i) {
    absl::StatusOr<std::unique_ptr<ChildProcess>> worker = LaunchWorker(launch, coordinator->address, i);
    if (!worker.ok()) return worker.status();
    members->processes.emplace_back(absl::StrCat("worker-", i), *std::move(worker));
  }
  for (int i = 0; i < options.workers; ++i) {
    if (context.interrupt.count() > 0) return absl::CancelledError("interrupted; what was started is stopped again");
    const absl::Status attached =
        WaitUntilAttached(launch, i, members->processes[static_cast<size_t>(i) + 1].second.get());
    if (!attached.ok()) return attached;
  }
  return coordinator->address;
}

int Up(const UpOptions& options, const GlobalOptions& global, Context& context) {
  const std::string directory = UpDirectory(context);
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error)
    return Fail(
        absl::InternalError(absl::StrCat("cannot make ", directory, ": ", error.message(), "; set XDG_STATE_HOME")),
        &context);
  std::filesystem::permissions(directory, std::filesystem::perms::owner_all, error);
  const UpLock lock(directory);
  if (!lock.held())
    return Fail(absl::InvalidArgumentError(absl::StrCat("another `taccctl up` or `down` is at work in ", directory)),
                &context);
  const absl::StatusOr<UpState> before = ReadUpState(directory);
  if (before.ok() && std::any_of(before->processes.begin(), before->processes.end(), IsRunning)) {
    return Fail(
        absl::InvalidArgumentError(absl::StrCat("already up at ", before->address, "; stop it with `taccctl down`")),
        &context);
  }
  LaunchOptions launch;
  launch.binary_dir = context.binary_dir;
  launch.directory = directory;
  launch.lifetime = Lifetime::kDetached;
  launch.worker_prefix = HostName();
  launch.share = ShareOut(ThisMachine(), options.workers);
  if (options.threads > 0) launch.share.threads = options.threads;
  if (!options.memory.empty()) {
    const absl::StatusOr<int64_t> memory = ParseBytes(options.memory);
    if (!memory.ok())
      return Fail(absl::InvalidArgumentError(absl::StrCat("--memory: ", memory.status().message())), &context);
    launch.share.memory_bytes = *memory;
  }
  Members members;
  const absl::StatusOr<std::string> address = StartAll(options, launch, context, &members);
  if (!address.ok()) return Fail(address.status(), &context);
  UpState state;
  state.address = *address;
  for (const auto& [name, process] : members.processes) state.processes.push_back(LookAtProcess(name, process->pid()));
  const absl::Status written = WriteUpState(directory, state);
  if (!written.ok()) return Fail(written, &context);
  members.released = true;
  CoordinatorClient client(*address, &context.interrupt);
  const absl::StatusOr<v1::GetVersionResponse> version = client.GetVersion();
  const std::string metrics = version.ok() ? version->metrics_address() : "";
  if (global.form == OutputForm::kJson) {
    context.out << JsonLine(
        {{"address", *address}, {"metrics_address", metrics}, {"workers", options.workers}, {"state_dir", directory}});
  } else {
    PrintFields({{"coordinator", *address},
                 {"metrics", metrics.empty() ? "" : absl::StrCat("http://", metrics, "/metrics")},
                 {"workers", absl::StrCat(options.workers, " x ", launch.share.threads, " threads, ",
                                          FormatBytes(static_cast<double>(launch.share.memory_bytes)))},
                 {"logs", directory}},
                context.out);
  }
  context.err << "Next:\n  taccctl submit JOB.YAML\n  taccctl workers\n  taccctl down" << std::endl;
  return kExitOk;
}

}  // namespace

void AddUp(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* command =
      app->add_subcommand("up", "Start a coordinator and CPU workers on this machine; they stay until `taccctl down`");
  const auto options = std::make_shared<UpOptions>();
  command->add_option("--listen", options->listen, "HOST:PORT of the coordinator, port 0 for a free one")
      ->capture_default_str();
  command->add_option("--metrics-listen", options->metrics_listen, "HOST:PORT of /metrics, port 0 for a free one")
      ->capture_default_str();
  command->add_option("--workers", options->workers, "Number of workers")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  command->add_option("--threads", options->threads, "Threads of each worker (default: the CPUs are shared out)")
      ->check(CLI::Range(1, 4096));
  command->add_option("--memory", options->memory,
                      "Memory of each worker, as 4GiB (default: the free memory is shared out)");
  command->callback([=] { *action = [=](Context& context) { return Up(*options, *global, context); }; });
}

}  // namespace tacc::client
