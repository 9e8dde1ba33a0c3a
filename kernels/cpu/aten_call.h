// LibTorch's operators by name, on any device of LibTorch.
#ifndef TACC_KERNELS_CPU_ATEN_CALL_H_
#define TACC_KERNELS_CPU_ATEN_CALL_H_

#include <c10/core/DeviceType.h>

#include <string>
#include <vector>

#include "kernels/contract/aten.h"

namespace tacc::kernels::cpu {

// AtenKernels::PrepareAten for tensors on the current device of that type.
absl::StatusOr<std::shared_ptr<const AtenKernel>> PrepareAtenOn(c10::DeviceType device, const AtenCall& call);

// The operators that there are now, LibTorch's and those of libraries that were loaded: "aten::cumsum", sorted.
std::vector<std::string> OperatorNames();

extern const AtenKernels kAten;

}  // namespace tacc::kernels::cpu

#endif  // TACC_KERNELS_CPU_ATEN_CALL_H_
