// Adafactor (kernels/contract/adafactor.h). Sums by row and by column have an order that the dims alone decide.
#include <math.h>

#include <algorithm>

#include "kernels/contract/adafactor.h"
#include "kernels/contract/shape.h"
#include "kernels/contract/unary.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/elementary.h"
#include "kernels/cuda/launch/load.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/workspace.h"

namespace tacc::kernels::cuda {
namespace {

constexpr int kTeam = 256;
constexpr int64_t kChunk = 16384;      // elements whose squares a team sums
constexpr int64_t kRowsOfBlock = 128;  // rows of a matrix whose columns a team sums, at least
constexpr int64_t kMaxBlocks = 64;     // of a matrix
constexpr int64_t kMaxPartials = 1 << 20;

// A MatrixPart as the GPU sees it. Its elements are counted inside the bounds.
struct Part {
  int rank = 0;
  int64_t bounds[Dims::kMaxRank] = {}, begin[Dims::kMaxRank] = {};
  int64_t local[Dims::kMaxRank] = {}, whole[Dims::kMaxRank] = {};  // strides in memory and in the stack
  int64_t count = 1, run = 1;                                      // elements, and of a run along the last dim
  int64_t rows = 1, columns = 1;
  bool is_factored = true;

  // Where element i lies in memory and in the stack.
  TACC_DEVICE void Locate(int64_t i, int64_t* offset, int64_t* at) const {
    *offset = *at = 0;
    for (int d = rank - 1; d >= 0; --d) {
      const int64_t index = i % bounds[d];
      i /= bounds[d];
      *offset += index * local[d];
      *at += (begin[d] + index) * whole[d];
    }
  }
  // Where element `at` of the stack lies in memory; -1: not in the part.
  TACC_DEVICE int64_t OffsetOf(int64_t at) const {
    int64_t offset = 0;
    for (int d = 0; d < rank; ++d) {
      const int64_t index = at / whole[d] - begin[d];
      at %= whole[d];
      if (index < 0 || index >= bounds[d]) return -1;
      offset += index * local[d];
    }
    return offset;
  }
  TACC_DEVICE int64_t StartOfRun(int64_t k) const {
    int64_t offset, at;
    Locate(k * run, &offset, &at);
    return at;
  }
  // The first run that ends behind element `at` of the stack. Runs ascend in it.
  TACC_DEVICE int64_t FirstRunBehind(int64_t at) const {
    int64_t low = 0, high = count / run;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (StartOfRun(middle) + run > at) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
};

Part Describe(const TensorView& x, const MatrixPart& given) {
  TACC_KERNEL_CHECK(x.dtype == DType::kF32 || x.dtype == DType::kF64);
  TACC_KERNEL_CHECK(given.bounds.rank() == x.dims.rank() && given.begin.rank() == x.dims.rank());
  Part part;
  part.rank = x.dims.rank();
  const Strides local = DenseStrides(x.dims), whole = DenseStrides(given.logical);
  for (int d = 0; d < part.rank; ++d) {
    part.bounds[d] = given.bounds[d];
    part.begin[d] = given.begin[d];
    part.local[d] = local[d];
    part.whole[d] = whole[d];
    part.count *= given.bounds[d];
  }
  if (part.rank > 0) part.run = given.bounds.back();
  part.rows = given.rows;
  part.columns = given.columns;
  part.is_factored = given.is_factored;
  return part;
}

struct Gradient {
  AnyIn g, scale;
  double epsilon = 0;
  TACC_DEVICE double Scaled(int64_t offset) const { return g.Load<double>(offset) * scale.Load<double>(0); }
  TACC_DEVICE double Square(int64_t offset) const {
    const double scaled = Scaled(offset);
    return scaled * scaled + epsilon;
  }
};

// A team for each row of the stack.
struct SumRow {
  Part part;
  Gradient gradient;
  AnyOut sums;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    const int64_t begin = row * part.columns, end = begin + part.columns;
    double sum = 0;
    if (part.count > 0) {
      const int64_t first = part.FirstRunBehind(begin) * part.run;
      for (int64_t i = first + team.rank(); i < part.count; i += team.size()) {
        int64_t offset, at;
        part.Locate(i, &offset, &at);
        if (at >= end) break;
        if (at >= begin) sum += gradient.Square(offset);
      }
    }
    const double total = team.Sum(sum);
    if (team.rank() == 0) sums.Store(row, total);
  }
};

// A team for some columns of a block of a matrix's rows.
struct SumColumns {
  Part part;
  Gradient gradient;
  int64_t matrices, blocks, tiles;
  double* partial;  // [blocks, matrices, columns]

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const int64_t tile = index % tiles, block = index / tiles % blocks, matrix = index / tiles / blocks;
    const int64_t first = part.rows * block / blocks, limit = part.rows * (block + 1) / blocks;
    for (int64_t column = tile * kTeam + team.rank(); column < part.columns && column < (tile + 1) * kTeam;
         column += team.size()) {
      double sum = 0;
      for (int64_t row = first; row < limit; ++row) {
        const int64_t offset = part.count == 0 ? -1 : part.OffsetOf((matrix * part.rows + row) * part.columns + column);
        if (offset >= 0) sum += gradient.Square(offset);
      }
      partial[(block * matrices + matrix) * part.columns + column] = sum;
    }
  }
};

struct SumBlocks {
  const double* partial;
  int64_t blocks, columns;  // of all matrices
  AnyOut sums;

  TACC_DEVICE void operator()(int64_t column) const {
    double sum = 0;
    for (int64_t block = 0; block < blocks; ++block) sum += partial[block * columns + column];
    sums.Store(column, sum);
  }
};

int64_t NumBlocks(int64_t rows, int64_t columns) {
  const int64_t room = kMaxPartials / std::max<int64_t>(columns, 1);
  return std::max<int64_t>(1, std::min({kMaxBlocks, room, rows / kRowsOfBlock}));
}

void SquareSums(const TensorView& g, const MatrixPart& given, const TensorView& grad_scale, double epsilon,
                const SecondMoments& sums) {
  const Part part = Describe(g, given);
  const Gradient gradient{In(g), In(grad_scale), epsilon};
  ForEachTeam(sums.row.size(), kTeam, 0, SumRow{part, gradient, Out(sums.row)});
  if (!given.is_factored) return;
  const int64_t columns = sums.column.size(), blocks = NumBlocks(given.rows, columns);
  const int64_t matrices = columns / given.columns, tiles = (given.columns + kTeam - 1) / kTeam;
  const Scratch scratch(blocks * columns * static_cast<int64_t>(sizeof(double)));
  double* partial = static_cast<double*>(scratch.data());
  ForEachTeam(matrices * blocks * tiles, kTeam, 0, SumColumns{part, gradient, matrices, blocks, tiles, partial});
  ForEach(columns, SumBlocks{partial, blocks, columns, Out(sums.column)});
}

// A team for each matrix.
struct MeanRows {
  AnyIn row;
  int64_t rows;
  double* means;

  TACC_DEVICE void operator()(Team& team, int64_t matrix) const {
    double sum = 0;
    for (int64_t i = team.rank(); i < rows; i += team.size()) sum += row.Load<double>(matrix * rows + i);
    const double total = team.Sum(sum);
    if (team.rank() == 0) means[matrix] = total / static_cast<double>(rows);
  }
};

struct Moments {
  AnyIn row, column;
  const double* means;

  // What the gradient at element `at` of the stack is multiplied by.
  TACC_DEVICE double Factor(const Part& part, int64_t at) const {
    const int64_t of = at / part.columns;
    if (!part.is_factored) return 1 / Sqrt(row.Load<double>(of));
    const int64_t matrix = of / part.rows;
    return 1 / Sqrt(row.Load<double>(of) / means[matrix]) /
           Sqrt(column.Load<double>(matrix * part.columns + at % part.columns));
  }
};

int64_t NumMatrices(const SecondMoments& moments, const MatrixPart& part) {
  return part.is_factored ? moments.row.size() / part.rows : 0;
}

// Queues the means, which lie at `means`.
Moments MomentsOf(const SecondMoments& moments, const MatrixPart& part, double* means) {
  ForEachTeam(NumMatrices(moments, part), kTeam, 0, MeanRows{In(moments.row), part.rows, means});
  return {In(moments.row), In(moments.column), means};
}

struct SumUpdates {
  Part part;
  Gradient gradient;
  Moments moments;
  double* partial;

  TACC_DEVICE void operator()(Team& team, int64_t chunk) const {
    const int64_t end = part.count < (chunk + 1) * kChunk ? part.count : (chunk + 1) * kChunk;
    double sum = 0;
    for (int64_t i = chunk * kChunk + team.rank(); i < end; i += team.size()) {
      int64_t offset, at;
      part.Locate(i, &offset, &at);
      const double u = gradient.Scaled(offset) * moments.Factor(part, at);
      sum += u * u;
    }
    const double total = team.Sum(sum);
    if (team.rank() == 0) partial[chunk] = total;
  }
};

struct SumChunks {
  const double* partial;
  int64_t n;
  AnyOut y;

  TACC_DEVICE void operator()(Team& team, int64_t) const {
    double sum = 0;
    for (int64_t i = team.rank(); i < n; i += team.size()) sum += partial[i];
    const double total = team.Sum(sum);
    if (team.rank() == 0) y.Store(0, total);
  }
};

void UpdateSquares(const TensorView& g, const MatrixPart& given, const TensorView& grad_scale,
                   const SecondMoments& moments, const TensorView& y) {
  const Part part = Describe(g, given);
  const int64_t chunks = (part.count + kChunk - 1) / kChunk, matrices = NumMatrices(moments, given);
  const Scratch scratch((matrices + chunks) * static_cast<int64_t>(sizeof(double)));
  double* means = static_cast<double*>(scratch.data());
  double* partial = means + matrices;
  const Moments factors = MomentsOf(moments, given, means);
  ForEachTeam(chunks, kTeam, 0, SumUpdates{part, {In(g), In(grad_scale)}, factors, partial});
  ForEachTeam(1, kTeam, 0, SumChunks{partial, chunks, Out(y)});
}

struct UpdateElement {
  Part part;
  Gradient gradient;
  Moments moments;
  AnyIn learning_rate, apply, squares;
  double num_elements;
  AdafactorParameters parameters;
  AnyIn w;
  AnyOut new_w;

  TACC_DEVICE void operator()(int64_t i) const {
    if (apply.Load<double>(0) == 0) return;
    int64_t offset, at;
    part.Locate(i, &offset, &at);
    const double rate = learning_rate.Load<double>(0);
    const double rms = Sqrt(squares.Load<double>(0) / num_elements);
    const double u = gradient.Scaled(offset) * moments.Factor(part, at) / ::fmax(1.0, rms / parameters.clip_threshold);
    new_w.Store(offset, w.Load<double>(offset) * (1 - rate * parameters.weight_decay) - rate * u);
  }
};

void Update(const TensorView& w, const TensorView& g, const MatrixPart& given, const SecondMoments& moments,
            const AdafactorScalars& scalars, const AdafactorParameters& parameters, const TensorView& new_w,
            const TensorView& copy) {
  TACC_KERNEL_CHECK(w.size() == g.size() && new_w.size() == g.size() && w.dtype == new_w.dtype);
  if (w.data != new_w.data) kShape.CopyBytes(w.data, new_w.data, w.bytes());
  const Part part = Describe(g, given);
  const Scratch scratch(NumMatrices(moments, given) * static_cast<int64_t>(sizeof(double)));
  const Moments factors = MomentsOf(moments, given, static_cast<double*>(scratch.data()));
  ForEach(part.count, UpdateElement{part,
                                    {In(g), In(scalars.grad_scale)},
                                    factors,
                                    In(scalars.learning_rate),
                                    In(scalars.apply),
                                    In(scalars.squares),
                                    static_cast<double>(given.logical.Product()),
                                    parameters,
                                    In(new_w),
                                    Out(new_w)});
  if (copy.data != nullptr) kUnary.Unary(UnaryOp::kCast, new_w, copy, {});
}

}  // namespace

const AdafactorKernels kAdafactor = {
    .SquareSums = SquareSums,
    .UpdateSquares = UpdateSquares,
    .Update = Update,
};

}  // namespace tacc::kernels::cuda
