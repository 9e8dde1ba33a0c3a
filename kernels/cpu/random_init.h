// Random initial values by a counter-based generator: an element's value depends on the seed, the tensor's name and its
// place in the logical tensor, so any layout over ranks gives the same model, and every machine the same bits.
#ifndef TACC_KERNELS_CPU_RANDOM_INIT_H_
#define TACC_KERNELS_CPU_RANDOM_INIT_H_

#include <string>

#include "kernels/tensor.h"

namespace tacc::kernels::cpu {

struct RandomKey {
  uint64_t seed = 0;
  uint64_t name_hash = 0;
};

// FNV-1a of the name, 64 bits.
uint64_t HashName(const std::string& name);

// A rectangle of a logical tensor.
struct Rectangle {
  Dims logical;  // dims of the whole tensor
  Dims offset;   // of the first element
  Dims extent;   // elements that exist in each dim; y beyond them (padding) becomes 0
};

enum class Distribution {
  kNormal,           // first = mean, second = standard deviation
  kTruncatedNormal,  // mean 0, first = standard deviation before the cut, second = bound: only values in [-second,
                     // second]
  kUniform,          // [first, second)
  kConstant          // first
};

// Fills y (f32, f64, or narrower: rounded from f32) with the rectangle's values. y.dims are at least rectangle.extent.
// Normal values by inversion: Acklam's rational approximation (relative error 1.2e-9), one 52-bit number an element.
void RandomInit(Distribution distribution, double first, double second, const RandomKey& key,
                const Rectangle& rectangle, const TensorView& y);

}  // namespace tacc::kernels::cpu

#endif  // TACC_KERNELS_CPU_RANDOM_INIT_H_
