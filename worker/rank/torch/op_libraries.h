// Shared libraries that register operators with LibTorch. Whoever runs the worker chooses them, nothing of a job does:
// their code runs in this process, with all its rights.
#ifndef TACC_WORKER_RANK_TORCH_OP_LIBRARIES_H_
#define TACC_WORKER_RANK_TORCH_OP_LIBRARIES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tacc::worker {

enum class Gpus {
  kHidden,  // For good, of all that is loaded from then on: a rank on a CPU has nothing to look for there.
  kVisible,
};

// Loads the libraries, absolute paths, in this order, for as long as the process lives, and what of LibTorch they need.
// A library may name libtorch_python.so among what it needs, as those of torch.utils.cpp_extension do; but there is no
// Python here: it may use functions of it that nobody calls, such as those that make it a module. InvalidArgument, with
// the file: one cannot be loaded, and why.
absl::Status LoadOpLibraries(const std::vector<std::string>& files, Gpus gpus);

// Loads them; returns the operators that came with them, sorted: "torchvision::roi_align".
absl::StatusOr<std::vector<std::string>> OperatorsOf(const std::vector<std::string>& files);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TORCH_OP_LIBRARIES_H_
