// What the coordinator asks a daemon to do with a job's paths: see that they are there, claim the checkpoint directory,
// list and delete checkpoints.
#ifndef WORKER_DAEMON_CHECKPOINT_PATHS_H_
#define WORKER_DAEMON_CHECKPOINT_PATHS_H_

#include <string>

#include "tacc/v1/worker.pb.h"

namespace tacc::worker {

// Both do what proto/tacc/v1/worker.proto says of the request. They touch file systems that may be slow or stuck: not
// for a thread that must go on.

// `patience_seconds`: how long EXPECT waits for job.json to show up, because network file systems let other hosts see a
// new file late. `coordinator`: the address of the one that asks, as this daemon knows it.
v1::CheckPathsResult CheckPaths(const v1::CheckPaths& request, double patience_seconds,
                                const std::string& coordinator = "");

// Deletes only directories directly inside checkpoint_dir whose names are those of checkpoints.
v1::DeleteCheckpointsResult DeleteCheckpoints(const v1::DeleteCheckpoints& request);

}  // namespace tacc::worker

#endif  // WORKER_DAEMON_CHECKPOINT_PATHS_H_
