#include "kernels/cpu/attention.h"

#include <omp.h>

#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

using simd::AttentionHeads;

int64_t ComputeBytes(DType dtype) { return dtype == DType::kF64 ? 8 : 4; }

// A thread's scratch, so that the next one's starts on another cache line.
int64_t Aligned(int64_t elements, DType dtype) { return (elements * ComputeBytes(dtype) + 63) / 64 * 64; }

AttentionHeads Heads(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionParameters& p) {
  TACC_KERNEL_CHECK(q.dims.rank() == 4 && k.dims.rank() == 4 && k.dims == v.dims);
  TACC_KERNEL_CHECK(k.dims[0] == q.dims[0] && k.dims[3] == q.dims[3] && (!p.causal || k.dims[1] == q.dims[1]));
  TACC_KERNEL_CHECK(k.dims[2] > 0 && q.dims[2] % k.dims[2] == 0 && q.dtype == k.dtype && q.dtype == v.dtype);
  TACC_KERNEL_CHECK(p.alibi_slopes.empty() || static_cast<int64_t>(p.alibi_slopes.size()) == q.dims[2]);
  return {.s = q.dims[1],
          .t = k.dims[1],
          .num_heads = q.dims[2],
          .num_kv_heads = k.dims[2],
          .d = q.dims[3],
          .causal = p.causal,
          .scale = p.scale,
          .slopes = p.alibi_slopes.empty() ? nullptr : p.alibi_slopes.data(),
          .q = In(q),
          .k = In(k),
          .v = In(v)};
}

}  // namespace

int64_t AttentionWorkspaceBytes(int64_t t, int64_t d, DType dtype, int threads) {
  return threads * Aligned(AttentionHeads::ForwardScratch(t, d), dtype);
}

int64_t AttentionGradWorkspaceBytes(int64_t t, int64_t d, DType dtype, int threads) {
  return threads * Aligned(AttentionHeads::BackwardScratch(t, d), dtype);
}

void Attention(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionParameters& parameters,
               const TensorView& out, const TensorView& lse) {
  AttentionHeads heads = Heads(q, k, v, parameters);
  TACC_KERNEL_CHECK(out.dims == q.dims && lse.size() == q.dims[0] * q.dims[1] * q.dims[2]);
  if (q.size() == 0) return;
  TACC_KERNEL_CHECK(heads.t > 0);
  heads.y = Out(out);
  heads.out = Out(lse);
  // With fewer heads than threads the queries of a head are cut too; each part then lays out the keys for itself.
  const int threads = omp_get_max_threads();
  const int64_t tasks = q.dims[0] * heads.num_kv_heads;
  const int64_t blocks = (heads.s + AttentionHeads::kQueryBlock - 1) / AttentionHeads::kQueryBlock;
  const int64_t parts = tasks >= threads ? 1 : std::min<int64_t>(blocks, (2 * threads + tasks - 1) / tasks);
  Scratch scratch(AttentionWorkspaceBytes(heads.t, heads.d, q.dtype, threads));
  const int64_t stride = Aligned(AttentionHeads::ForwardScratch(heads.t, heads.d), q.dtype);
  ParallelFor(tasks * parts, 1, [&](int64_t begin, int64_t end) {
    char* own = static_cast<char*>(scratch.data()) + omp_get_thread_num() * stride;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t task = i / parts, part = i % parts;
      simd::BestLoops().attention(heads, task / heads.num_kv_heads, task % heads.num_kv_heads, blocks * part / parts,
                                  blocks * (part + 1) / parts, own);
    }
  });
}

void AttentionGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                   const TensorView& out, const TensorView& lse, const AttentionParameters& parameters,
                   const TensorView& dq, const TensorView& dk, const TensorView& dv) {
  AttentionHeads heads = Heads(q, k, v, parameters);
  TACC_KERNEL_CHECK(dout.dims == q.dims && out.dims == q.dims && dq.dims == q.dims && dk.dims == k.dims &&
                    dv.dims == k.dims && lse.size() == q.dims[0] * q.dims[1] * q.dims[2]);
  if (q.size() == 0) {
    Fill(0, dk);
    return Fill(0, dv);
  }
  heads.y = Out(dq);
  heads.dout = In(dout);
  heads.out_value = In(out);
  heads.lse = In(lse);
  heads.dk = Out(dk);
  heads.dv = Out(dv);
  Scratch scratch(AttentionGradWorkspaceBytes(heads.t, heads.d, q.dtype, omp_get_max_threads()));
  const int64_t stride = Aligned(AttentionHeads::BackwardScratch(heads.t, heads.d), q.dtype);
  ParallelFor(q.dims[0] * heads.num_kv_heads, 1, [&](int64_t begin, int64_t end) {
    char* own = static_cast<char*>(scratch.data()) + omp_get_thread_num() * stride;
    for (int64_t task = begin; task < end; ++task) {
      simd::BestLoops().attention_grad(heads, task / heads.num_kv_heads, task % heads.num_kv_heads, own);
    }
  });
}

}  // namespace tacc::kernels::cpu
