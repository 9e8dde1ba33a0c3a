// tacc-worker: the daemon of one device.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "confinement/cgroup.h"
#include "confinement/confine.h"
#include "confinement/trusted_file.h"
#include "identity/folder.h"
#include "machine/core_files.h"
#include "machine/device_name.h"
#include "machine/device_peaks.h"
#include "machine/exit_code.h"
#include "machine/loopback.h"
#include "machine/machine.h"
#include "machine/unix_socket.h"
#include "nlohmann/json.hpp"
#include "protocol/attach_protocol.h"
#include "spdlog/logger.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "worker/daemon/answers/device_probe.h"
#include "worker/daemon/answers/op_libraries.h"
#include "worker/daemon/daemon.h"
#include "worker/daemon/flags.h"
#include "worker/daemon/host/state_directory.h"
#include "worker/daemon/network_address.h"
#include "worker/daemon/replacement.h"

namespace tacc::worker {
namespace {

// Without --memory: what the kernel, this daemon and others are left of the machine or the cgroup's limit.
constexpr double kMemoryShare = 0.9;
// How long a rank of a killed daemon may take to end by itself.
constexpr double kOldRankSeconds = 3;
// What a rank may have beside the threads that compute: those of Gloo or CUDA and NCCL, of its data and checkpoints.
constexpr int64_t kOtherRankThreads = 64;
// Where ranks listen for one another whose coordinator takes processes of this machine alone.
constexpr char kOwnMachine[] = "127.0.0.1";

int Fail(int code, const absl::Status& status) {
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return code;
}

absl::Status CheckDevice(const std::string& device) {
  if (IsDevice(device)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--device ", device, ": not a device; write ", kDeviceNames));
}

// Loopback, or --insecure; warns of the latter. `traffic` is what goes there.
absl::Status CheckExposed(const char* flag, const std::string& value, const std::string& host, const char* traffic,
                          const Flags& flags, spdlog::logger* logger) {
  if (IsLoopback(host)) return absl::OkStatus();
  if (!flags.insecure) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", value, ": not a loopback address, and ", traffic,
                                                   " is neither encrypted nor authenticated; ",
                                                   "add --insecure on a network that you trust"));
  }
  logger->warn("{} {}: {} is neither encrypted nor authenticated (--insecure)", flag, value, traffic);
  return absl::OkStatus();
}

// A coordinator at a port is trusted by its certificate, or because --insecure says so; warns of the latter. On
// loopback as well: any user may have that port.
absl::Status CheckPort(const Flags& flags, spdlog::logger* logger) {
  if (!flags.tls.folder.empty()) return absl::OkStatus();
  constexpr char kDanger[] =
      "who has that port gives this worker jobs, and traffic is neither encrypted nor authenticated";
  if (!flags.insecure) {
    return absl::InvalidArgumentError(
        absl::StrCat("--coordinator ", flags.coordinator, ": ", kDanger,
                     "; `taccctl up` starts workers and a coordinator that only you can reach; for others give ",
                     "--tls-dir, which `tacc-coordinator init` makes; or add --insecure if you trust who has it"));
  }
  logger->warn("--coordinator {}: {} (--insecure)", flags.coordinator, kDanger);
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
  if (protocol::IsWorkerName(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--name ", name, ": a name is at most ", protocol::kMaxWorkerNameBytes,
                                                 " letters, digits, dots, dashes and underscores"));
}

// Checks --tls-dir; the worker's name follows from the certificate's, or must be one that it speaks for.
absl::Status SetIdentity(Flags* flags) {
  if (flags->tls.folder.empty()) return absl::OkStatus();
  flags->tls.folder = std::filesystem::absolute(flags->tls.folder);
  const absl::StatusOr<identity::Principal> self = identity::CheckFolder(flags->tls.folder, std::time(nullptr));
  if (!self.ok()) return absl::InvalidArgumentError(absl::StrCat("--tls-dir: ", self.status().message()));
  if (flags->name.empty())
    flags->name = absl::StrReplaceAll(absl::StrCat(self->name, ".", flags->device), {{":", "-"}});
  if (identity::IsWorker(*self, flags->name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--tls-dir ", flags->tls.folder, " is of ", identity::Describe(*self),
                                                 ", which cannot be worker ", flags->name, ": worker NAME's may be ",
                                                 "NAME and NAME.ANYTHING"));
}

absl::StatusOr<int64_t> Size(const char* flag, const std::string& text) {
  absl::StatusOr<int64_t> bytes = ParseBytes(text);
  if (!bytes.ok()) return absl::InvalidArgumentError(absl::StrCat(flag, ": ", bytes.status().message()));
  return bytes;
}

// What the kernel holds a rank to, of which `num_threads` compute.
absl::Status SetRankLimits(int num_threads, Flags* flags) {
  CgroupLimits& limits = flags->rank_limits;
  if (const int64_t least = num_threads + kOtherRankThreads; limits.num_processes > 0 && limits.num_processes < least) {
    return absl::InvalidArgumentError(absl::StrCat("--rank-processes ", limits.num_processes, ": a rank with ",
                                                   num_threads, " threads to compute may have ", least,
                                                   " in all; give at least that"));
  }
  if (flags->rank_memory.empty()) return absl::OkStatus();
  const absl::StatusOr<int64_t> memory = Size("--rank-memory", flags->rank_memory);
  if (!memory.ok()) return memory.status();
  limits.memory_bytes = *memory;
  return absl::OkStatus();
}

// What --memory and --memory-reserve say; of a GPU what is free decides, when it has been looked at.
absl::Status SetMemory(const LocalMachine& machine, Flags* flags, DaemonOptions* options) {
  const bool is_gpu = IsGpu(flags->device);
  const int64_t limit_bytes = flags->rank_limits.memory_bytes;
  if (!is_gpu) {
    const int64_t most = limit_bytes > 0 ? std::min(limit_bytes, machine.memory_bytes) : machine.memory_bytes;
    options->place.memory_bytes = static_cast<int64_t>(static_cast<double>(most) * kMemoryShare);
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
  if (!is_gpu && limit_bytes > 0 && options->place.memory_bytes > limit_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("--rank-memory ", flags->rank_memory, " is less than --memory ",
                                                   flags->memory, ", which a rank may fill; give it more than that"));
  }
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

// Checks where the coordinator is, and fills in the address that this worker has towards it.
absl::Status CheckCoordinator(Flags* flags, spdlog::logger* logger) {
  if (IsUnixAddress(flags->coordinator)) {
    if (!flags->tls.folder.empty())
      return absl::InvalidArgumentError("--tls-dir: a Unix socket asks for the user alone; give it without");
    if (flags->advertise.empty()) flags->advertise = kOwnMachine;
    const absl::Status status = UnixSocketPath(flags->coordinator).status();
    return status.ok() ? status : absl::InvalidArgumentError(absl::StrCat("--coordinator: ", status.message()));
  }
  const absl::StatusOr<HostPort> coordinator = ParseHostPort(flags->coordinator);
  if (!coordinator.ok() || coordinator->port == 0) {
    return absl::InvalidArgumentError(absl::StrCat("--coordinator: \"", flags->coordinator,
                                                   "\" is not HOST:PORT, for example 127.0.0.1:7070, nor unix:/PATH"));
  }
  if (absl::Status status = CheckPort(*flags, logger); !status.ok()) return status;
  if (!flags->advertise.empty()) return absl::OkStatus();
  absl::StatusOr<std::string> own = LocalAddressTowards(*coordinator);
  if (!own.ok())
    return absl::InvalidArgumentError(
        absl::StrCat("--advertise: ", own.status().message(), "; give this machine's address"));
  flags->advertise = *std::move(own);
  return absl::OkStatus();
}

// To whom and to what ranks are confined, with the folder of uploads, which they read.
absl::Status SetConfinement(const Flags& flags, spdlog::logger* logger, DaemonOptions* options) {
  Confinement& confinement = options->place.confinement;
  const bool is_at_port = !IsUnixAddress(flags.coordinator);
  if (!flags.rank_user.empty()) {
    if (geteuid() != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--rank-user ", flags.rank_user, ": only root can start ranks as another user"));
    }
    absl::StatusOr<User> user = FindUser(flags.rank_user);
    if (!user.ok()) return absl::InvalidArgumentError(absl::StrCat("--rank-user: ", user.status().message()));
    options->upload_dir = absl::StrCat(user->home, "/.cache/tacc/uploads");
    confinement.user = *std::move(user);
  } else if (geteuid() == 0 && (is_at_port || !flags.allow_paths.empty())) {
    logger->warn("ranks run as root; --rank-user NAME starts them as another user");
  }
  if (flags.allow_paths.empty()) {
    if (is_at_port) {
      logger->warn(
          "--coordinator {}: without --allow-path files of jobs may be wherever the user of ranks may read and write; "
          "give --allow-path DIR for each folder of models, data, checkpoints and exports, or --allow-path / if that "
          "is meant",
          flags.coordinator);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> roots = RootsOfFlag("--allow-path", flags.allow_paths);
  if (!roots.ok()) return roots.status();
  confinement.paths = AllowedPaths(*std::move(roots), {options->upload_dir});
  if (const std::string warning = Warning(confinement); !warning.empty()) logger->warn("{}", warning);
  return absl::OkStatus();
}

// Who runs this worker says which code ranks may load.
absl::Status SetOpLibraries(const Flags& flags, DaemonOptions* options) {
  for (const std::string& library : flags.op_libraries) {
    absl::StatusOr<std::string> file = TrustedFile(library);
    if (!file.ok()) return absl::InvalidArgumentError(absl::StrCat("--op-library ", file.status().message()));
    options->place.op_libraries.push_back(*std::move(file));
  }
  options->place.confinement.libraries = options->place.op_libraries;
  return absl::OkStatus();
}

// Found out now rather than by the first job.
absl::Status CheckOpLibraries(const DaemonOptions& options, double timeout_seconds, spdlog::logger* logger) {
  if (options.place.op_libraries.empty()) return absl::OkStatus();
  OpLibraryRequest request;
  request.rank_path = options.place.rank_path;
  request.files = options.place.op_libraries;
  request.confinement = options.place.confinement;
  request.end_descriptors = options.end_descriptors;
  request.timeout_seconds = timeout_seconds;
  const absl::StatusOr<std::vector<std::string>> operators = TryOpLibraries(request);
  if (operators.ok()) logger->info("--op-library: ranks can compute operators of {}", InWords(*operators));
  return operators.status();
}

// Found out now rather than by the first job.
absl::Status TryConfinement(const Confinement& confinement, const std::string& upload_dir, StateDirectory* state) {
  if (confinement.user.has_value()) {
    if (absl::Status status = state->LetIn(*confinement.user); !status.ok())
      return absl::InvalidArgumentError(absl::StrCat("--state-dir: ", status.message()));
  }
  // Landlock lets a rank read a folder only if it is there when the rank starts.
  absl::Status status = RunConfined({AllowedPaths(), confinement.user}, [&upload_dir] {
    std::error_code ignored;  // Told by the first upload.
    std::filesystem::create_directories(upload_dir, ignored);
  });
  status.Update(RunConfined(confinement, [] {}));
  return status;
}

// Fills in what was not given and checks all of it.
absl::StatusOr<DaemonOptions> MakeOptions(Flags* flags, spdlog::logger* logger) {
  DaemonOptions options;
  options.version = TACC_VERSION;
  options.coordinator = flags->coordinator;
  if (absl::Status status = CheckDevice(flags->device); !status.ok()) return status;
  if (absl::Status status = SetIdentity(flags); !status.ok()) return status;
  options.tls = flags->tls;
  if (absl::Status status = CheckCoordinator(flags, logger); !status.ok()) return status;
  const char* ranks = flags->tls.folder.empty() ? "traffic" : "traffic of ranks among themselves";
  if (absl::Status status = CheckExposed("--advertise", flags->advertise, flags->advertise, ranks, *flags, logger);
      !status.ok())
    return status;
  if (!flags->metrics_listen.empty()) {
    const absl::StatusOr<HostPort> listen = ParseHostPort(flags->metrics_listen);
    if (!listen.ok()) return absl::InvalidArgumentError(absl::StrCat("--metrics-listen: ", listen.status().message()));
    absl::Status status =
        CheckExposed("--metrics-listen", flags->metrics_listen, listen->host, "traffic", *flags, logger);
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
  if (absl::Status status = SetRankLimits(options.place.num_threads, flags); !status.ok()) return status;
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
  if (absl::Status status = SetConfinement(*flags, logger, &options); !status.ok()) return status;
  if (absl::Status status = SetOpLibraries(*flags, &options); !status.ok()) return status;
  options.name = flags->name;
  options.metrics_listen = flags->metrics_listen;
  options.place.worker = flags->name;
  options.place.device = flags->device;
  options.place.advertise = flags->advertise;
  options.place.interface = InterfaceOf(flags->advertise);
  return options;
}

int Main(int argc, char** argv, const std::string& rank_path) {
  Flags flags;
  CLI::App app("Runs ranks of training jobs on one device for a coordinator.", "tacc-worker");
  AddFlags(&app, &flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);
  } catch (const CLI::ParseError& error) {
    return Fail(kExitBadInput, absl::InvalidArgumentError(absl::StrCat(error.what(), "; see tacc-worker --help")));
  }
  if (flags.parent_fd >= 0 && !flags.checks_take_over && fcntl(flags.parent_fd, F_SETFD, FD_CLOEXEC) != 0) {
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
  sigset_t replacing;
  sigemptyset(&replacing);
  sigaddset(&replacing, SIGUSR2);
  sigprocmask(SIG_BLOCK, &replacing, nullptr);

  spdlog::logger logger("tacc-worker", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger.set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
  logger.flush_on(spdlog::level::info);
  absl::StatusOr<DaemonOptions> options = MakeOptions(&flags, &logger);
  if (!options.ok()) return Fail(kExitBadInput, options.status());
  options->place.rank_path = rank_path;
  if (flags.checks_take_over) {
    std::fputs(kTakesOver, stdout);
    return 0;
  }
  options->end_descriptors = {signal_fd};
  options->replace_descriptor = signalfd(-1, &replacing, SFD_CLOEXEC | SFD_NONBLOCK);
  const std::vector<std::string> command = OwnCommand(argc, argv);
  options->check_replacement = [&command] { return CheckReplacement(command); };
  if (flags.parent_fd >= 0) options->end_descriptors.push_back(flags.parent_fd);

  // For one user of this machine; ranks inherit it, and with it the folders of runs are that user's alone.
  if (IsUnixAddress(flags.coordinator)) umask(077);
  absl::StatusOr<nlohmann::json> handed = nlohmann::json();
  if (flags.take_over_fd >= 0) handed = TakeHandedOver(flags.take_over_fd);
  if (!handed.ok()) return Fail(kExitBadInput, handed.status());
  absl::StatusOr<std::unique_ptr<StateDirectory>> state = handed->is_null()
                                                              ? StateDirectory::Open(flags.state_dir, kOldRankSeconds)
                                                              : StateDirectory::TakeOver((*handed)["state"]);
  if (!state.ok()) return Fail(kExitBadInput, state.status());
  if (IsUnixAddress(flags.coordinator)) options->place.local_folder = (*state)->LocalFolder();
  if (absl::Status status = TryConfinement(options->place.confinement, options->upload_dir, state->get()); !status.ok())
    return Fail(kExitBadInput, status);
  const absl::StatusOr<std::unique_ptr<Cgroups>> cgroups =
      handed->is_null() || (*handed)["cgroups"].is_null()
          ? Cgroups::Open("/", (*state)->CgroupName(), flags.rank_limits)
          : CgroupsOf((*handed)["cgroups"], flags.rank_limits);
  if (!cgroups.ok() && !flags.rank_limits.IsNone()) {
    return Fail(kExitBadInput, absl::InvalidArgumentError(
                                   absl::StrCat("--rank-memory, --rank-processes: ", cgroups.status().message())));
  }
  // Where a rank runs on that is no reason to end, nor to keep the coordinator waiting.
  if (absl::Status status = CheckOpLibraries(*options, handed->is_null() ? 60 : 10, &logger); !status.ok()) {
    if (absl::IsCancelled(status)) return 0;
    if (handed->is_null()) return Fail(absl::IsInvalidArgument(status) ? kExitBadInput : kExitError, status);
    logger.error("jobs with operators of other libraries will fail here: {}", std::string(status.message()));
  }
  ProbeRequest probe;
  probe.rank_path = rank_path;
  probe.version = options->version;
  probe.device = flags.device;
  probe.num_threads = options->place.num_threads;
  probe.cpu_model = ThisMachine().cpu_model;
  probe.cache_path = ProbeCachePath((*state)->path(), flags.device, probe.num_threads);
  probe.end_descriptors = options->end_descriptors;
  if (handed->is_null()) logger.info("measuring {} with {} threads", flags.device, probe.num_threads);
  // A rank that runs on would be measured, too.
  absl::StatusOr<v1::DeviceProfile> device = handed->is_null() ? ProbeDevice(probe) : DeviceOf((*handed)["daemon"]);
  if (absl::IsCancelled(device.status())) return 0;
  if (!device.ok()) return Fail(absl::IsInvalidArgument(device.status()) ? kExitBadInput : kExitError, device.status());
  options->device = *std::move(device);
  options->device.set_name(flags.device);
  if (IsGpu(flags.device)) {
    if (absl::Status status = TakeGpu(flags, probe, &*options); !status.ok()) return Fail(kExitBadInput, status);
  }
  options->device.set_threads(options->place.num_threads);
  options->device.set_memory_bytes(options->place.memory_bytes);
  if (cgroups.ok()) options->place.cgroups = cgroups->get();
  if (!cgroups.ok()) logger.info("ranks have no cgroups of their own: {}", std::string(cgroups.status().message()));
  options->on_attached = [&flags] {
    std::printf("attached %s\n", flags.name.c_str());
    std::fflush(stdout);
  };
  nlohmann::json daemon = handed->is_null() ? nlohmann::json() : (*handed)["daemon"];
  const absl::Status status = RunDaemon(*options, state->get(), &logger, &daemon);
  if (!status.ok()) return Fail(kExitBadInput, status);
  if (!daemon.is_null()) {
    return Fail(kExitError,
                HandOver(command, std::move(daemon), state->get(), options->place.cgroups, flags.parent_fd, &logger));
  }
  logger.info("ended");
  return 0;
}

}  // namespace
}  // namespace tacc::worker

int main(int argc, char** argv) {
  tacc::KeepStandardStreams();
  tacc::LeaveNoCoreFiles();  // Nor do the ranks that it starts.
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return tacc::worker::Main(argc, argv, (self.parent_path() / "tacc-rank").string());
}
