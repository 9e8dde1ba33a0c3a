#include <cmath>

#include "kernels/contract/dropout.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/map.h"
#include "kernels/cuda/launch/strided.h"
#include "kernels/cuda/philox.h"

namespace tacc::kernels::cuda {
namespace {

// Indices of a dim as runs of neighbouring positions; those behind the last run are padding.
struct PositionRuns {
  static constexpr int kMax = 128;

  int count = 0;
  int64_t begins[kMax] = {}, positions[kMax] = {};
  int64_t end = 0;

  explicit PositionRuns(const std::vector<int64_t>& given) : end(static_cast<int64_t>(given.size())) {
    for (int64_t i = 0; i < end; ++i) {
      if (i > 0 && given[i] == given[i - 1] + 1) continue;
      TACC_KERNEL_CHECK(count < kMax && "dropout takes positions in at most 128 runs of neighbours");
      begins[count] = i;
      positions[count++] = given[i];
    }
  }

  // Of index i; `otherwise` for padding.
  TACC_DEVICE int64_t Position(int64_t i, int64_t otherwise) const {
    if (i >= end) return otherwise;
    int run = 0;
    while (run + 1 < count && begins[run + 1] <= i) ++run;
    return positions[run] + i - begins[run];
  }
};

// Where elements of an array [B, ...] lie in the logical samples: it is samples of rows of `row` neighbours there.
struct Places {
  int64_t row, rows_of_sample, num_elements;
  bool narrow;  // every index fits 32 bits
  // Where in it row r starts: by strides, but in the first dim (of which each index has rows_of_first rows) by
  // positions, if there are any.
  int64_t start;
  Strided<1> rows;
  int64_t first_stride, rows_of_first, first_offset;
  PositionRuns positions;

  TACC_DEVICE int64_t StartOf(int64_t r) const {
    int64_t offsets[1];
    rows.Offsets(r, offsets);
    int64_t at = start + offsets[0];
    if (positions.count > 0) at += (positions.Position(r / rows_of_first, first_offset) - first_offset) * first_stride;
    return at;
  }

  // Calls f(j, sample, position) for the elements first + j, j < n, in order.
  template <typename F>
  TACC_DEVICE void ForEachElement(int64_t first, int n, const F& f) const {
    const Quotient at = Divide(narrow, first, row);
    Quotient place = Divide(narrow, at.quotient, rows_of_sample);  // sample, row of it
    int64_t left = row - at.rest;                                  // in this row, from the next element on
    int64_t position = StartOf(place.rest) + at.rest;
#pragma unroll
    for (int j = 0; j < n; ++j, ++position, --left) {
      if (left == 0 && first + j < num_elements) {
        left = row;
        if (++place.rest == rows_of_sample) place = {place.quotient + 1, 0};
        position = StartOf(place.rest);
      }
      f(j, place.quotient, position);
    }
  }
};

struct DropoutOf {
  const int64_t *step, *sample;
  DropoutKeys keys;
  double scale;
  Places places;

  template <typename T, int W>
  TACC_DEVICE void operator()(int64_t first, const T (&x)[1][W], T (&y)[1][W]) const {
    const T factor = static_cast<T>(scale);
    const uint64_t now = static_cast<uint64_t>(*step);
    int64_t row = -1, block = -1;
    Philox random(0, 0, 0, 0, 0, 0);
    places.ForEachElement(first, W, [&](int j, int64_t b, int64_t position) {
      if (row != b || block != position / 4) {
        row = b;
        block = position / 4;
        random = keys.RandomOf(static_cast<uint64_t>(block), static_cast<uint64_t>(sample[b]), now);
      }
      y[0][j] = random.Word(position % 4) < keys.threshold ? T(0) : x[0][j] * factor;
    });
  }
};
static_assert(sizeof(DropoutOf) < 3000);  // of a kernel's 4 KB

Places PlacesOf(const Dims& dims, const TensorView& step, const TensorView& sample, const SamplePart& part) {
  TACC_KERNEL_CHECK(dims.rank() >= 1 && sample.size() == dims[0] && sample.dtype == DType::kI64);
  TACC_KERNEL_CHECK(step.size() == 1 && step.dtype == DType::kI64);
  const Dims own(dims.begin() + 1, dims.end());
  const Dims& logical = part.logical.empty() ? own : part.logical;
  TACC_KERNEL_CHECK(logical.rank() == own.rank() && (part.offset.empty() || part.offset.rank() == own.rank()));
  const int64_t num_positions = static_cast<int64_t>(part.positions.size());
  const int64_t num_elements = dims.Product(0, dims.rank());
  TACC_KERNEL_CHECK(num_positions == 0 ||
                    (own.rank() >= 2 && part.offset.rank() == own.rank() && num_positions <= own[0]));
  // A row is dense in the logical sample too: trailing dims that are whole, and the one before them.
  const int rank = own.rank();
  int first = rank > 0 ? rank - 1 : 0;
  while (first > (num_positions == 0 ? 0 : 1) && own[first] == logical[first]) --first;
  Dims strides = logical;
  int64_t stride = 1, start = 0;
  for (int d = rank - 1; d >= 0; stride *= logical[d], --d) strides[d] = stride;
  for (int d = 0; d < part.offset.rank(); ++d) start += part.offset[d] * strides[d];
  const int64_t first_stride = rank > 0 ? strides[0] : 1;
  if (num_positions > 0) strides[0] = 0;
  return {
      .row = own.Product(first, rank),
      .rows_of_sample = own.Product(0, first),
      .num_elements = num_elements,
      .narrow = num_elements <= INT32_MAX,
      .start = start,
      .rows = {Dims(own.begin(), own.begin() + first), {Dims(strides.begin(), strides.begin() + first)}},
      .first_stride = first_stride,
      .rows_of_first = num_positions == 0 ? 1 : own.Product(1, first),
      .first_offset = part.offset.empty() ? 0 : part.offset[0],
      .positions = PositionRuns(part.positions),
  };
}

void Dropout(const TensorView& x, const TensorView& step, const TensorView& sample, const SamplePart& part,
             const DropoutParameters& parameters, const TensorView& y) {
  TACC_KERNEL_CHECK(parameters.rate >= 0 && parameters.rate < 1 && x.size() == y.size());
  if (x.size() == 0) return;
  const DropoutOf f{
      .step = step.as<int64_t>(),
      .sample = sample.as<int64_t>(),
      .keys = KeysOf(parameters),
      .scale = 1 / (1 - parameters.rate),
      .places = PlacesOf(x.dims, step, sample, part),
  };
  WithComputeType({x}, [&]<typename T>(T) { Map<T, 1, 1>({x}, {y}, f); });
}

template <typename T>
struct RandomOf {
  const int64_t *step, *sample;
  DropoutKeys keys;
  Distribution distribution;
  Places places;
  T* y;

  static TACC_DEVICE T Unit(uint32_t word) { return static_cast<T>(word >> 8) * static_cast<T>(0x1p-24); }

  TACC_DEVICE void operator()(int64_t i) const {
    places.ForEachElement(i, 1, [&](int, int64_t b, int64_t position) {
      const Philox random = keys.RandomOf(static_cast<uint64_t>(position / 4), static_cast<uint64_t>(sample[b]),
                                          static_cast<uint64_t>(*step));
      const int64_t word = position % 4;
      if (distribution == Distribution::kUniform) {
        y[i] = Unit(random.Word(word));
        return;
      }
      // Half a turn less, and so of the other sign: T has the smaller angle more exactly.
      const T u = Unit(random.Word(word & 2)), angle = T(6.283185307179586) * (Unit(random.Word(word | 1)) - T(0.5));
      y[i] = -std::sqrt(T(-2) * std::log1p(-u)) * (word % 2 == 0 ? std::cos(angle) : std::sin(angle));
    });
  }
};
static_assert(sizeof(RandomOf<float>) < 3000);  // of a kernel's 4 KB

void Random(const TensorView& step, const TensorView& sample, const SamplePart& part,
            const RandomParameters& parameters, const TensorView& y) {
  TACC_KERNEL_CHECK(y.dtype == DType::kF32 || y.dtype == DType::kF64);
  if (y.size() == 0) return;
  WithComputeType({y}, [&]<typename T>(T) {
    ForEach(y.size(), RandomOf<T>{
                          .step = step.as<int64_t>(),
                          .sample = sample.as<int64_t>(),
                          .keys = KeysOf({.rate = 0, .key = parameters.key, .seed = parameters.seed}),
                          .distribution = parameters.distribution,
                          .places = PlacesOf(y.dims, step, sample, part),
                          .y = y.as<T>(),
                      });
  });
}

}  // namespace

const DropoutKernels kDropout = {
    .Dropout = Dropout,
    .Random = Random,
};

}  // namespace tacc::kernels::cuda
