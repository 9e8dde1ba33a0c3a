#ifndef TACC_WORKER_RANK_RUN_RUN_OPTIONS_H_
#define TACC_WORKER_RANK_RUN_RUN_OPTIONS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "confinement/allowed_paths.h"
#include "failpoint/failpoint.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"
#include "worker/rank/device/device.h"
#include "worker/rank/device/host_workspace.h"
#include "worker/rank/gpu/gpu_module.h"
#include "worker/rank/program/executor.h"
#include "worker/rank/protocol/start_file.h"

namespace tacc::worker {

// What the process gives a rank, beside what its start file says. All outlives the run.
struct RunOptions {
  std::string start_file;
  std::string version;       // Of this program.
  std::string status_shm;    // Empty: none.
  std::string profile_path;  // Where the seconds by op and module go at the end; empty: not measured.
  std::string trace_path;    // Where the trace of a step goes; empty: as the start file says.
  AllowedPaths paths;        // Where the files of the start file may be.
  // Loaded where the program has operators of others than LibTorch (worker/rank/torch/op_libraries.h).
  std::vector<std::string> op_libraries;
  bool traces_gaps = true;  // Whether a GPU's work is traced now and then, for device_idle_share.
  std::string attention;    // The backend that computes attention on a GPU where it works; empty: the ranks choose.
  // The device that the start file names.
  std::function<absl::StatusOr<Device*>(const StartFile&)> open_device;
  // How ranks talk that have opened an asynchronous one (GpuModule::ChooseTalk).
  std::function<absl::StatusOr<RankTalk>(const RankTalkOptions&)> choose_talk;
  AliasFunction aliases;
  const graph::OpTable* ops = nullptr;
  // Refuses a program that a rank could not run safely (graph::Verify).
  std::function<absl::Status(const graph::Program&)> verify;
  const HostWorkspace* workspace = nullptr;  // Of what LibTorch allocates inside; may be null.
  Failpoints* failpoints = nullptr;
  int command_fd = 0;
  int event_fd = 1;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_RUN_RUN_OPTIONS_H_
