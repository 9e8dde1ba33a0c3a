#include "kernels/contract/embedding.h"
#include "kernels/cuda/id_order.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/pack.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/workspace.h"

namespace tacc::kernels::cuda {
namespace {

constexpr int64_t kBlock = 64;  // places of the order that are summed at a time where an id is that frequent

int64_t NumBlocks(int64_t num_tokens) { return num_tokens / kBlock; }

template <typename T, int N>
struct EmbeddingRow {
  AnyIn table;
  const int32_t* ids;
  AnyOut y;
  int64_t offset, vocabulary, n;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    const int64_t id = ids[row] - offset;
    const bool is_local = id >= 0 && id < vocabulary;
    for (int64_t i = static_cast<int64_t>(team.rank()) * N; i < n; i += static_cast<int64_t>(team.size()) * N) {
      T values[N] = {};
      if (is_local) Load<N>(table, id * n + i, values);
      Store<N>(y, row * n + i, values);
    }
  }
};

// blocks[b] = the sum of the rows of dy at the places of block b, where these have all one key.
template <typename T, int N>
struct SumBlock {
  AnyIn dy;
  const int32_t *tokens, *keys;
  AnyOut blocks;
  int64_t n, vocabulary;

  TACC_DEVICE void operator()(Team& team, int64_t block) const {
    const int64_t first = block * kBlock;
    if (keys[first] != keys[first + kBlock - 1] || keys[first] >= vocabulary) return;
    for (int64_t i = static_cast<int64_t>(team.rank()) * N; i < n; i += static_cast<int64_t>(team.size()) * N) {
      T sum[N] = {}, values[N];
      for (int64_t place = first; place < first + kBlock; ++place) {
        Load<N>(dy, tokens[place] * n + i, values);
        TACC_UNROLL
        for (int j = 0; j < N; ++j) sum[j] += values[j];
      }
      Store<N>(blocks, block * n + i, sum);
    }
  }
};

// A row of dtable: the places of its id, whole blocks by their sums.
template <typename T, int N>
struct EmbeddingGradRow {
  AnyIn dy;
  const int32_t *tokens, *starts;
  AnyIn blocks;
  AnyOut dtable;
  int64_t n;

  TACC_DEVICE void operator()(Team& team, int64_t id) const {
    const int64_t begin = starts[id], end = starts[id + 1];
    for (int64_t i = static_cast<int64_t>(team.rank()) * N; i < n; i += static_cast<int64_t>(team.size()) * N) {
      T sum[N] = {}, values[N];
      for (int64_t place = begin; place < end;) {
        if (place % kBlock == 0 && place + kBlock <= end) {
          Load<N>(blocks, place / kBlock * n + i, values);
          place += kBlock;
        } else {
          Load<N>(dy, tokens[place] * n + i, values);
          ++place;
        }
        TACC_UNROLL
        for (int j = 0; j < N; ++j) sum[j] += values[j];
      }
      Store<N>(dtable, id * n + i, sum);
    }
  }
};

void Embedding(const TensorView& table, const TensorView& ids, int64_t offset, const TensorView& y) {
  const int64_t n = table.row_length(), vocabulary = table.num_rows();
  TACC_KERNEL_CHECK(table.dims.rank() == 2 && ids.dtype == DType::kI32 && y.size() == ids.size() * n);
  WithPacks(n % kPack == 0, {table, y}, [&]<typename T, typename N>(T, N) {
    ForEachTeam(ids.size(), TeamSize(n, N::value), 0,
                EmbeddingRow<T, N::value>{In(table), ids.as<int32_t>(), Out(y), offset, vocabulary, n});
  });
}

void EmbeddingGrad(const TensorView& dy, const TensorView& ids, int64_t offset, const TensorView& dtable) {
  const int64_t n = dtable.row_length(), vocabulary = dtable.num_rows(), tokens = ids.size();
  TACC_KERNEL_CHECK(dtable.dims.rank() == 2 && ids.dtype == DType::kI32 && dy.size() == tokens * n);
  TACC_KERNEL_CHECK(dtable.dtype == DType::kF32 || dtable.dtype == DType::kF64);
  const IdOrder order(ids, offset, vocabulary);
  // Most of the bytes are those of dtable, in f32: packs of 4 write whole lines.
  WithPacks<4>(n % 4 == 0, {dy, dtable}, [&]<typename T, typename N>(T, N) {
    constexpr DType kCompute = sizeof(T) == sizeof(double) ? DType::kF64 : DType::kF32;
    const Scratch blocks(NumBlocks(tokens) * n * static_cast<int64_t>(sizeof(T)));
    const int team = TeamSize(n, N::value);
    ForEachTeam(NumBlocks(tokens), team, 0,
                SumBlock<T, N::value>{In(dy), order.tokens(), order.keys(), {blocks.data(), kCompute}, n, vocabulary});
    ForEachTeam(vocabulary, team, 0,
                EmbeddingGradRow<T, N::value>{
                    In(dy), order.tokens(), order.starts(), {blocks.data(), kCompute}, Out(dtable), n});
  });
}

}  // namespace

int64_t EmbeddingGradWorkspaceBytes(int64_t num_tokens, int64_t vocabulary, int64_t row_length, DType compute) {
  return IdOrderBytes(num_tokens, vocabulary) + NumBlocks(num_tokens) * row_length * SizeOf(compute);
}

const EmbeddingKernels kEmbedding = {
    .Embedding = Embedding,
    .EmbeddingGrad = EmbeddingGrad,
};

}  // namespace tacc::kernels::cuda
