// Which devices of this machine the workers of a local job run on.
#ifndef TACC_CLIENT_TACCCTL_LOCAL_DEVICES_H_
#define TACC_CLIENT_TACCCTL_LOCAL_DEVICES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/taccctl/session/context.h"

namespace tacc::client {

// What --device takes: GPUs where there are enough of them, else CPUs; or one of both.
inline constexpr char kAutoDevice[] = "auto";
inline constexpr char kCpuDevice[] = "cpu";
inline constexpr char kCudaDevice[] = "cuda";

// The GPUs that `tacc-rank --devices` lists: "cuda:0", "cuda:1"; none where the folder of the binaries has no CUDA
// module. Errors: Internal with what tacc-rank said.
absl::StatusOr<std::vector<std::string>> ListGpus(const Context& context);

// The device of each worker: `num_workers` of them, each with a GPU of its own or all on CPUs. 0: a worker for each
// GPU, or `num_cpu_workers` on CPUs. Where "auto" passes by GPUs that are too few (or cannot be listed), a line on
// `context.err` says so. InvalidArgument when "cuda" is asked for and they are too few.
absl::StatusOr<std::vector<std::string>> ChooseDevices(const std::string& device, int num_workers, int num_cpu_workers,
                                                       const Context& context);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_LOCAL_DEVICES_H_
