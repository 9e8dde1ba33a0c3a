#include "worker/daemon/flags.h"

#include "absl/strings/str_cat.h"
#include "machine/device_name.h"
#include "worker/daemon/replacement.h"

namespace tacc::worker {

void AddFlags(CLI::App* app, Flags* flags) {
  app->set_version_flag("--version", "tacc-worker " TACC_VERSION);
  app->add_option("--coordinator", flags->coordinator,
                  "HOST:PORT, with --tls-dir or --insecure, or unix:PATH of the coordinator")
      ->envname("TACC_ADDRESS")
      ->capture_default_str();
  app->add_option("--device", flags->device, absl::StrCat("Device of this daemon: ", kDeviceNames))
      ->capture_default_str();
  app->add_option("--threads", flags->threads,
                  "Threads of a rank; default: the CPUs that this process may use, of a GPU its part of them")
      ->check(CLI::Range(1, 4096));
  app->add_option("--memory", flags->memory,
                  "Memory of a rank, such as 4GiB; default: nine tenths of the machine's, the cgroup's limit or "
                  "--rank-memory; of a "
                  "GPU what is free less --memory-reserve");
  app->add_option("--memory-reserve", flags->memory_reserve,
                  "What of a GPU's free memory is left for CUDA and its libraries; default: 1GiB");
  app->add_option("--advertise", flags->advertise,
                  "Address at which ranks of other machines reach this one; default: that of the interface towards the "
                  "coordinator");
  app->add_option("--state-dir", flags->state_dir, "Directory of this daemon alone; default: ~/.local/state/tacc/NAME");
  app->add_option(
      "--max-uploads", flags->max_uploads,
      "Room in ~/.cache/tacc for what clients have uploaded to the coordinator, such as 200GiB; default: half "
      "of its file system");
  app->add_option("--metrics-listen", flags->metrics_listen,
                  "HOST:PORT for /metrics, /healthz and /readyz; default: none");
  app->add_option("--name", flags->name,
                  "Name of this worker, unique among the coordinator's; default: HOSTNAME-DEVICE, "
                  "with --tls-dir the certificate's name and the device: NAME.DEVICE");
  app->add_option("--tls-dir", flags->tls.folder,
                  "Folder of a worker's certificate, as `tacc-coordinator init` makes one; default: no TLS");
  app->add_option("--tls-server-name", flags->tls.server_name,
                  "Name in the coordinator's certificate, where that has not the host of --coordinator");
  app->add_option(
         "--allow-path", flags->allow_paths,
         "Folder in which files of jobs may be: models, data, checkpoints, exports. May be given several times; "
         "default: wherever this daemon's user may read and write")
      ->allow_extra_args(false);
  app->add_option(
         "--op-library", flags->op_libraries,
         "Shared library whose operators for PyTorch (TORCH_LIBRARY) the ranks can compute, as torchvision's _C.so: an "
         "absolute path. Its code runs in each rank of a model that has such operators. May be given several times; "
         "default: none")
      ->allow_extra_args(false);
  app->add_option("--rank-user", flags->rank_user,
                  "User as whom ranks run, and with whose rights files of jobs are read and written; only for root. "
                  "Default: this daemon's");
  app->add_option(
      "--rank-memory", flags->rank_memory,
      "Most memory of the machine that a rank may take with all that it starts, such as 64GiB: one that takes "
      "more is ended. It takes cgroups of version 2. Default: no limit");
  app->add_option(
         "--rank-processes", flags->rank_limits.num_processes,
         "Most processes and threads of a rank with all that it starts. It takes cgroups of version 2. Default: "
         "no limit")
      ->check(CLI::PositiveNumber);
  app->add_flag(
      "--insecure", flags->insecure,
      "Allow a coordinator's port without --tls-dir, and addresses that are not loopback for traffic of ranks "
      "among themselves and metrics, which is not encrypted");
  app->add_option("--exit-with-parent-fd", flags->parent_fd, "End when this file descriptor reads end-of-file")
      ->check(CLI::NonNegativeNumber);
  app->add_option(kTakeOverFlag, flags->take_over_fd)->group("");
  app->add_flag(kCheckTakeOverFlag, flags->checks_take_over)->group("");
}

}  // namespace tacc::worker
