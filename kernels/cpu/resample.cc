#include "kernels/contract/resample.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/planes.h"

namespace tacc::kernels::cpu {
namespace {

// Of each element of a dim of the result: which neighbouring ones of the operand it sums, with which weights.
struct Dim {
  int64_t operand_size = 0;
  std::vector<int64_t> begins, offsets;  // the weights of element j: [offsets[j], offsets[j + 1])
  std::vector<double> weights;

  int64_t size() const { return static_cast<int64_t>(begins.size()); }
  int64_t count(int64_t j) const { return offsets[j + 1] - offsets[j]; }
};

enum class Direction { kForward, kGradient };

Dim TableOf(const ResampleDim& dim, Direction direction) {
  const bool is_forward = direction == Direction::kForward;
  Dim table{is_forward ? dim.in : dim.out, {}, {0}, {}};
  for (int64_t j = 0; j < (is_forward ? dim.out : dim.in); ++j) {
    const ResampleDim::Range range = is_forward ? dim.ReadBy(j) : dim.ReadersOf(j);
    table.begins.push_back(range.begin);
    for (int64_t k = range.begin; k < range.end; ++k) {
      const int64_t p = is_forward ? j : k, i = is_forward ? k : j;
      table.weights.push_back(dim.Reads(p, i) ? dim.Weight(p, i) : 0);
    }
    table.offsets.push_back(static_cast<int64_t>(table.weights.size()));
  }
  return table;
}

template <typename C>
void SumPlane(const Dim (&dims)[3], double factor, const C* x, C* y) {
  const int64_t row_size = dims[2].size();
  for (int64_t j0 = 0; j0 < dims[0].size(); ++j0) {
    for (int64_t j1 = 0; j1 < dims[1].size(); ++j1) {
      C* row = y + (j0 * dims[1].size() + j1) * row_size;
      std::fill(row, row + row_size, C(0));
      for (int64_t k0 = 0; k0 < dims[0].count(j0); ++k0) {
        for (int64_t k1 = 0; k1 < dims[1].count(j1); ++k1) {
          const double weight = dims[0].weights[dims[0].offsets[j0] + k0] * dims[1].weights[dims[1].offsets[j1] + k1];
          if (weight == 0) continue;  // not read
          const auto scale = static_cast<C>(weight * factor);
          const C* from =
              x + ((dims[0].begins[j0] + k0) * dims[1].operand_size + dims[1].begins[j1] + k1) * dims[2].operand_size;
          for (int64_t j = 0; j < row_size; ++j) {
            C sum = 0;
            const double* weights = dims[2].weights.data() + dims[2].offsets[j];
            for (int64_t k = 0; k < dims[2].count(j); ++k) {
              if (weights[k] != 0) sum += static_cast<C>(weights[k]) * from[dims[2].begins[j] + k];
            }
            row[j] += scale * sum;
          }
        }
      }
    }
  }
}

void Sum(const TensorView& x, const ResampleGrid& grid, Direction direction, const TensorView& y) {
  const Dim dims[3] = {TableOf(grid.dims[0], direction), TableOf(grid.dims[1], direction),
                       TableOf(grid.dims[2], direction)};
  ForEachPlane(x.dims.Product(0, 2), x, y,
               [&](int64_t, const auto* from, auto* to) { SumPlane(dims, grid.factor, from, to); });
}

void Resample(const TensorView& x, const ResampleGrid& grid, const TensorView& y) {
  TACC_KERNEL_CHECK(x.size() == x.dims.Product(0, 2) * grid.in_size() &&
                    y.size() == x.dims.Product(0, 2) * grid.out_size());
  Sum(x, grid, Direction::kForward, y);
}

void ResampleGrad(const TensorView& dy, const ResampleGrid& grid, const TensorView& dx) {
  TACC_KERNEL_CHECK(dx.size() == dx.dims.Product(0, 2) * grid.in_size() &&
                    dy.size() == dx.dims.Product(0, 2) * grid.out_size());
  Sum(dy, grid, Direction::kGradient, dx);
}

}  // namespace

const ResampleKernels kResample = {
    .Resample = Resample,
    .ResampleGrad = ResampleGrad,
};

}  // namespace tacc::kernels::cpu
