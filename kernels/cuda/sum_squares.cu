// SumSquares and SumSquaresMany of many_tensors.h: chunks of all tensors are summed by a team each, then their sums by
// one.
#include <algorithm>

#include "kernels/contract/sum_squares.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/pack.h"
#include "kernels/cuda/launch/strided.h"
#include "kernels/cuda/launch/table_launch.h"
#include "kernels/cuda/many_tensors.h"
#include "kernels/cuda/scratch.h"

namespace tacc::kernels::cuda {
namespace {

constexpr int kTeam = 256;
constexpr int64_t kLeastChunk = 8192;  // elements worth a team of their own
constexpr int64_t kMaxChunks = 16384;  // of all tensors, but for what is left over at the end of each
static_assert(kLeastChunk % kPack == 0);

// A tensor as the GPU sees it.
struct Summand {
  AnyIn x;
  int64_t n;        // elements inside the bounds
  Strided<1> runs;  // where their packs lie; rank 0: one behind the other
  bool packs;
  int64_t chunk_elements;
  int64_t first_chunk = 0;
};

struct SumOfChunk {
  double* partial;  // [chunks]

  template <typename T, int W>
  TACC_DEVICE static double Sum(const Team& team, const Summand& s, int64_t begin, int64_t end) {
    double sum = 0;
    for (int64_t i = begin + team.rank() * W; i < end; i += static_cast<int64_t>(team.size()) * W) {
      int64_t offsets[1] = {i};
      if (s.runs.rank > 0) {
        s.runs.Offsets(i / W, offsets);
        offsets[0] *= W;
      }
      T v[W];
      Load<W>(s.x, offsets[0], v);
      for (const T& value : v) sum += static_cast<double>(value) * static_cast<double>(value);
    }
    return sum;
  }

  TACC_DEVICE void operator()(Team& team, const Summand& s, int64_t chunk) const {
    const auto [begin, end] = RangeOfChunk(chunk, s.n, s.chunk_elements);
    double sum;
    if (s.x.dtype == DType::kF64) {
      sum = Sum<double, 1>(team, s, begin, end);
    } else {
      const int64_t packed = s.packs ? begin + (end - begin) / kPack * kPack : begin;
      sum = Sum<float, kPack>(team, s, begin, packed) + Sum<float, 1>(team, s, packed, end);
    }
    const double total = team.Sum(sum);
    if (team.rank() == 0) partial[s.first_chunk + chunk] = total;
  }
};

struct SumOfPartials {
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

Summand Describe(const BoundedTensor& given, int64_t chunk_elements) {
  const auto& [x, bounds] = given;
  TACC_KERNEL_CHECK(bounds.rank() == x.dims.rank());
  for (int d = 0; d < bounds.rank(); ++d) TACC_KERNEL_CHECK(bounds[d] >= 0 && bounds[d] <= x.dims[d]);
  // A run is what lies densely inside the bounds: the dims from the last one that is cut.
  int cut = bounds.rank() - 1;
  while (cut > 0 && bounds[cut] == x.dims[cut]) --cut;
  Summand summand{.x = In(x), .n = bounds.Product(), .packs = ArePackable({x}), .chunk_elements = chunk_elements};
  if (cut <= 0 || summand.n == 0) return summand;
  const int64_t run = bounds.Product(cut, bounds.rank()), stride = x.dims.Product(cut, bounds.rank());
  summand.packs = summand.packs && run % kPack == 0 && stride % kPack == 0;
  const int64_t width = summand.packs ? kPack : 1;
  Dims dims(bounds.begin(), bounds.begin() + cut), strides = dims;
  int64_t step = stride / width;
  for (int d = cut - 1; d >= 0; step *= x.dims[d], --d) strides[d] = step;
  dims.push_back(run / width);
  strides.push_back(1);
  summand.runs = {dims, {strides}};
  return summand;
}

int64_t ChunkElements(const std::vector<BoundedTensor>& xs) {
  int64_t total = 0;
  for (const BoundedTensor& x : xs) total += x.bounds.Product();
  const int64_t elements = std::max((total + kMaxChunks - 1) / kMaxChunks, kLeastChunk);
  return (elements + kPack - 1) / kPack * kPack;
}

// `sum(partial)` queues the sums of the chunks.
template <typename F>
void SumAll(int64_t num_chunks, const TensorView& y, F sum) {
  TACC_KERNEL_CHECK(y.size() == 1);
  Scratch scratch(num_chunks * static_cast<int64_t>(sizeof(double)));
  double* partial = static_cast<double*>(scratch.data());
  sum(partial);
  ForEachTeam(1, TeamSize(num_chunks), 0, SumOfPartials{partial, num_chunks, Out(y)});
}

void SumSquares(const std::vector<BoundedTensor>& xs, const TensorView& y) {
  const int64_t elements = ChunkElements(xs);
  int64_t num_chunks = 0;
  for (const BoundedTensor& x : xs) num_chunks += NumChunks(x.bounds.Product(), elements);
  SumAll(num_chunks, y, [&](double* partial) {
    for (const BoundedTensor& x : xs) {
      const int64_t num_of_x = NumChunks(x.bounds.Product(), elements);
      ForEachChunkOf<kTeam>(Describe(x, elements), num_of_x, 0, SumOfChunk{partial});
      partial += num_of_x;
    }
  });
}

}  // namespace

TensorTable SumSquaresTable(const std::vector<BoundedTensor>& xs) {
  const int64_t elements = ChunkElements(xs);
  TensorTable table;
  for (const BoundedTensor& x : xs) {
    const Summand summand = Describe(x, elements);
    AddTensor(summand, NumChunks(summand.n, elements), table);
  }
  return table;
}

void SumSquaresMany(const TensorTable& table, const TensorView& y) {
  SumAll(table.num_chunks, y, [&](double* partial) { ForEachChunk<kTeam, Summand>(table, 0, SumOfChunk{partial}); });
}

const SumSquaresKernels kSumSquares = {
    .SumSquares = SumSquares,
};

}  // namespace tacc::kernels::cuda
