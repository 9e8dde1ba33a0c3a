#include "kernels/contract/attention.h"

#include <omp.h>

#include <algorithm>

#include "kernels/cpu/dropout.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

using simd::AttentionHeads;
using simd::AttentionTile;

int64_t ComputeBytes(DType dtype) { return dtype == DType::kF64 ? 8 : 4; }

// A thread's scratch, so that the next one's starts on another cache line.
int64_t Aligned(int64_t elements, DType dtype) { return (elements * ComputeBytes(dtype) + 63) / 64 * 64; }

// Tiles of at most `size` rows, none across two runs.
std::vector<AttentionTile> Tiles(const std::vector<SequenceRun>& runs, int64_t rows, int64_t size) {
  std::vector<AttentionTile> tiles;
  const std::vector<SequenceRun> whole = {{.length = rows}};
  int64_t row = 0;
  for (const SequenceRun& run : runs.empty() ? whole : runs) {
    for (int64_t i = 0; i < run.length; i += size) {
      tiles.push_back({row + i, std::min(size, run.length - i), run.position + i, run.block});
    }
    row += run.length;
  }
  TACC_KERNEL_CHECK(row <= rows);
  return tiles;
}

// One call's operands, with the tiles that they point to.
struct Problem {
  AttentionHeads heads;
  std::vector<AttentionTile> query_tiles, key_tiles;

  Problem(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& first_keys,
          const AttentionParameters& p)
      : query_tiles(Tiles(p.queries, q.dims[1], AttentionHeads::kQueryBlock)),
        key_tiles(Tiles(p.keys, k.dims[1], AttentionHeads::kKeyBlock)) {
    TACC_KERNEL_CHECK(q.dims.rank() == 4 && k.dims.rank() == 4 && v.dims.rank() == 4);
    TACC_KERNEL_CHECK(k.dims[0] == v.dims[0] && k.dims[1] == v.dims[1] && k.dims[2] == v.dims[2]);
    TACC_KERNEL_CHECK(k.dims[0] == q.dims[0] && k.dims[3] == q.dims[3]);
    TACC_KERNEL_CHECK(k.dims[2] > 0 && q.dims[2] % k.dims[2] == 0 && q.dtype == k.dtype && q.dtype == v.dtype);
    TACC_KERNEL_CHECK(p.pitch == 0 || (p.pitch >= (q.dims[2] + 2 * k.dims[2]) * q.dims[3] && q.dims[1] == k.dims[1] &&
                                       v.dims[3] == k.dims[3]));
    TACC_KERNEL_CHECK(p.alibi_slopes.empty() || static_cast<int64_t>(p.alibi_slopes.size()) == q.dims[2]);
    TACC_KERNEL_CHECK(first_keys.data == nullptr ||
                      (first_keys.dtype == DType::kI32 && first_keys.size() == q.dims[0] * q.dims[1]));
    TACC_KERNEL_CHECK(p.key_bias.data == nullptr ||
                      (p.key_bias.dtype == DType::kF32 && p.key_bias.size() == k.dims[0] * k.dims[1]));
    TACC_KERNEL_CHECK(FitsBias(p.bias, q, k));
    const BiasStrides bias = StridesOfBias(p.bias);
    heads = {.num_batches = q.dims[0],
             .s = q.dims[1],
             .t = k.dims[1],
             .num_heads = q.dims[2],
             .num_kv_heads = k.dims[2],
             .d = q.dims[3],
             .value_d = v.dims[3],
             .query_pitch = p.pitch > 0 ? p.pitch : q.dims[2] * q.dims[3],
             .key_pitch = p.pitch > 0 ? p.pitch : k.dims[2] * k.dims[3],
             .value_pitch = p.pitch > 0 ? p.pitch : v.dims[2] * v.dims[3],
             .causal = p.causal,
             .scale = p.scale,
             .window = p.window,
             .softcap = p.softcap,
             .slopes = p.alibi_slopes.empty() ? nullptr : p.alibi_slopes.data(),
             .query_tiles = query_tiles.data(),
             .key_tiles = key_tiles.data(),
             .num_query_tiles = static_cast<int64_t>(query_tiles.size()),
             .num_key_tiles = static_cast<int64_t>(key_tiles.size()),
             .first_keys = first_keys.as<int32_t>(),
             .key_bias = p.key_bias.as<float>(),
             .bias = In(p.bias),
             .bias_yields = p.bias_yields,
             .bias_batch = bias.batch,
             .bias_head = bias.head,
             .q = In(q),
             .k = In(k),
             .v = In(v)};
    const AttentionDropout& dropout = p.dropout;
    if (dropout.parameters.rate == 0) return;
    TACC_KERNEL_CHECK(dropout.step.size() == 1 && dropout.step.dtype == DType::kI64);
    TACC_KERNEL_CHECK(dropout.sample.size() == q.dims[0] && dropout.sample.dtype == DType::kI64);
    heads.samples = dropout.sample.as<int64_t>();
    heads.dropout = DropoutOf(dropout.parameters, *dropout.step.as<int64_t>());
    heads.first_head = dropout.first_head;
    heads.logical_queries = dropout.logical_queries;
    heads.logical_keys = dropout.logical_keys;
  }
};

void Attention(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionExtras& extras,
               const AttentionParameters& parameters, const TensorView& out, const TensorView& lse) {
  if (q.size() == 0) return;
  Problem problem(q, k, v, extras.first_keys, parameters);
  AttentionHeads& heads = problem.heads;
  TACC_KERNEL_CHECK(out.dims == AttentionResultDims(q, v) && lse.size() == q.dims[0] * q.dims[1] * q.dims[2]);
  heads.y = Out(out);
  heads.out = Out(lse);
  if (extras.earlier_lse.data != nullptr) {
    TACC_KERNEL_CHECK(extras.earlier_out.dims == out.dims && extras.earlier_lse.size() == lse.size());
    heads.earlier_out = In(extras.earlier_out);
    heads.earlier_lse = In(extras.earlier_lse);
  }
  if (extras.sinks.data != nullptr) {
    TACC_KERNEL_CHECK(extras.sinks.size() == q.dims[2] && extras.earlier_lse.data == nullptr);
    heads.sinks = In(extras.sinks);
  }
  // With fewer heads than threads the queries of a head are cut too; each part then lays out the keys for itself.
  const int threads = omp_get_max_threads();
  const int64_t tasks = q.dims[0] * heads.num_kv_heads, tiles = heads.num_query_tiles;
  const int64_t parts = tasks >= threads ? 1 : std::min<int64_t>(tiles, (2 * threads + tasks - 1) / tasks);
  const int64_t stride = Aligned(heads.ForwardScratch(), q.dtype);
  Scratch scratch(threads * stride);
  ParallelFor(tasks * parts, 1, [&](int64_t begin, int64_t end) {
    char* own = static_cast<char*>(scratch.data()) + omp_get_thread_num() * stride;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t task = i / parts, part = i % parts;
      simd::BestLoops().attention(heads, task / heads.num_kv_heads, task % heads.num_kv_heads, tiles * part / parts,
                                  tiles * (part + 1) / parts, own);
    }
  });
}

void AttentionGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                   const TensorView& out, const TensorView& lse, const TensorView& first_keys,
                   const AttentionParameters& parameters, const TensorView& dq, const TensorView& dk,
                   const TensorView& dv) {
  if (q.size() == 0 && k.size() == 0) return;
  Problem problem(q, k, v, first_keys, parameters);
  AttentionHeads& heads = problem.heads;
  TACC_KERNEL_CHECK(dout.dims == AttentionResultDims(q, v) && out.dims == dout.dims && dq.dims == q.dims &&
                    dk.dims == k.dims && dv.dims == v.dims && lse.size() == q.dims[0] * q.dims[1] * q.dims[2]);
  heads.y = Out(dq);
  heads.dout = In(dout);
  heads.out_value = In(out);
  heads.lse = In(lse);
  heads.dk = Out(dk);
  heads.dv = Out(dv);
  const int64_t stride = Aligned(heads.BackwardScratch(), q.dtype);
  Scratch scratch(omp_get_max_threads() * stride);
  ParallelFor(q.dims[0] * heads.num_kv_heads, 1, [&](int64_t begin, int64_t end) {
    char* own = static_cast<char*>(scratch.data()) + omp_get_thread_num() * stride;
    for (int64_t task = begin; task < end; ++task) {
      simd::BestLoops().attention_grad(heads, task / heads.num_kv_heads, task % heads.num_kv_heads, own);
    }
  });
}

void AttentionBiasGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                       const TensorView& out, const TensorView& lse, const TensorView& first_keys,
                       const AttentionParameters& parameters, const TensorView& dbias) {
  if (dbias.size() == 0) return;
  Problem problem(q, k, v, first_keys, parameters);
  AttentionHeads& heads = problem.heads;
  TACC_KERNEL_CHECK(parameters.pitch == 0 && parameters.bias.data != nullptr && dbias.dims == parameters.bias.dims);
  TACC_KERNEL_CHECK(dout.dims == AttentionResultDims(q, v) && out.dims == dout.dims &&
                    lse.size() == q.dims[0] * q.dims[1] * q.dims[2]);
  heads.dout = In(dout);
  heads.out_value = In(out);
  heads.lse = In(lse);
  // With parts b is 0, and each has a sum of its own in the type that is computed with.
  const int64_t parts = BiasGradParts(dbias.dims, q.dims[0]);
  const int64_t part_bytes = parts > 1 ? Aligned(dbias.size(), q.dtype) : 0;
  const int64_t stride = Aligned(heads.BiasScratch(), q.dtype), tiles = heads.num_query_tiles;
  Scratch scratch(omp_get_max_threads() * stride + parts * part_bytes);
  char* const sums = static_cast<char*>(scratch.data()) + omp_get_max_threads() * stride;
  const auto sum = [&](int64_t part) {
    return TensorView{sums + part * dbias.size() * ComputeBytes(q.dtype),
                      q.dtype == DType::kF64 ? DType::kF64 : DType::kF32, dbias.dims};
  };
  heads.dbias = Out(parts > 1 ? sum(0) : dbias);
  ParallelFor(parts * dbias.dims[0] * dbias.dims[1] * tiles, 1, [&](int64_t begin, int64_t end) {
    char* own = static_cast<char*>(scratch.data()) + omp_get_thread_num() * stride;
    for (int64_t task = begin; task < end; ++task) {
      const int64_t entry = task / tiles % (dbias.dims[0] * dbias.dims[1]);
      const int64_t part = task / tiles / (dbias.dims[0] * dbias.dims[1]);
      simd::BestLoops().attention_bias_grad(heads, entry / dbias.dims[1], entry % dbias.dims[1], part, parts,
                                            task % tiles, own);
    }
  });
  if (parts == 1) return;
  for (int64_t part = 1; part < parts; ++part) kPointwise.Binary(BinaryOp::kAdd, sum(0), sum(part), sum(0));
  kUnary.Unary(UnaryOp::kCast, sum(0), dbias, {});
}

}  // namespace

const AttentionKernels kAttention = {
    .Attention = Attention,
    .AttentionGrad = AttentionGrad,
    .AttentionBiasGrad = AttentionBiasGrad,
};

}  // namespace tacc::kernels::cpu
