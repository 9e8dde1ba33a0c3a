#ifndef TACC_WORKER_RANK_PROTOCOL_FOLDER_CLAIM_H_
#define TACC_WORKER_RANK_PROTOCOL_FOLDER_CLAIM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"

namespace tacc::worker {

// Rank 0's claim on checkpoint.dir, which its daemon has taken for the job: DIR/writer.json says that this attempt
// writes there, and is renewed on a thread, whatever else the rank waits for. While the folder is away nothing is
// renewed and nothing is lost; one that another has taken over meanwhile is lost. Thread-safe.
class FolderClaim {
 public:
  struct Options {
    std::string dir;
    std::string service;  // These as in FolderWriter.
    std::string job;
    int64_t attempt = 1;
    double renew_seconds = 5;
    double end_seconds = 2;  // How long End may take.
    // Called on any thread when another writes there, more than once: `status` says who.
    std::function<void(const absl::Status& status)> on_lost;
  };

  // Renews it before it returns.
  explicit FolderClaim(Options options);
  // A thread that a file system holds is left to itself.
  ~FolderClaim();
  FolderClaim(const FolderClaim&) = delete;
  FolderClaim& operator=(const FolderClaim&) = delete;

  // Before something is written that others would take for the job's. FailedPrecondition: another writes there; other
  // codes as ErrnoStatus.
  absl::Status Check();

  // The attempt has come to its end, and writes nothing more: the folder is anybody's.
  void End();

 private:
  struct Shared;
  void Stop(bool has_ended);

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;  // Last: it uses the other.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROTOCOL_FOLDER_CLAIM_H_
