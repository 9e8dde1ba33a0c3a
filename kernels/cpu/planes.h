// Planes: the spatial elements of one channel of one image, in the type in which kernels compute.
#ifndef TACC_KERNELS_CPU_PLANES_H_
#define TACC_KERNELS_CPU_PLANES_H_

#include <omp.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/views.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cpu {

// body(plane, from, to) for each of `num_planes` pairs of planes of `from` and `to`, tensors of one floating dtype: as
// they lie where that is f32 or f64, else converted in scratch memory of each thread. C: float, double.
template <typename C, typename Body>
void ForEachPlaneOf(int64_t num_planes, const TensorView& from, const TensorView& to, const Body& body) {
  if (num_planes == 0) return;
  const int64_t from_size = from.size() / num_planes, to_size = to.size() / num_planes;
  const bool is_converted = SizeOf(from.dtype) == 2;
  const int64_t own = is_converted ? (from_size + to_size + 15) / 16 * 16 : 0;  // elements of a thread, in whole lines
  const Scratch memory(own * omp_get_max_threads() * static_cast<int64_t>(sizeof(C)));
  const int64_t grain = 1 + 16384 / (1 + std::max(from_size, to_size));
  const simd::Loops& loops = simd::BestLoops();
  const simd::In in = In(from);
  const simd::Out out = Out(to);
  ParallelFor(num_planes, grain, [&](int64_t begin, int64_t end) {
    C* converted = static_cast<C*>(memory.data()) + omp_get_thread_num() * own;
    const DType dtype = sizeof(C) == 8 ? DType::kF64 : DType::kF32;
    const auto at = [](const auto& array, int64_t i) { return static_cast<char*>(array) + i; };
    for (int64_t plane = begin; plane < end; ++plane) {
      if (!is_converted) {
        body(plane, from.as<C>() + plane * from_size, to.as<C>() + plane * to_size);
        continue;
      }
      const simd::In plane_in{at(const_cast<void*>(in.data), plane * from_size * 2), in.dtype};
      const simd::Out plane_out{at(out.data, plane * to_size * 2), out.dtype};
      loops.unary(UnaryOp::kCast, 0, 0, plane_in, {converted, dtype}, 0, from_size);
      body(plane, static_cast<const C*>(converted), converted + from_size);
      loops.unary(UnaryOp::kCast, 0, 0, {converted + from_size, dtype}, plane_out, 0, to_size);
    }
  });
}

template <typename Body>
void ForEachPlane(int64_t num_planes, const TensorView& from, const TensorView& to, const Body& body) {
  TACC_KERNEL_CHECK(from.dtype == to.dtype && IsFloat(from.dtype));
  if (from.dtype == DType::kF64) return ForEachPlaneOf<double>(num_planes, from, to, body);
  ForEachPlaneOf<float>(num_planes, from, to, body);
}

}  // namespace tacc::kernels::cpu

#endif  // TACC_KERNELS_CPU_PLANES_H_
