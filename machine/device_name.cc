#include "machine/device_name.h"

#include <algorithm>
#include <cstdlib>

namespace tacc {
namespace {

constexpr char kGpuKind[] = "cuda";

}  // namespace

const std::vector<std::string>& DeviceKinds() {
  static const std::vector<std::string> kinds = {kGpuKind, "cpu", "reference"};
  return kinds;
}

bool SharesProcessors(const std::string& kind) { return kind != kGpuKind; }

bool IsDevice(const std::string& device) {
  const std::vector<std::string>& kinds = DeviceKinds();
  return IsGpu(device) || (device != kGpuKind && std::find(kinds.begin(), kinds.end(), device) != kinds.end());
}

int GpuOrdinal(const std::string& device) {
  const std::string prefix = std::string(kGpuKind) + ":";
  const std::string ordinal = device.compare(0, prefix.size(), prefix) == 0 ? device.substr(prefix.size()) : "";
  if (ordinal.empty() || ordinal.size() > 3 || ordinal.find_first_not_of("0123456789") != std::string::npos) return -1;
  return std::atoi(ordinal.c_str());
}

}  // namespace tacc
