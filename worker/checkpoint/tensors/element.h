// Floating-point elements of files to and from fp32.
#ifndef TACC_WORKER_CHECKPOINT_TENSORS_ELEMENT_H_
#define TACC_WORKER_CHECKPOINT_TENSORS_ELEMENT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace tacc::worker {

// Converts `count` elements of "F64", "F32", "F16" or "BF16" at `source` (unaligned) to fp32. InvalidArgument for other
// dtypes.
absl::Status ConvertToFloat(const std::string& dtype, const char* source, int64_t count, float* target);

// Converts `count` fp32 values to "F32", "F16" or "BF16" at `target` (unaligned), rounding to nearest, ties to even;
// too large values become infinite. InvalidArgument for other dtypes.
absl::Status ConvertFromFloat(const std::string& dtype, const float* source, int64_t count, char* target);

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_TENSORS_ELEMENT_H_
