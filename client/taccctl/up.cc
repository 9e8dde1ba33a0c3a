// taccctl up: a coordinator and workers on this machine that stay. Run again, it starts what has ended.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/taccctl/follow.h"
#include "client/taccctl/local/devices.h"
#include "client/taccctl/local/launch.h"
#include "client/taccctl/local/op_libraries.h"
#include "client/taccctl/local/socket_address.h"
#include "client/taccctl/session/coordinator_client.h"
#include "client/taccctl/session/exit_code.h"
#include "client/taccctl/session/up_state.h"
#include "client/taccctl/show/message_json.h"
#include "client/taccctl/show/table.h"
#include "client/taccctl/show/units.h"
#include "client/taccctl/subcommands.h"
#include "machine/loopback.h"
#include "machine/unix_socket.h"

namespace tacc::client {
namespace {

constexpr int kCpuWorkers = 2;

struct UpOptions {
  std::string listen;          // Empty: a Unix socket.
  bool insecure = false;       // It may be a port.
  std::string metrics_listen;  // Empty: no metrics.
  int workers = 0;
  int threads = 0;
  std::string memory;
  std::string device = kAutoDevice;
  std::vector<std::string> op_libraries;
  // Some option was given.
  bool any_given = false;
};

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 && name[0] != 0 ? name : "local";
}

// What one `up` starts; stopped again unless it is released.
struct Members {
  std::vector<std::unique_ptr<ChildProcess>> processes;
  bool released = false;
  ~Members() {
    if (released) return;
    for (auto it = processes.rbegin(); it != processes.rend(); ++it) (*it)->Signal(SIGTERM);
    for (auto it = processes.rbegin(); it != processes.rend(); ++it) {
      if ((*it)->WaitForEnd(10).has_value()) continue;
      (*it)->Signal(SIGKILL);
      (*it)->WaitForEnd(10);
    }
  }
};

// Where worker `index` serves /metrics: at the ports after the coordinator's, or at a free one if that does.
absl::StatusOr<std::string> WorkerMetrics(const std::string& coordinator, int index) {
  const size_t colon = coordinator.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(coordinator.substr(colon + 1), &port) || port < 0 ||
      port + 1 + index > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("--metrics-listen ", coordinator, ": give HOST:PORT, with room for ",
                                                   index + 1, " more ports up to 65535, those of the workers"));
  }
  return absl::StrCat(coordinator.substr(0, colon + 1), port == 0 ? 0 : port + 1 + index);
}

// Others than this machine's users do not read the metrics of `up`.
absl::Status CheckMetrics(const std::string& address) {
  absl::string_view host = absl::string_view(address).substr(0, address.rfind(':'));
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  if (IsLoopback(std::string(host))) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--metrics-listen ", address, ": give an address of loopback, as 127.0.0.1:7071; metrics for other ",
      "machines have a coordinator and workers that are started by hand, with --insecure (docs/metrics.md)"));
}

// What an `up` with these options starts; nothing of it runs yet.
absl::StatusOr<UpState> NewState(const UpOptions& options, const std::string& directory, Context& context) {
  UpState state;
  if (!options.listen.empty() && !IsUnixAddress(options.listen) && !options.insecure) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--listen ", options.listen, ": every user of this machine can reach a port, and run jobs as you; ",
        "leave --listen out for a socket that only you can reach, or add --insecure"));
  }
  state.metrics_address = options.metrics_listen;
  state.worker_prefix = HostName();
  absl::StatusOr<std::vector<std::string>> devices =
      ChooseDevices(options.device, options.workers, kCpuWorkers, context);
  if (!devices.ok()) return devices.status();
  state.devices = *std::move(devices);
  const absl::StatusOr<WorkerShare> share = ShareFor(ThisMachine(), state.devices, options.threads, options.memory);
  if (!share.ok()) return share.status();
  state.threads = share->threads;
  state.memory_bytes = share->memory_bytes;
  state.op_libraries = WholePaths(options.op_libraries);
  state.processes.push_back({"coordinator"});
  for (size_t i = 0; i < state.devices.size(); ++i) {
    state.processes.push_back({absl::StrCat("worker-", i)});
    if (options.metrics_listen.empty()) continue;
    absl::StatusOr<std::string> metrics = WorkerMetrics(options.metrics_listen, static_cast<int>(i));
    if (!metrics.ok()) return metrics.status();
    state.worker_metrics.push_back(*std::move(metrics));
  }
  if (!options.metrics_listen.empty()) {
    if (absl::Status status = CheckMetrics(options.metrics_listen); !status.ok()) return status;
  }
  absl::StatusOr<std::string> address =
      options.listen.empty() ? NewSocketAddress(directory) : absl::StatusOr<std::string>(options.listen);
  if (!address.ok()) return address.status();
  state.address = *std::move(address);
  return state;
}

// Starts the processes of `state` that do not run, and waits until they are ready.
absl::Status StartEnded(const std::string& directory, Context& context, UpState* state, Members* members) {
  LaunchOptions launch;
  launch.binary_dir = context.binary_dir;
  launch.directory = directory;
  launch.lifetime = ProcessOptions::Lifetime::kDetached;
  launch.worker_prefix = state->worker_prefix;
  launch.share.threads = state->threads;
  launch.share.memory_bytes = state->memory_bytes;
  launch.devices = state->devices;
  launch.worker_metrics = state->worker_metrics;
  launch.op_libraries = state->op_libraries;
  launch.job_number_file = JobNumberFile(context);
  std::vector<std::pair<int, ChildProcess*>> workers;
  for (size_t i = 0; i < state->processes.size(); ++i) {
    UpProcess& process = state->processes[i];
    if (IsRunning(process)) continue;
    const int worker = static_cast<int>(i) - 1;
    if (i == 0) {
      absl::StatusOr<LaunchedCoordinator> coordinator =
          LaunchCoordinator(launch, state->address, state->metrics_address);
      if (!coordinator.ok()) return coordinator.status();
      state->address = coordinator->address;
      members->processes.push_back(std::move(coordinator->process));
    } else {
      absl::StatusOr<std::unique_ptr<ChildProcess>> started = LaunchWorker(launch, state->address, worker);
      if (!started.ok()) return started.status();
      members->processes.push_back(*std::move(started));
      workers.emplace_back(worker, members->processes.back().get());
    }
    process = LookAtProcess(process.name, members->processes.back()->pid());
  }
  for (const auto& [worker, process] : workers) {
    if (context.interrupt.count() > 0) return absl::CancelledError("interrupted; what was started is stopped again");
    const absl::Status attached = WaitUntilAttached(launch, worker, process);
    if (!attached.ok()) return attached;
    if (!state->worker_metrics.empty()) state->worker_metrics[worker] = WorkerMetricsAddress(launch, worker);
  }
  return absl::OkStatus();
}

int Up(const UpOptions& options, const GlobalOptions& global, Context& context) {
  const std::string directory = UpDirectory(context);
  std::error_code ignored;  // It may not be there yet.
  std::filesystem::permissions(directory, std::filesystem::perms::owner_all, ignored);
  if (const absl::Status made = MakePrivateFolder(directory); !made.ok())
    return Fail(absl::InternalError(absl::StrCat(made.message(), "; set XDG_STATE_HOME")), &context);
  const UpLock lock(directory);
  if (!lock.held())
    return Fail(absl::FailedPreconditionError(absl::StrCat("another `taccctl up` or `down` is at work in ", directory)),
                &context);
  absl::StatusOr<UpState> state = ReadUpState(directory);
  if (!state.ok() && !absl::IsNotFound(state.status())) return Fail(state.status(), &context);
  const std::vector<std::string> ended = state.ok() ? EndedProcesses(*state) : std::vector<std::string>();
  const bool running = state.ok() && ended.size() < state->processes.size();
  if (running && (ended.empty() || options.any_given)) {
    return Fail(
        absl::FailedPreconditionError(absl::StrCat(
            "already up at ", state->address,
            ended.empty() ? "" : absl::StrCat(" but for ", absl::StrJoin(ended, ", ")), "; stop it with `taccctl down`",
            ended.empty() ? "" : ", or start again what has ended with `taccctl up` without options")),
        &context);
  }
  if (!running) {
    if (state.ok()) RemoveSocketFolder(state->address);
    state = NewState(options, directory, context);
  }
  if (!state.ok()) return Fail(state.status(), &context);
  if (const std::string warning = TurnsWarning(ThisMachine(), static_cast<int>(state->processes.size()) - 1,
                                               state->threads, "--workers and --threads");
      !warning.empty())
    context.err << warning << std::endl;
  Members members;
  if (const absl::Status started = StartEnded(directory, context, &*state, &members); !started.ok()) {
    if (!running) RemoveSocketFolder(state->address);
    return Fail(started, &context);
  }
  CoordinatorClient client(state->address, &context.interrupt);
  if (const absl::StatusOr<v1::GetVersionResponse> version = client.GetVersion(); version.ok())
    state->metrics_address = version->metrics_address();
  if (const absl::Status written = WriteUpState(directory, *state); !written.ok()) return Fail(written, &context);
  members.released = true;
  const std::string& metrics = state->metrics_address;
  const size_t num_workers = state->processes.size() - 1;
  if (running) context.err << "started again: " << absl::StrJoin(ended, ", ") << std::endl;
  if (global.form == OutputForm::kJson) {
    context.out << JsonLine({{"address", state->address},
                             {"metrics_address", metrics},
                             {"worker_metrics_addresses", state->worker_metrics},
                             {"workers", num_workers},
                             {"devices", state->devices},
                             {"state_dir", directory}});
  } else {
    PrintFields(
        {{"coordinator", state->address},
         {"metrics", metrics.empty() ? "" : absl::StrCat("http://", metrics, "/metrics")},
         {"workers' metrics", absl::StrJoin(state->worker_metrics, ", ",
                                            [](std::string* out, const std::string& address) {
                                              absl::StrAppend(out, "http://", address, "/metrics");
                                            })},
         {"workers", absl::StrCat(num_workers, " x ", state->threads, " threads, ",
                                  state->memory_bytes > 0 ? FormatBytes(static_cast<double>(state->memory_bytes))
                                                          : "the memory that is free")},
         {"devices", absl::StrJoin(state->devices, ", ")},
         {"logs", directory}},
        context.out);
  }
  context.err << "Next:\n";
  for (const char* command : {"submit JOB.YAML", "workers", "down"})
    context.err << "  " << context.program << " " << command << "\n";
  context.err << std::flush;
  return kExitOk;
}

}  // namespace

void AddUp(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* command =
      app->add_subcommand("up",
                          "Start a coordinator and workers on this machine; they stay until `taccctl down`. Run again "
                          "without options it starts those that have ended");
  const auto options = std::make_shared<UpOptions>();
  CLI::Option* listen = command->add_option(
      "--listen", options->listen,
      "HOST:PORT of the coordinator, port 0 for a free one, which every user of this machine can reach (--insecure); "
      "or unix:/PATH (default: a Unix socket in the state folder, for this user alone)");
  command->add_flag("--insecure", options->insecure, "Allow a port, at which whoever reaches it can run jobs as you")
      ->needs(listen);
  command->add_option("--metrics-listen", options->metrics_listen,
                      "HOST:PORT of the coordinator's /metrics; workers take the ports after it. Port 0: free ones. "
                      "Every user of this machine can read them (default: none)");
  command
      ->add_option("--device", options->device,
                   "Of each worker: cuda (a GPU each), cpu, or auto: GPUs if there are enough")
      ->check(CLI::IsMember({kAutoDevice, kCpuDevice, kCudaDevice}))
      ->capture_default_str();
  command->add_option("--workers", options->workers, "Number of workers (default: one for each GPU, or 2 on CPUs)")
      ->check(CLI::Range(1, 256));
  command->add_option("--threads", options->threads, "Threads of each worker (default: the CPUs are shared out)")
      ->check(CLI::Range(1, 4096));
  command->add_option(
      "--memory", options->memory,
      "Memory of each worker, as 4GiB (default: the free memory is shared out; of a GPU what is free there)");
  AddOpLibraries(command, &options->op_libraries);
  command->callback([=] {
    for (const CLI::Option* option : command->get_options()) {
      if (option != command->get_help_ptr() && option->count() > 0) options->any_given = true;
    }
    *action = [=](Context& context) { return Up(*options, *global, context); };
  });
}

}  // namespace tacc::client
