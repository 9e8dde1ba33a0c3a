// What the libraries of --op-library bring, as `tacc-rank --operators` finds it.
#ifndef TACC_WORKER_DAEMON_ANSWERS_OP_LIBRARIES_H_
#define TACC_WORKER_DAEMON_ANSWERS_OP_LIBRARIES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "confinement/confine.h"

namespace tacc::worker {

struct OpLibraryRequest {
  std::string rank_path;           // tacc-rank.
  std::vector<std::string> files;  // As TrustedFile has found them.
  Confinement confinement;         // Of ranks.
  double timeout_seconds = 60;
  std::vector<int> end_descriptors;  // It is given up when one of these is readable or at its end of file.
};

// Loads them in a process that is confined as a rank is, and returns the operators that they add: "torchvision::nms".
// Errors: InvalidArgument when one cannot be loaded, or all together add none; FailedPrecondition when that cannot be
// found out; Cancelled.
absl::StatusOr<std::vector<std::string>> TryOpLibraries(const OpLibraryRequest& request);

// Their namespaces and numbers, for the log: "torchvision (12 operators)".
std::string InWords(const std::vector<std::string>& operators);

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_ANSWERS_OP_LIBRARIES_H_
