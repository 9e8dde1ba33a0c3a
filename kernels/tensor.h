// TensorView: a dense row-major tensor somewhere in memory, as every kernel sees it. No LibTorch, no ownership.
#ifndef TACC_KERNELS_TENSOR_H_
#define TACC_KERNELS_TENSOR_H_

#include <array>
#include <cstdint>
#include <initializer_list>

#include "kernels/check.h"

namespace tacc::kernels {

// Element types, in the order of the graph's own enumeration.
enum class DType : uint8_t { kBool, kI32, kI64, kBF16, kF16, kF32, kF64 };

// Bytes of one element.
constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return 1;
    case DType::kBF16:
    case DType::kF16:
      return 2;
    case DType::kI32:
    case DType::kF32:
      return 4;
    case DType::kI64:
    case DType::kF64:
      return 8;
  }
  return 0;
}

constexpr bool IsFloat(DType dtype) { return dtype >= DType::kBF16; }
constexpr const char* Name(DType dtype) {
  constexpr const char* kNames[] = {"bool", "i32", "i64", "bf16", "f16", "f32", "f64"};
  return kNames[static_cast<int>(dtype)];
}

// Extents of a tensor, outermost first; at most kMaxRank of them, stored inline.
class Dims {
 public:
  static constexpr int kMaxRank = 8;

  Dims() = default;
  Dims(std::initializer_list<int64_t> values) {
    for (int64_t value : values) push_back(value);
  }
  template <typename Iterator>
  Dims(Iterator first, Iterator last) {
    for (; first != last; ++first) push_back(*first);
  }

  int rank() const { return rank_; }
  bool empty() const { return rank_ == 0; }
  int64_t operator[](int i) const { return values_[i]; }
  int64_t& operator[](int i) { return values_[i]; }
  int64_t back() const { return values_[rank_ - 1]; }
  const int64_t* begin() const { return values_.data(); }
  const int64_t* end() const { return values_.data() + rank_; }
  void push_back(int64_t value) {
    TACC_KERNEL_CHECK(rank_ < kMaxRank);
    values_[rank_++] = value;
  }
  // Product of the extents [first, last).
  int64_t Product(int first, int last) const {
    int64_t product = 1;
    for (int i = first; i < last; ++i) product *= values_[i];
    return product;
  }
  int64_t Product() const { return Product(0, rank_); }

  friend bool operator==(const Dims& a, const Dims& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i) {
      if (a.values_[i] != b.values_[i]) return false;
    }
    return true;
  }

 private:
  std::array<int64_t, kMaxRank> values_{};
  int rank_ = 0;
};

// Distances in elements between neighbours in each dim; 0 repeats.
using Strides = Dims;

// Row-major strides of a dense tensor.
inline Strides DenseStrides(const Dims& dims) {
  Strides strides = dims;
  int64_t stride = 1;
  for (int i = dims.rank() - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= dims[i];
  }
  return strides;
}

struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Dims dims;

  int64_t size() const { return dims.Product(); }
  int64_t bytes() const { return size() * SizeOf(dtype); }
  // The extent of the last dim (1 for rank 0) and the number of rows of that length.
  int64_t row_length() const { return dims.empty() ? 1 : dims.back(); }
  int64_t num_rows() const { return dims.empty() ? 1 : dims.Product(0, dims.rank() - 1); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_TENSOR_H_
