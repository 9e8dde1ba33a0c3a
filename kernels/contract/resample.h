// Images [N,C,spatial...] whose spatial dims are made anew, 1 to 3 of them: an element is a weighted sum of
// neighbouring ones of the other image, with weights that are a product over the dims. Average pools and interpolation
// are such, and their gradients with the images' parts exchanged.
#ifndef TACC_KERNELS_CONTRACT_RESAMPLE_H_
#define TACC_KERNELS_CONTRACT_RESAMPLE_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

enum class Resampling : uint8_t {
  kWindows,       // the mean of a window
  kWindowSums,    // its sum
  kAdaptive,      // the mean of the elements from floor(p in / out) to ceil((p + 1) in / out)
  kNearest,       // element floor(p scale)
  kNearestExact,  // element floor((p + 1/2) scale)
  kLinear,        // between two elements
  kCubic,         // a cubic through four (Keys, a = -3/4); beyond the border its element is repeated
};

// One spatial dim: elements p of `out` from elements i of `in`. All is computed as PyTorch does (nearest elements from
// a scale in f32).
struct ResampleDim {
  Resampling kind = Resampling::kWindows;
  int64_t in = 1, out = 1;
  int64_t kernel = 1, stride = 1, padding = 0;  // kWindows, kWindowSums
  bool counts_padding = false;                  // kWindows: the mean is over the window's padding too
  bool aligns_corners = false;                  // kLinear, kCubic: the first and last elements' centers are the same
  double scale = 1;                             // elements of `in` for one of `out`; of kNearest and on

  struct Range {
    int64_t begin, end;
  };
  static constexpr int64_t Min(int64_t a, int64_t b) { return a < b ? a : b; }
  static constexpr int64_t Max(int64_t a, int64_t b) { return a > b ? a : b; }
  static constexpr int64_t Floor(double x) {
    const auto whole = static_cast<int64_t>(x);
    return whole - (x < static_cast<double>(whole));
  }
  constexpr int64_t NearestOf(int64_t p) const {
    const auto s = static_cast<float>(scale);
    if (kind == Resampling::kNearestExact)
      return Min(Floor(static_cast<float>((static_cast<double>(p) + 0.5) * s)), in - 1);
    return in == out ? p : Min(Floor(static_cast<float>(p) * s), in - 1);
  }
  // Where the center of element p lies among the centers of `in`.
  constexpr double SourceOf(int64_t p) const {
    if (aligns_corners) return scale * static_cast<double>(p);
    const double source = scale * (static_cast<double>(p) + 0.5) - 0.5;
    return kind == Resampling::kLinear && source < 0 ? 0 : source;
  }
  // The elements of a window before those of the padding behind are dropped, whose number may be the mean's.
  constexpr Range WindowOf(int64_t p) const {
    const int64_t begin = p * stride - padding;
    return {begin, Min(begin + kernel, in + padding)};
  }

  // The elements of `in` that element p reads.
  constexpr Range ReadBy(int64_t p) const {
    switch (kind) {
      case Resampling::kWindows:
      case Resampling::kWindowSums: {
        const Range window = WindowOf(p);
        return {Max(window.begin, 0), Min(window.end, in)};
      }
      case Resampling::kAdaptive:
        return {p * in / out, ((p + 1) * in + out - 1) / out};
      case Resampling::kNearest:
      case Resampling::kNearestExact: {
        const int64_t i = NearestOf(p);
        return {i, i + 1};
      }
      case Resampling::kLinear: {
        const int64_t i = Min(Floor(SourceOf(p)), in - 1);
        return {i, Min(i + 2, in)};
      }
      case Resampling::kCubic: {
        const int64_t i = Floor(SourceOf(p));
        return {Min(Max(i - 1, 0), in - 1), Max(Min(i + 3, in), 1)};
      }
    }
    return {0, 0};
  }

  // Of element i, which element p reads.
  constexpr double Weight(int64_t p, int64_t i) const {
    switch (kind) {
      case Resampling::kWindows: {
        const Range counted = counts_padding ? WindowOf(p) : ReadBy(p);
        return 1.0 / static_cast<double>(counted.end - counted.begin);
      }
      case Resampling::kAdaptive: {
        const Range read = ReadBy(p);
        return 1.0 / static_cast<double>(read.end - read.begin);
      }
      case Resampling::kWindowSums:
      case Resampling::kNearest:
      case Resampling::kNearestExact:
        return 1;
      case Resampling::kLinear: {
        const double source = SourceOf(p);
        const int64_t first = Min(Floor(source), in - 1);
        const double to_second = source - static_cast<double>(first);
        if (first == in - 1) return 1;  // both are the last element
        return i == first ? 1 - to_second : to_second;
      }
      case Resampling::kCubic: {
        const double source = SourceOf(p);
        const int64_t first = Floor(source) - 1;
        double weight = 0;
        for (int64_t k = 0; k < 4; ++k) {
          if (Min(Max(first + k, 0), in - 1) == i) weight += Cubic(source - static_cast<double>(first + k));
        }
        return weight;
      }
    }
    return 0;
  }

  // Elements of `out` among which are all that read element i.
  constexpr Range ReadersOf(int64_t i) const {
    switch (kind) {
      case Resampling::kWindows:
      case Resampling::kWindowSums: {
        const int64_t before = i + padding - kernel + 1;
        return {before <= 0 ? 0 : (before + stride - 1) / stride, Min((i + padding) / stride + 1, out)};
      }
      case Resampling::kAdaptive:
        return {i * out / in, Min(((i + 1) * out + in - 1) / in, out)};
      default: {
        // One that reads i has its source within two elements of i, or beyond a border that i is at.
        if (scale <= 0) return {0, out};
        const auto margin = static_cast<double>(kind == Resampling::kCubic ? 3 : 2);
        const double first = (static_cast<double>(i) - margin) / scale - 1;
        const double last = (static_cast<double>(i) + margin) / scale + 1;
        const int64_t begin = i <= 2 ? 0 : Max(Floor(first), 0), end = i >= in - 3 ? out : Min(Floor(last) + 1, out);
        return {Min(begin, out), Max(end, 0)};
      }
    }
  }
  constexpr bool Reads(int64_t p, int64_t i) const {
    const Range read = ReadBy(p);
    return i >= read.begin && i < read.end;
  }

 private:
  static constexpr double Cubic(double distance) {
    constexpr double kA = -0.75;
    const double x = distance < 0 ? -distance : distance;
    if (x <= 1) return ((kA + 2) * x - (kA + 3)) * x * x + 1;
    return x < 2 ? ((kA * x - 5 * kA) * x + 8 * kA) * x - 4 * kA : 0;
  }
};

// All spatial dims: those that an image lacks are of one element, in front. `factor`: of every weight.
struct ResampleGrid {
  ResampleDim dims[3];
  double factor = 1;

  constexpr int64_t in_size() const { return dims[0].in * dims[1].in * dims[2].in; }
  constexpr int64_t out_size() const { return dims[0].out * dims[1].out * dims[2].out; }
};

struct ResampleKernels {
  // x [N,C,in...] -> y [N,C,out...], in sums of f32 (f64).
  void (&Resample)(const TensorView& x, const ResampleGrid& grid, const TensorView& y);

  // dy [N,C,out...] -> dx [N,C,in...]: each element the weighted sum over those that read it, in their order.
  void (&ResampleGrad)(const TensorView& dy, const ResampleGrid& grid, const TensorView& dx);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_RESAMPLE_H_
