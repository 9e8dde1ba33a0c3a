// tacc-worker: the daemon of one device.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "machine/device_name.h"
#include "machine/device_peaks.h"
#include "machine/exit_code.h"
#include "machine/machine.h"
#include "spdlog/logger.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "worker/daemon/answers/device_probe.h"
#include "worker/daemon/daemon.h"
#include "worker/daemon/host/state_directory.h"
#include "worker/daemon/network_address.h"

namespace tacc::worker {
namespace {

// Without --memory: what the kernel, this daemon and others are left of the machine or the cgroup's limit.
constexpr double kMemoryShare = 0.9;
// How long a rank of a killed daemon may take to end by itself.
constexpr double kOldRankSeconds = 3;
constexpr size_t kMaxNameBytes = 128;

struct Flags {
  std::string coordinator = "127.0.0.1:7070";
  std::string device = "cpu";
  int threads = 0;
  std::string memory;
  std::string memory_reserve;
  std::string max_uploads;
  int64_t gpu_reserve_bytes = kGpuReserveBytes;
  std::string advertise;
  std::string state_dir;
  std::string metrics_listen;
  std::string name;
  bool insecure = false;
  int parent_fd = -1;
};

int Fail(int code, const absl::Status& status) {
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return code;
}

absl::Status CheckDevice(const std::string& device) {
  if (IsDevice(device)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--device ", device, ": not a device; write ", kDeviceNames));
}

// Loopback, or --insecure; warns of the latter.
absl::Status CheckExposed(const char* flag, const std::string& value, const std::string& host, const Flags& flags,
                          spdlog::logger* logger) {
  if (IsLoopback(host)) return absl::OkStatus();
  if (!flags.insecure) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", value, ": not a loopback address, and traffic is neither encrypted nor authenticated; ",
                     "add --insecure on a network that you trust"));
  }
  logger->warn("{} {}: traffic is neither encrypted nor authenticated (--insecure)", flag, value);
  return absl::OkStatus();
}

std::string HostName() {
  char name[256] = "host";
  gethostname(name, sizeof(name) - 1);
  return name;
}

absl::StatusOr<std::string> DefaultStateDir(const std::string& name) {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && state[0] == '/')
    return absl::StrCat(state, "/tacc/", name);
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/')
    return absl::StrCat(home, "/.local/state/tacc/", name);
  return absl::InvalidArgumentError("--state-dir: HOME is not set; give the directory");
}

absl::Status CheckName(const std::string& name) {
  const bool is_plain =
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == std::string::npos;
  if (!name.empty() && name.size() <= kMaxNameBytes && is_plain && name != "." && name != "..") return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--name ", name, ": a name is at most ", kMaxNameBytes,
                                                 " letters, digits, dots, dashes and underscores"));
}

absl::StatusOr<int64_t> Size(const char* flag, const std::string& text) {
  absl::StatusOr<int64_t> bytes = ParseBytes(text);
  if (!bytes.ok()) return absl::InvalidArgumentError(absl::StrCat(flag, ": ", bytes.status().message()));
  return bytes;
}

// What --memory and --memory-reserve say; of a GPU what is free decides, when it has been looked at.
absl::Status SetMemory(const LocalMachine& machine, Flags* flags, DaemonOptions* options) {
  const bool is_gpu = IsGpu(flags->device);
  if (!is_gpu) {
    options->place.memory_bytes = static_cast<int64_t>(static_cast<double>(machine.memory_bytes) * kMemoryShare);
  }
  if (!flags->memory.empty()) {
    const absl::StatusOr<int64_t> memory = Size("--memory", flags->memory);
    if (!memory.ok()) return memory.status();
    options->place.memory_bytes = *memory;
  }
  if (!flags->memory_reserve.empty()) {
    if (!is_gpu) return absl::InvalidArgumentError("--memory-reserve: is of GPUs; on a CPU give --memory");
    const absl::StatusOr<int64_t> reserve = Size("--memory-reserve", flags->memory_reserve);
    if (!reserve.ok()) return reserve.status();
    flags->gpu_reserve_bytes = *reserve;
  }
  if (!is_gpu && options->place.memory_bytes <= 0) return absl::InvalidArgumentError("--memory: must be more than 0");
  return absl::OkStatus();
}

// Completes the options of a GPU that has been probed: its memory, its table peaks, its part of the machine's CPUs, and
// how it is looked at again.
absl::Status TakeGpu(const Flags& flags, const ProbeRequest& probe, DaemonOptions* options) {
  for (const auto& [dtype, peak] : TablePeaks(options->device.model()))
    (*options->device.mutable_peak_flops_per_second())[dtype] = peak;
  const int num_gpus = 1 + options->device.links_size();
  if (flags.threads == 0) options->place.num_threads = std::max(1, options->place.num_threads / num_gpus);
  const int64_t wanted = options->place.memory_bytes, reserve = flags.gpu_reserve_bytes;
  if (absl::Status status = ShareGpuMemory(wanted, reserve, &options->device); !status.ok()) return status;
  options->place.memory_bytes = options->device.memory_bytes();
  options->device.set_threads(options->place.num_threads);
  options->look = [probe, wanted, reserve, profile = options->device]() -> absl::StatusOr<v1::DeviceProfile> {
    const absl::StatusOr<v1::DeviceProfile> look = LookAtGpu(probe);
    if (!look.ok()) return look.status();
    if (look->model() != profile.model()) {
      return absl::FailedPreconditionError(absl::StrCat("it was a ", profile.model(), " and now is a ", look->model(),
                                                        "; start the daemon again, so that it is measured"));
    }
    v1::DeviceProfile now = profile;
    now.set_free_memory_bytes(look->free_memory_bytes());
    if (absl::Status status = ShareGpuMemory(wanted, reserve, &now); !status.ok()) return status;
    return now;
  };
  return absl::OkStatus();
}

// Fills in what was not given and checks all of it.
absl::StatusOr<DaemonOptions> MakeOptions(Flags* flags, spdlog::logger* logger) {
  DaemonOptions options;
  options.version = TACC_VERSION;
  options.coordinator = flags->coordinator;
  if (absl::Status status = CheckDevice(flags->device); !status.ok()) return status;
  const absl::StatusOr<HostPort> coordinator = ParseHostPort(flags->coordinator);
  if (!coordinator.ok() || coordinator->port == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--coordinator: \"", flags->coordinator, "\" is not HOST:PORT, for example 127.0.0.1:7070"));
  }
  if (absl::Status status = CheckExposed("--coordinator", flags->coordinator, coordinator->host, *flags, logger);
      !status.ok())
    return status;
  if (flags->advertise.empty()) {
    absl::StatusOr<std::string> own = LocalAddressTowards(*coordinator);
    if (!own.ok())
      return absl::InvalidArgumentError(
          absl::StrCat("--advertise: ", own.status().message(), "; give this machine's address"));
    flags->advertise = *std::move(own);
  }
  if (absl::Status status = CheckExposed("--advertise", flags->advertise, flags->advertise, *flags, logger);
      !status.ok())
    return status;
  if (!flags->metrics_listen.empty()) {
    const absl::StatusOr<HostPort> listen = ParseHostPort(flags->metrics_listen);
    if (!listen.ok()) return absl::InvalidArgumentError(absl::StrCat("--metrics-listen: ", listen.status().message()));
    absl::Status status = CheckExposed("--metrics-listen", flags->metrics_listen, listen->host, *flags, logger);
    if (!status.ok()) return status;
  }
  if (flags->name.empty())
    flags->name = absl::StrReplaceAll(absl::StrCat(HostName(), "-", flags->device), {{":", "-"}});
  if (absl::Status status = CheckName(flags->name); !status.ok()) return status;
  if (flags->state_dir.empty()) {
    absl::StatusOr<std::string> state_dir = DefaultStateDir(flags->name);
    if (!state_dir.ok()) return state_dir.status();
    flags->state_dir = *std::move(state_dir);
  }
  const LocalMachine machine = ThisMachine();
  options.place.num_threads = flags->threads != 0 ? flags->threads : machine.num_cpus;
  if (absl::Status status = SetMemory(machine, flags, &options); !status.ok()) return status;
  if (options.place.num_threads > machine.num_cpus) {
    logger->warn("--threads {}: only {} CPUs may be used here", options.place.num_threads, machine.num_cpus);
  }
  options.upload_dir = absl::StrCat(CacheDirectory(flags->state_dir), "/uploads");
  if (!flags->max_uploads.empty()) {
    const absl::StatusOr<int64_t> most = Size("--max-uploads", flags->max_uploads);
    if (!most.ok()) return most.status();
    options.max_upload_bytes = *most;
  }
  options.name = flags->name;
  options.metrics_listen = flags->metrics_listen;
  options.place.worker = flags->name;
  options.place.device = flags->device;
  options.place.advertise = flags->advertise;
  return options;
}

int Main(int argc, char** argv, const std::string& rank_path) {
  Flags flags;
  CLI::App app("Runs ranks of training jobs on one device for a coordinator.", "tacc-worker");
  app.set_version_flag("--version", "tacc-worker " TACC_VERSION);
  app.add_option("--coordinator", flags.coordinator, "HOST:PORT of the coordinator")
      ->envname("TACC_ADDRESS")
      ->capture_default_str();
  app.add_option("--device", flags.device, absl::StrCat("Device of this daemon: ", kDeviceNames))
      ->capture_default_str();
  app.add_option("--threads", flags.threads,
                 "Threads of a rank; default: the CPUs that this process may use, of a GPU its part of them")
      ->check(CLI::Range(1, 4096));
  app.add_option(
      "--memory", flags.memory,
      "Memory of a rank, such as 4GiB; default: nine tenths of the machine's or the cgroup's limit; of a GPU "
      "what is free less --memory-reserve");
  app.add_option("--memory-reserve", flags.memory_reserve,
                 "What of a GPU's free memory is left for CUDA and its libraries; default: 1GiB");
  app.add_option("--advertise", flags.advertise,
                 "Address at which ranks of other machines reach this one; default: that of the interface towards the "
                 "coordinator");
  app.add_option("--state-dir", flags.state_dir, "Directory of this daemon alone; default: ~/.local/state/tacc/NAME");
  app.add_option(
      "--max-uploads", flags.max_uploads,
      "Room in ~/.cache/tacc for what clients have uploaded to the coordinator, such as 200GiB; default: half "
      "of its file system");
  app.add_option("--metrics-listen", flags.metrics_listen,
                 "HOST:PORT for /metrics, /healthz and /readyz; default: none");
  app.add_option("--name", flags.name, "Name of this worker, unique among the coordinator's; default: HOSTNAME-DEVICE");
  app.add_flag("--insecure", flags.insecure, "Allow addresses that are not loopback; traffic is not encrypted");
  app.add_option("--exit-with-parent-fd", flags.parent_fd, "End when this file descriptor reads end-of-file")
      ->check(CLI::NonNegativeNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return Fail(kExitBadInput, absl::InvalidArgumentError(absl::StrCat(error.what(), "; see tacc-worker --help")));
  }
  if (flags.parent_fd >= 0 && fcntl(flags.parent_fd, F_SETFD, FD_CLOEXEC) != 0) {
    return Fail(kExitBadInput, absl::InvalidArgumentError(absl::StrCat("--exit-with-parent-fd ", flags.parent_fd,
                                                                       ": not an open file descriptor")));
  }
  // Signals are read from a descriptor; blocked here, before any thread starts, they are so in all of them.
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);  // A file over its size limit is an error of write, as a full disk.
  RaiseOpenFilesLimit();
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  sigprocmask(SIG_BLOCK, &ending, nullptr);
  const int signal_fd = signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK);

  spdlog::logger logger("tacc-worker", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger.set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
  logger.flush_on(spdlog::level::info);
  absl::StatusOr<DaemonOptions> options = MakeOptions(&flags, &logger);
  if (!options.ok()) return Fail(kExitBadInput, options.status());
  options->place.rank_path = rank_path;
  options->end_descriptors = {signal_fd};
  if (flags.parent_fd >= 0) options->end_descriptors.push_back(flags.parent_fd);

  absl::StatusOr<std::unique_ptr<StateDirectory>> state = StateDirectory::Open(flags.state_dir, kOldRankSeconds);
  if (!state.ok()) return Fail(kExitBadInput, state.status());
  ProbeRequest probe;
  probe.rank_path = rank_path;
  probe.version = options->version;
  probe.device = flags.device;
  probe.num_threads = options->place.num_threads;
  probe.cpu_model = ThisMachine().cpu_model;
  probe.cache_path = ProbeCachePath((*state)->path(), flags.device, probe.num_threads);
  probe.end_descriptors = options->end_descriptors;
  logger.info("measuring {} with {} threads", flags.device, probe.num_threads);
  absl::StatusOr<v1::DeviceProfile> device = ProbeDevice(probe);
  if (absl::IsCancelled(device.status())) return 0;
  if (!device.ok()) return Fail(absl::IsInvalidArgument(device.status()) ? kExitBadInput : kExitError, device.status());
  options->device = *std::move(device);
  options->device.set_name(flags.device);
  if (IsGpu(flags.device)) {
    if (absl::Status status = TakeGpu(flags, probe, &*options); !status.ok()) return Fail(kExitBadInput, status);
  }
  options->device.set_threads(options->place.num_threads);
  options->device.set_memory_bytes(options->place.memory_bytes);
  options->on_attached = [&flags] {
    std::printf("attached %s\n", flags.name.c_str());
    std::fflush(stdout);
  };
  const absl::Status status = RunDaemon(*options, state->get(), &logger);
  if (!status.ok()) return Fail(kExitBadInput, status);
  logger.info("ended");
  return 0;
}

}  // namespace
}  // namespace tacc::worker

int main(int argc, char** argv) {
  // Pipes to children must not get the numbers of the standard streams.
  int fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd >= 0) close(fd);
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return tacc::worker::Main(argc, argv, (self.parent_path() / "tacc-rank").string());
}
