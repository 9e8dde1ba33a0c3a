// tacc-coordinator: takes jobs, compiles them, drives workers.
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "CLI/CLI.hpp"
#include "confinement/confine.h"
#include "coordinator/backup_command.h"
#include "coordinator/init_command.h"
#include "coordinator/kubernetes/token_review.h"
#include "coordinator/service/server.h"
#include "failpoint/failpoint.h"
#include "machine/core_files.h"
#include "machine/exit_code.h"
#include "machine/machine.h"
#include "spdlog/sinks/stdout_color_sinks.h"
#include "spdlog/spdlog.h"

namespace {

constexpr int kMappedBytes = 64 << 10;

int Fail(const std::string& message, int code) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  return code;
}

std::string DefaultStateDir() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && state[0] == '/') return std::string(state) + "/tacc/coordinator";
  const char* home = std::getenv("HOME");
  return std::string(home != nullptr ? home : "/var/lib") + "/.local/state/tacc/coordinator";
}

absl::StatusOr<std::shared_ptr<tacc::identity::TokenReviewer>> ReadReviewer(const std::string& path,
                                                                            const std::string& tls_dir) {
  if (tls_dir.empty()) return absl::InvalidArgumentError("tokens go over TLS alone; give --tls-dir");
  const auto tokens = tacc::coordinator::ReadKubernetesTokens(path);
  if (!tokens.ok()) return tokens.status();
  return tacc::coordinator::MakeTokenReviewer(*tokens);
}

// What ends the process: a signal, the end of the parent, a client's Shutdown, or a failure.
class StopRequest {
 public:
  StopRequest() : event_(eventfd(0, EFD_CLOEXEC)) {}
  void Set(const absl::Status& status) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (status_.ok()) status_ = status;
    }
    const uint64_t one = 1;
    if (write(event_, &one, sizeof(one)) < 0) std::_Exit(1);
  }
  absl::Status Wait(int signal_fd, int parent_fd) {
    while (true) {
      // A negative descriptor is ignored.
      pollfd fds[3] = {{event_, POLLIN, 0}, {signal_fd, POLLIN, 0}, {parent_fd, POLLIN, 0}};
      poll(fds, 3, -1);
      if (fds[0].revents != 0) {
        std::lock_guard<std::mutex> lock(mutex_);
        return status_;
      }
      if (fds[1].revents != 0) return absl::OkStatus();
      if (fds[2].revents != 0) {
        char ignored[64];
        if (read(parent_fd, ignored, sizeof(ignored)) <= 0) return absl::OkStatus();
      }
    }
  }

 private:
  const int event_;
  std::mutex mutex_;
  absl::Status status_;
};

}  // namespace

int main(int argc, char** argv) {
  tacc::KeepStandardStreams();
  tacc::LeaveNoCoreFiles();
  // Fixed, for glibc would raise it with the blocks that are freed: what connections and calls have held goes back to
  // the system, instead of being kept for ever in pieces, and a flood leaves half as much behind.
  mallopt(M_MMAP_THRESHOLD, kMappedBytes);
  // gRPC's own log would only repeat, in its own words, what is said in ours.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  spdlog::set_default_logger(spdlog::stderr_color_mt("coordinator"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");

  tacc::coordinator::ServerOptions options;
  options.version = TACC_VERSION;
  options.state_dir = DefaultStateDir();
  int parent_fd = -1;
  bool insecure = false;
  CLI::App app{"Takes training jobs, compiles them and drives the workers."};
  app.set_version_flag("--version", std::string("tacc-coordinator ") + TACC_VERSION);
  app.add_option(
         "--listen", options.listen,
         "HOST:PORT for clients and workers, with --tls-dir or --insecure; port 0 takes a free one. 0.0.0.0 is "
         "all IPv4 addresses of the machine, [::] all of IPv4 and IPv6. Or unix:PATH, a socket for processes of "
         "this machine's same user alone, in a folder that only that user may enter")
      ->capture_default_str();
  app.add_option("--state-dir", options.state_dir, "Where jobs and metrics are kept")->capture_default_str();
  app.add_option("--job-number-file", options.job_number_file,
                 "Keeps the largest number of a job's id; ids of new jobs have larger ones. One outside of the state "
                 "directory keeps ids from coming back when that is removed (default: job-number in it)");
  app.add_option("--metrics-listen", options.metrics_listen,
                 "HOST:PORT for /metrics, /healthz and /readyz; none by default");
  CLI::Option* tls = app.add_option(
      "--tls-dir", options.tls_dir,
      "Folder of a server's certificate, as `tacc-coordinator init` makes one: clients and workers need one "
      "each, and all traffic with them is encrypted");
  app.add_option("--max-calls-per-second", options.call_limits.calls_per_second,
                 "Calls a second of one certificate's or token's holder, on average over ten seconds; more are refused")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 1e6))
      ->needs(tls);
  app.add_option("--max-streams", options.call_limits.max_open,
                 "Calls of one certificate's or token's holder that are open at the same time, as each worker has one; "
                 "more are "
                 "refused")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000))
      ->needs(tls);
  std::string kubernetes_tokens;
  app.add_option("--kubernetes-tokens", kubernetes_tokens,
                 "File (YAML) that says which service accounts of a Kubernetes cluster may call by their tokens "
                 "(docs/roles.md); with --tls-dir");
  app.add_flag("--insecure", insecure,
               "Allow a port without --tls-dir, at which whoever reaches it can run jobs, and metrics that other "
               "machines can reach");
  app.add_option("--collective-timeout", options.collective_timeout_seconds,
                 "Seconds without progress after which an attempt is a hang")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 86400.0));
  app.add_option("--compile-seconds", options.compile_seconds,
                 "Seconds that each tool may take that checks, plans or compiles a job")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 86400.0));
  app.add_option(
         "--keep-jobs", options.max_ended_jobs,
         "Ended jobs to remember; of more the one that ended first is forgotten, with its metrics and logs (its "
         "checkpoints stay)")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_option(
         "--allow-path", options.allow_paths,
         "Folder in which files of jobs may be that are read to plan and compile them: models, graphs, data. May "
         "be given several times; default: wherever this process's user may read")
      ->allow_extra_args(false);
  std::string max_uploads;
  app.add_option(
      "--max-uploads", max_uploads,
      "Room for folders that clients upload, such as 200GiB; those that were used longest ago make place for "
      "new ones (default: half of the file system of --state-dir)");
  app.add_option("--exit-with-parent-fd", parent_fd, "End when this file descriptor reads end-of-file")
      ->check(CLI::Range(0, 1 << 20));
  app.require_subcommand(0, 1);
  std::function<absl::StatusOr<std::string>()> command;
  tacc::coordinator::AddBackupCommand(&options.state_dir, &app, &command);
  tacc::coordinator::AddInitCommand(&app, &command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return Fail(std::string(error.what()) + "; see tacc-coordinator --help", tacc::kExitBadInput);
  }
  if (command) {
    const absl::StatusOr<std::string> text = command();
    if (!text.ok()) return Fail(std::string(text.status().message()), tacc::kExitBadInput);
    std::fputs(text->c_str(), stdout);
    return std::fflush(stdout) == 0 ? 0 : Fail("cannot write to standard output", 1);
  }
  if (insecure) options.exposure = tacc::coordinator::ServerOptions::Exposure::kInsecure;

  if (!max_uploads.empty()) {
    const absl::StatusOr<int64_t> bytes = tacc::ParseBytes(max_uploads);
    if (!bytes.ok()) return Fail("--max-uploads: " + std::string(bytes.status().message()), tacc::kExitBadInput);
    options.max_upload_bytes = *bytes;
  }

  const absl::StatusOr<std::vector<std::string>> roots = tacc::RootsOfFlag("--allow-path", options.allow_paths);
  if (!roots.ok()) return Fail(std::string(roots.status().message()), tacc::kExitBadInput);
  options.allow_paths = *roots;
  const std::string warning = tacc::Warning({tacc::AllowedPaths(*roots, {}), std::nullopt});
  if (!warning.empty()) spdlog::warn("{}", warning);

  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return Fail("cannot read /proc/self/exe: " + error.message(), 1);
  options.plan_binary = self.parent_path() / "tacc-plan";
  options.data_binary = self.parent_path() / "tacc-data";
  options.state_dir = std::filesystem::absolute(options.state_dir);
  if (!options.tls_dir.empty()) options.tls_dir = std::filesystem::absolute(options.tls_dir);
  if (!kubernetes_tokens.empty()) {
    auto reviewer = ReadReviewer(kubernetes_tokens, options.tls_dir);
    if (!reviewer.ok())
      return Fail("--kubernetes-tokens: " + std::string(reviewer.status().message()), tacc::kExitBadInput);
    options.token_reviewer = *std::move(reviewer);
  }
  options.max_open_files = tacc::RaiseOpenFilesLimit();

  auto failpoints = tacc::Failpoints::FromEnvironment();
  if (!failpoints.ok()) return Fail(std::string(failpoints.status().message()), tacc::kExitBadInput);

  // Before any thread starts, so that all inherit the mask.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // A write beyond a file size limit is an error like a full disk.
  const int signal_fd = signalfd(-1, &signals, SFD_CLOEXEC);

  StopRequest stop;
  auto server = tacc::coordinator::Server::Start(options, failpoints->get(),
                                                 [&stop](const absl::Status& status) { stop.Set(status); });
  if (!server.ok()) return Fail(std::string(server.status().message()), tacc::kExitBadInput);
  std::printf("listening %s\n", (*server)->address().c_str());
  std::fflush(stdout);
  spdlog::info("tacc-coordinator {} listens on {}, state in {}", options.version, (*server)->address(),
               options.state_dir);
  if (!(*server)->metrics_address().empty()) spdlog::info("metrics on http://{}/metrics", (*server)->metrics_address());

  const absl::Status status = stop.Wait(signal_fd, parent_fd);
  spdlog::info("stopping");
  server->reset();
  if (!status.ok()) return Fail(std::string(status.message()) + "; the coordinator cannot go on without its log", 1);
  return 0;
}
