// Element types and types of tensors.
#ifndef TACC_GRAPH_IR_TYPE_H_
#define TACC_GRAPH_IR_TYPE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tacc::graph {

// Element types. The order is shared with kernels/tensor.h.
enum class DType : uint8_t { kBool, kI32, kI64, kBF16, kF16, kF32, kF64 };

// Bytes of one element (bool: 1).
int64_t ByteSize(DType dtype);
// "bool", "i32", "i64", "bf16", "f16", "f32", "f64".
absl::string_view Name(DType dtype);
// Errors: InvalidArgument.
absl::StatusOr<DType> ParseDType(absl::string_view name);
// True for bf16, f16, f32, f64.
bool IsFloating(DType dtype);
// The dtype in which sums of `dtype` are kept: f32 for bf16, f16 and f32; f64 for f64.
DType AccumulationType(DType dtype);

using Dims = std::vector<int64_t>;

// A dense row-major tensor.
struct TensorType {
  DType dtype = DType::kF32;
  Dims dims;  // empty for a scalar

  int rank() const { return static_cast<int>(dims.size()); }
  int64_t num_elements() const;
  int64_t bytes() const { return num_elements() * ByteSize(dtype); }
  // "f32[4,512]", "i64[]".
  std::string ToString() const;
  bool operator==(const TensorType&) const = default;
};

std::string DimsToString(const Dims& dims);  // "[4,512]"

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_TYPE_H_
