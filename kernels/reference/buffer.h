// Buffer: memory of any dtype filled from, and read back as, reference tensors. For tests and benchmarks.
#ifndef TACC_KERNELS_REFERENCE_BUFFER_H_
#define TACC_KERNELS_REFERENCE_BUFFER_H_

#include <ostream>
#include <vector>

#include "kernels/reference/tensor.h"
#include "kernels/tensor.h"

namespace tacc::kernels::reference {

class Buffer {
 public:
  // Where the data start: at a multiple of 16 bytes and one element, or of 16 bytes.
  enum class Placement { kOffByOne, kAligned };

  // Every byte is 0xAB. A guard lies on both sides.
  Buffer(DType dtype, const Dims& dims, Placement placement = Placement::kOffByOne);
  // Holds the values, rounded to the dtype (nearest, ties to even).
  Buffer(DType dtype, const Tensor& tensor, Placement placement = Placement::kOffByOne);

  TensorView view() const { return view_; }
  operator TensorView() const { return view_; }  // NOLINT: tests read better

  Tensor ToTensor() const;
  // True while nothing was written outside the tensor.
  bool GuardsIntact() const;

 private:
  std::vector<char> bytes_;
  TensorView view_;
};

// The values in `view`; and the other way round, rounded to its dtype (nearest, ties to even).
Tensor Read(const TensorView& view);
void Write(const Tensor& tensor, const TensorView& view);

// The values as the dtype can hold them.
Tensor Rounded(const Tensor& tensor, DType dtype);

// Deterministic values in [-scale, scale].
Tensor Random(const Dims& dims, uint64_t seed, double scale = 1);

// How far a result is from what it should be, where it is furthest: a number that a failed test prints with its place.
struct Error {
  double value = 0;
  Dims dims;
  int64_t index = 0;  // row-major
  double got = 0, want = 0;

  operator double() const { return value; }  // NOLINT: tests read better
};
// "0.25 at [1,16] of [2,17]: 1.5, not 1"
std::ostream& operator<<(std::ostream& out, const Error& error);

// The largest |got - want| / (|want| + floor); infinity if one is NaN and the other not, or infinities differ.
Error MaxError(const Tensor& got, const Tensor& want, double floor);

}  // namespace tacc::kernels::reference

#endif  // TACC_KERNELS_REFERENCE_BUFFER_H_
