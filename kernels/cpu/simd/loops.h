// Loops: the innermost loops of the CPU kernels, compiled once for each instruction set (baseline x86-64-v2, AVX2 with
// FMA, AVX-512) and chosen at run time. They know ranges of elements or rows, nothing of threads or allocation: the
// kernels in kernels/cpu cut the work and call them.
//
// Every loop takes arrays of any floating dtype (integers where said) and computes in f64 if one of its inputs is f64,
// otherwise in f32. Ranges are [begin, end) in elements, or in rows of `n` elements. An output may be exactly one of
// the inputs of the same dtype (in place), never a shifted overlap.
#ifndef TACC_KERNELS_CPU_SIMD_LOOPS_H_
#define TACC_KERNELS_CPU_SIMD_LOOPS_H_

#include <cstdint>

#include "kernels/contract/optimizer.h"
#include "kernels/contract/pointwise.h"
#include "kernels/contract/unary.h"
#include "kernels/tensor.h"

namespace tacc::kernels::simd {

struct In {
  const void* data = nullptr;
  DType dtype = DType::kF32;
};

struct Out {
  void* data = nullptr;
  DType dtype = DType::kF32;
};

// Norms over rows of n elements. Unused arrays have null data.
struct NormRows {
  int64_t n = 0;
  double eps = 0;
  In x, w, b;
  Out y, mean, rstd;  // mean and rstd: one element a row (l2: rstd is 1 / max(norm, eps))
};

struct NormGradRows {
  int64_t n = 0;
  double eps = 0;  // l2 only
  In dy, x, w, mean, rstd;
  In acc;  // l2 has none; null: dx is stored as it is. Else acc plus it, which may lie on acc
  Out dx;
  Out copy;  // of dx as it is stored, narrower; or null. l2 has none
  // Sums over the rows of this call, added to what is there; n elements of the compute type (f64 if an input is f64,
  // else f32), or null.
  void* dw = nullptr;
  void* db = nullptr;
};

struct RotaryRows {  // rows are tokens
  int64_t num_heads = 0, head_dim = 0, sequence = 0;
  int64_t num_turned = 0;    // heads, from the first on; the others are copied
  int64_t half = 0;          // rotary dims / 2 = cos.dims[1]
  bool interleaved = false;  // pairs (2i, 2i+1) instead of (i, i + half)
  double sign = 1;           // -1 for the inverse
  In x, cos, sin;
  Out y;
};

// y = a x + (b z + offset); z has null data where there is none.
struct AffineOf {
  In x;
  double a = 1;
  In z;
  double b = 0;
  double offset = 0;
  Out y;
};

struct CrossEntropyRows {  // rows are tokens
  int64_t vocabulary = 0;  // elements of a row of logits that count, from `first` of the row on
  int64_t pitch = 0;       // from one row of logits to the next
  int64_t first = 0;
  int64_t offset = 0;  // of the first of them in the whole vocabulary
  In logits;
  const int32_t* targets = nullptr;
  In lse;  // gradient only
  double dloss = 0;
  Out out;                               // forward: lse; gradient: dlogits
  int64_t out_pitch = 1, out_first = 0;  // forward: from one row's lse to the next, and of the first
};

// Unused arrays have null data.
struct WeightUpdate {
  UpdateKind kind = UpdateKind::kAdamW;
  In w, m, v, g;
  Out w_out, m_out, v_out, copy;
  double beta1 = 0, beta2 = 0, epsilon = 0;
  double decay = 1;                   // of w, decoupled: 1 - learning_rate * weight_decay
  double coupled_decay = 0;           // what of w is added to the gradient
  double step_size = 0;               // Adam: learning_rate / (1 - beta1^count); an average: 1 - it; else it itself
  double inv_sqrt_bias2 = 1;          // 1 / sqrt(1 - beta2^count)
  double momentum = 0, undamped = 1;  // SGD: what of m stays, and what of the gradient comes to it
  bool nesterov = false;
  double grad_scale = 1;
};

// Neighbours in one sample, x and y from the first of them.
struct DropoutRun {
  int64_t n = 0;
  int64_t position = 0;  // of the first one in the sample's logical elements
  int64_t sample = 0, step = 0;
  uint32_t key0 = 0, key1 = 0;
  uint32_t threshold = 0;  // an element is dropped when its random number is below
  double scale = 1;
  In x;
  Out y;
};

// Neighbouring rows of queries or keys at neighbouring positions of the sequence. Queries see keys of their own block.
struct AttentionTile {
  int64_t row = 0, n = 0, position = 0, block = 0;
};

// Attention over q [B,S,H,D], k [B,T,K,D] and v [B,T,K,V]; a task is one batch and one key/value head with its query
// heads. All arrays are dense but for the pitches.
struct AttentionHeads {
  static constexpr int64_t kQueryBlock = 48;  // a multiple of the product's rows; blocks of scores stay in L1
  static constexpr int64_t kKeyBlock = 64;
  static constexpr int64_t Padded(int64_t d) { return (d + 15) / 16 * 16; }
  // Elements of the compute type (f32, f64) that a task needs.
  int64_t ForwardScratch() const {
    return num_key_tiles * kKeyBlock * (d + Padded(value_d)) + (kKeyBlock + kQueryBlock) * Padded(d) +
           kQueryBlock * Padded(value_d) + kQueryBlock * kKeyBlock;
  }
  int64_t BackwardScratch() const {
    const int64_t widest = d > value_d ? d : value_d;
    return num_key_tiles * kKeyBlock * (d + value_d + 2 * Padded(d) + Padded(value_d)) +
           kQueryBlock * (Padded(d) + Padded(value_d) + Padded(widest)) + 2 * kQueryBlock * kKeyBlock;
  }

  int64_t BiasScratch() const {
    const int64_t padded = Padded(d), value_padded = Padded(value_d);
    return kKeyBlock * (d + value_d + padded + value_padded) + kQueryBlock * (padded + 2 * value_padded) +
           3 * kQueryBlock * kKeyBlock;
  }

  int64_t num_batches = 0, s = 0, t = 0, num_heads = 0, num_kv_heads = 0;
  int64_t d = 0, value_d = 0;  // D and V
  // Elements from a token of q and dq, of k and dk, of v and dv to the next.
  int64_t query_pitch = 0, key_pitch = 0, value_pitch = 0;
  bool causal = false;
  double scale = 1;
  int64_t window = 0;              // a query sees so many positions up to its own; 0: all
  double softcap = 0;              // 0: none
  const double* slopes = nullptr;  // one a query head, or null
  // Tiles of at most kQueryBlock queries and kKeyBlock keys, in the order of rows.
  const AttentionTile* query_tiles = nullptr;
  const AttentionTile* key_tiles = nullptr;
  int64_t num_query_tiles = 0, num_key_tiles = 0;
  const int32_t* first_keys = nullptr;    // [B,S]: the first position that each query sees, or null
  const float* key_bias = nullptr;        // [B,T]: added to all scores of a key, or null
  In bias;                                // [B,H,S,T]: added to the scores, or null
  bool bias_yields = false;               // it has no derivative where +inf outweighs the score
  int64_t bias_batch = 0, bias_head = 0;  // elements from a sample's, from a head's to the next; 0: the same for all
  In q, k, v;
  In earlier_out, earlier_lse;  // forward: the result over other keys, to go on from, or null
  In sinks;                     // forward: the score of one more key of each query head, or null
  Out y;                        // forward: the result; backward: dq
  Out out;                      // forward: lse [B,H,S]
  In dout, out_value, lse;      // backward
  Out dk, dv;
  Out dbias;
  // Of the probabilities [H,S,T] of a sample, of whose heads these begin at first_head.
  const int64_t* samples = nullptr;  // [B], or null: none is dropped
  DropoutRun dropout;                // what all rows share
  int64_t first_head = 0, logical_queries = 0, logical_keys = 0;
};

struct Loops {
  const char* name;
  // x and y may be integers or bool (kCast), integers (kNeg, kRelu, kSquare, kScale, kAddScalar, kClamp).
  void (*unary)(UnaryOp op, double p0, double p1, In x, Out y, int64_t begin, int64_t end);
  void (*unary_grad)(UnaryGradOp op, double p0, double p1, In x, In dy, Out dx, int64_t begin, int64_t end);
  // Element i of b is b[i % b_period]. Integers if all are.
  void (*binary)(BinaryOp op, In a, In b, int64_t b_period, Out y, int64_t begin, int64_t end);
  void (*swiglu)(In gate, In up, Out y, int64_t begin, int64_t end);
  void (*swiglu_grad)(In gate, In up, In dy, Out dgate, Out dup, int64_t begin, int64_t end);
  // Sums with f64 accumulators.
  double (*sum)(In x, int64_t begin, int64_t end);
  double (*sum_squares)(In x, int64_t begin, int64_t end);
  double (*max)(In x, int64_t begin, int64_t end);  // -inf for an empty range; NaN if there is one
  bool (*is_finite)(In x, int64_t begin, int64_t end);
  // acc[i] += x[offset + i] and acc[i] = max(acc[i], x[offset + i]) for i < n.
  void (*accumulate_f64)(double* acc, In x, int64_t offset, int64_t n);
  void (*accumulate_f32)(float* acc, In x, int64_t offset, int64_t n);
  void (*accumulate_max)(double* acc, In x, int64_t offset, int64_t n);
  // *sum += x[i], *products += x[i] z[i], with f64 accumulators.
  void (*add_sums)(In x, In z, int64_t begin, int64_t end, double* sum, double* products);
  void (*affine)(const AffineOf& f, int64_t begin, int64_t end);
  void (*rms_norm)(const NormRows& rows, int64_t begin, int64_t end);
  void (*rms_norm_grad)(const NormGradRows& rows, int64_t begin, int64_t end);
  void (*layer_norm)(const NormRows& rows, int64_t begin, int64_t end);
  void (*layer_norm_grad)(const NormGradRows& rows, int64_t begin, int64_t end);
  void (*l2_normalize)(const NormRows& rows, int64_t begin, int64_t end);
  void (*l2_normalize_grad)(const NormGradRows& rows, int64_t begin, int64_t end);
  void (*rotary)(const RotaryRows& rows, int64_t begin, int64_t end);
  void (*cross_entropy)(const CrossEntropyRows& rows, int64_t begin, int64_t end);
  void (*cross_entropy_grad)(const CrossEntropyRows& rows, int64_t begin, int64_t end);
  void (*update)(const WeightUpdate& update, int64_t begin, int64_t end);
  void (*dropout)(const DropoutRun& run);
  // Tiles of queries [first, limit) of batch b and key/value head kv. Scratch is aligned to 64 bytes.
  void (*attention)(const AttentionHeads& heads, int64_t b, int64_t kv, int64_t first, int64_t limit, void* scratch);
  void (*attention_grad)(const AttentionHeads& heads, int64_t b, int64_t kv, void* scratch);
  // Of one tile of queries, summed over the samples and heads whose bias is entry b, head of dbias; of all samples only
  // part `part` of `parts`, which has a tensor of its own in dbias, behind those of the parts before.
  void (*attention_bias_grad)(const AttentionHeads& heads, int64_t b, int64_t head, int64_t part, int64_t parts,
                              int64_t query_tile, void* scratch);
};

// The loops of the best instruction set this processor has. The environment variable TACC_CPU_ISA=baseline|avx2|avx512
// lowers the choice (results of another machine, tests); a set that the processor lacks, or another word, is ignored.
const Loops& BestLoops();

extern const Loops kBaselineLoops;
extern const Loops kAvx2Loops;
extern const Loops kAvx512Loops;

}  // namespace tacc::kernels::simd

#endif  // TACC_KERNELS_CPU_SIMD_LOOPS_H_
