#include "kernels/reference/joined.h"

#include <cmath>

namespace tacc::kernels::reference {
namespace {

Tensor Join(const Tensor& q, const Tensor& k, const Tensor& v, int64_t pitch) {
  Tensor whole(Dims{q.dims[0], q.dims[1], pitch});
  for (double& value : whole.values) value = std::nan("");
  int64_t first = 0;
  for (const Tensor* part : {&q, &k, &v}) {
    const int64_t width = part->dims.Product(2, 4);
    for (int64_t i = 0; i < part->size(); ++i) whole[i / width * pitch + first + i % width] = (*part)[i];
    first += width;
  }
  return whole;
}

}  // namespace

Joined::Joined(DType dtype, const Dims& q, const Dims& k, int64_t pitch, Buffer::Placement placement)
    : buffer_(dtype, Dims{q[0], q[1], pitch}, placement), q_(q), k_(k) {}

Joined::Joined(DType dtype, const Tensor& q, const Tensor& k, const Tensor& v, int64_t pitch,
               Buffer::Placement placement)
    : buffer_(dtype, Join(q, k, v, pitch), placement), q_(q.dims), k_(k.dims) {}

TensorView Joined::Part(int64_t first, const Dims& dims) const {
  const TensorView whole = buffer_.view();
  return {whole.as<char>() + first * SizeOf(whole.dtype), whole.dtype, dims};
}

Tensor Joined::Alone(const TensorView& part) const {
  const TensorView whole = buffer_.view();
  const Tensor values = buffer_.ToTensor();
  const int64_t width = part.dims.Product(2, 4), pitch = whole.dims[2];
  const int64_t first = (part.as<char>() - whole.as<char>()) / SizeOf(whole.dtype);
  Tensor alone(part.dims);
  for (int64_t i = 0; i < alone.size(); ++i) alone[i] = values[i / width * pitch + first + i % width];
  return alone;
}

bool Joined::GuardsIntact() const {
  const Tensor values = buffer_.ToTensor();
  const int64_t width = (q_[2] + 2 * k_[2]) * q_[3], pitch = buffer_.view().dims[2];
  const double guard = Buffer(buffer_.view().dtype, Dims{1}).ToTensor()[0];
  for (int64_t i = 0; i < values.size(); ++i) {
    if (i % pitch >= width && values[i] != guard) return false;
  }
  return buffer_.GuardsIntact();
}

}  // namespace tacc::kernels::reference
