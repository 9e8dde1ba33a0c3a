// Whether all bytes of a checkpoint are those that were written.
#ifndef TACC_WORKER_CHECKPOINT_TESTING_VERIFY_CHECKPOINT_H_
#define TACC_WORKER_CHECKPOINT_TESTING_VERIFY_CHECKPOINT_H_

#include <string>

#include "absl/status/status.h"
#include "worker/checkpoint/reader.h"

namespace tacc::worker {

inline absl::Status VerifyCheckpoint(const std::string& path) {
  const auto checkpoint = Checkpoint::Open(path);
  return checkpoint.ok() ? (*checkpoint)->VerifyData(0, 1) : checkpoint.status();
}

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_TESTING_VERIFY_CHECKPOINT_H_
