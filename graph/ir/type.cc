#include "graph/ir/type.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tacc::graph {
namespace {

struct DTypeFact {
  const char* name;
  int64_t bytes;
};
constexpr DTypeFact kFacts[] = {{"bool", 1}, {"i32", 4}, {"i64", 8}, {"bf16", 2}, {"f16", 2}, {"f32", 4}, {"f64", 8}};

}  // namespace

int64_t ByteSize(DType dtype) { return kFacts[static_cast<int>(dtype)].bytes; }
absl::string_view Name(DType dtype) { return kFacts[static_cast<int>(dtype)].name; }

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (int i = 0; i < 7; ++i) {
    if (name == kFacts[i].name) return static_cast<DType>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown dtype '", name, "'; use bool, i32, i64, bf16, f16, f32 or f64"));
}

bool IsFloating(DType dtype) { return dtype >= DType::kBF16; }

DType AccumulationType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

int64_t TensorType::num_elements() const {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

std::string DimsToString(const Dims& dims) { return absl::StrCat("[", absl::StrJoin(dims, ","), "]"); }

std::string TensorType::ToString() const { return absl::StrCat(Name(dtype), DimsToString(dims)); }

}  // namespace tacc::graph
