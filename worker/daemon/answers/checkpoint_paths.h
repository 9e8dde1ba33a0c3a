// The daemon's answers about a job's paths: checks that they are there, claims the checkpoint directory, lists and
// deletes checkpoints.
#ifndef TACC_WORKER_DAEMON_ANSWERS_CHECKPOINT_PATHS_H_
#define TACC_WORKER_DAEMON_ANSWERS_CHECKPOINT_PATHS_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "confinement/allowed_paths.h"
#include "tacc/v1/worker.pb.h"
#include "worker/daemon/answers/writer_watch.h"

namespace tacc::worker {

// All do what proto/tacc/v1/worker.proto says of the request, with paths that `paths` allows. They touch file systems
// that may be slow or stuck, so they belong on a thread that may block (PathThread); one that is confined to `paths`,
// so that nobody leads them elsewhere between a check and a use (RunConfined).

struct CheckPathsOptions {
  // How long EXPECT waits for job.json to show up, because network file systems let other hosts see a new file late.
  double patience_seconds = 0;
  // The asking coordinator's address, as this daemon knows it.
  std::string coordinator;
  // What CLAIM has seen of the writers of the folders that it was asked for, borrowed; and a clock for its looks, in
  // seconds that do not jump.
  WriterWatch* watch = nullptr;
  std::function<double()> clock;
  // Whether an upload is on this machine, by its id; a little later it may be.
  std::function<absl::Status(const std::string& id)> upload;
  AllowedPaths paths = {};
};
v1::CheckPathsResult CheckPaths(const v1::CheckPaths& request, const CheckPathsOptions& options);

// Deletes only directories directly inside checkpoint_dir whose names are those of checkpoints.
v1::DeleteCheckpointsResult DeleteCheckpoints(const v1::DeleteCheckpoints& request, const AllowedPaths& paths = {});

// Writes no page where the folder is away or another job's, or where no step was made and there is no page yet.
v1::WriteReportResult WriteReport(const v1::WriteReport& request, const AllowedPaths& paths = {});

// Does nothing where the folder is away. Failures are not reported: the folder is then taken over a little later.
void LeaveFolder(const v1::LeaveFolder& request, const AllowedPaths& paths = {});

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_ANSWERS_CHECKPOINT_PATHS_H_
