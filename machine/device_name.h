#ifndef TACC_MACHINE_DEVICE_NAME_H_
#define TACC_MACHINE_DEVICE_NAME_H_

#include <string>
#include <vector>

namespace tacc {

// The kinds of device that ranks run on, as probes and programs name them, best first: a job gets free devices of one
// kind, the first of which there are enough.
const std::vector<std::string>& DeviceKinds();

// Whether devices of this kind compute on the processors of their machine, on which its ranks take turns.
bool SharesProcessors(const std::string& kind);

// What IsDevice takes, for errors.
inline constexpr char kDeviceNames[] = "cpu, cuda:N or reference";

// Whether `device` names a device of a machine: a kind of which it has one, or "cuda:N" with N of at most three digits.
bool IsDevice(const std::string& device);

// "cuda:3" -> 3; -1: not a GPU.
int GpuOrdinal(const std::string& device);
inline bool IsGpu(const std::string& device) { return GpuOrdinal(device) >= 0; }

}  // namespace tacc

#endif  // TACC_MACHINE_DEVICE_NAME_H_
