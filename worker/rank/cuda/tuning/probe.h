#ifndef TACC_WORKER_RANK_CUDA_TUNING_PROBE_H_
#define TACC_WORKER_RANK_CUDA_TUNING_PROBE_H_

#include <string>

#include "absl/status/statusor.h"

namespace tacc::worker {

// JSON of docs/contracts.md, as `tacc-rank --probe`, `--look` and `--devices` print it. Errors: NotFound when the
// machine has no such GPU, FailedPrecondition when it has no driver that is new enough: bad input; else the GPU does
// not work. Each makes `device` the thread's current one.

// Measures the GPU in less than 3 s.
absl::StatusOr<std::string> ProbeCudaDevice(int device);

// What needs no measurement, once the GPU has set and copied a little memory.
absl::StatusOr<std::string> LookAtCudaDevice(int device);

// The GPUs of the machine as a JSON list of {"name", "kind", "model"}; empty without a driver.
std::string CudaDevices();

// The driver's version in the text of /proc/driver/nvidia/version; empty where it has none.
std::string DriverVersion(const std::string& text);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_TUNING_PROBE_H_
