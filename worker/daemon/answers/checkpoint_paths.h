// What the coordinator asks a daemon to do with a job's paths: see that they are there, claim the checkpoint directory,
// list and delete checkpoints.
#ifndef TACC_WORKER_DAEMON_ANSWERS_CHECKPOINT_PATHS_H_
#define TACC_WORKER_DAEMON_ANSWERS_CHECKPOINT_PATHS_H_

#include <functional>
#include <string>

#include "tacc/v1/worker.pb.h"
#include "worker/daemon/answers/writer_watch.h"

namespace tacc::worker {

// Both do what proto/tacc/v1/worker.proto says of the request. They touch file systems that may be slow or stuck: not
// for a thread that must go on.

struct CheckPathsOptions {
  // How long EXPECT waits for job.json to show up, because network file systems let other hosts see a new file late.
  double patience_seconds = 0;
  // The address of the one that asks, as this daemon knows it.
  std::string coordinator;
  // What CLAIM has seen of those that write to folders which it was asked for, and the time of a look, in seconds that
  // do not jump.
  WriterWatch* watch = nullptr;
  std::function<double()> clock;
};
v1::CheckPathsResult CheckPaths(const v1::CheckPaths& request, const CheckPathsOptions& options);

// Deletes only directories directly inside checkpoint_dir whose names are those of checkpoints.
v1::DeleteCheckpointsResult DeleteCheckpoints(const v1::DeleteCheckpoints& request);

// Writes no page where the folder is away or another job's, or where no step was made and there is no page yet.
v1::WriteReportResult WriteReport(const v1::WriteReport& request);

// Nothing where the folder is away; what fails is not told: the folder is taken over a little later then.
void LeaveFolder(const v1::LeaveFolder& request);

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_ANSWERS_CHECKPOINT_PATHS_H_
