// Softmax attention without a [S,T] matrix: blocks of scores that stay in cache.
// Legend: B batch, S queries, T keys, H query heads, K key/value heads (H % K == 0), D head dim of queries and keys, V
// of values and results.
#ifndef TACC_KERNELS_CONTRACT_ATTENTION_H_
#define TACC_KERNELS_CONTRACT_ATTENTION_H_

#include <algorithm>
#include <vector>

#include "kernels/contract/dropout.h"
#include "kernels/tensor.h"

namespace tacc::kernels {

// Rows of a tensor whose positions in the sequence follow each other, from `position` on.
struct SequenceRun {
  int64_t length = 0;
  int64_t position = 0;
  int64_t block = 0;  // queries see keys of runs of their own block only
};

// Dropout of the probabilities, by the rule of kernels/contract/dropout.h: they are a sample's [H,S,T] by logical heads
// and positions. They are dropped after the softmax, whose lse does not know it.
struct AttentionDropout {
  DropoutParameters parameters;  // rate 0: none
  TensorView step, sample;
  int64_t first_head = 0;                         // the logical head of q's first one
  int64_t logical_queries = 0, logical_keys = 0;  // S and T of the whole sequence
};

struct AttentionParameters {
  bool causal = true;  // a query sees keys at its own position and before
  double scale = 1;
  int64_t window = 0;  // of them only so many positions up to its own; 0: all
  double softcap = 0;  // a scaled score s becomes softcap * tanh(s / softcap); 0: it does not
  // One a query head: slope * (j - i) is added to the score of the query at position i and the key at j. Empty: none.
  std::vector<double> alibi_slopes;
  // Where the rows of q, and those of k and v, lie in the sequence, in the order of rows. Empty: row i at position i.
  // Rows behind the runs are padding.
  std::vector<SequenceRun> queries, keys;
  // Elements from a token of q, k, v (and of dq, dk, dv) to the next where they are heads of one tensor [B,S,H+2K,D];
  // 0: each lies by itself. With a pitch S == T, V == D, and the views' data are those of their own first heads.
  int64_t pitch = 0;
  AttentionDropout dropout;
  // f32 [B,T], dense, or without data: added to all scores of a key, behind cap and slopes. -inf hides the key; blocks
  // of hidden keys may be left unread. +inf outweighs the products: the scores are 0, and pass gradients on as others
  // do.
  TensorView key_bias = {};
  // [B,H,S,T], dense, of any floating dtype, or without data; its B and H may be 1, for all alike. Added to the scores
  // as key_bias is; -inf of either hides the key.
  TensorView bias = {};
  bool bias_yields = false;  // it has no derivative where +inf outweighs the products
};

// Elements from one sample, and from one head, of a bias to the next: 0 where it is the same for all.
struct BiasStrides {
  int64_t batch = 0, head = 0;
};
inline BiasStrides StridesOfBias(const TensorView& bias) {
  if (bias.data == nullptr) return {};
  const int64_t head = bias.dims[2] * bias.dims[3];
  return {bias.dims[0] == 1 ? 0 : bias.dims[1] * head, bias.dims[1] == 1 ? 0 : head};
}
// Whether it is one for these queries and keys, or there is none.
inline bool FitsBias(const TensorView& bias, const TensorView& q, const TensorView& k) {
  if (bias.data == nullptr) return true;
  const auto is = [](int64_t dim, int64_t all) { return dim == 1 || dim == all; };
  return bias.dims.rank() == 4 && is(bias.dims[0], q.dims[0]) && is(bias.dims[1], q.dims[2]) &&
         bias.dims[2] == q.dims[1] && bias.dims[3] == k.dims[1];
}

// In how many parts of the samples the gradient of a bias that is the same for all of them is summed, so that there is
// enough to do at a time: the attention of many samples with few tokens, as of the windows of an image. Each part has a
// sum of its own in scratch. Depends on shapes alone, so that sums have one order.
inline int64_t BiasGradParts(const Dims& bias, int64_t samples) {
  constexpr int64_t kTasks = 256, kTile = 64, kMaxElements = 1 << 20;
  if (bias[0] != 1 || bias.Product() == 0) return 1;
  const int64_t tiles = bias[1] * ((bias[2] + kTile - 1) / kTile) * ((bias[3] + kTile - 1) / kTile);
  const int64_t parts = std::min({samples, kTasks / tiles, kMaxElements / bias.Product()});
  return parts > 1 ? parts : 1;
}

// What may be absent: views without data.
struct AttentionExtras {
  TensorView first_keys;                // i32 [B,S]: the first position that each query sees
  TensorView earlier_out, earlier_lse;  // the results over other keys; those of this call go on from them
  TensorView sinks;                     // [H]: the score of one more key of each head, of value 0; not with earlier_lse
};

// [B,S,H,V].
inline Dims AttentionResultDims(const TensorView& q, const TensorView& v) {
  Dims dims = q.dims;
  dims[3] = v.dims[3];
  return dims;
}

struct AttentionKernels {
  // out [B,S,H,V] = dropout(softmax(cap(scale * q k^T) + alibi + biases)) v per head; lse [B,H,S] (f32, or f64 with
  // f64 operands) = log of the sum of exp of the scores. q [B,S,H,D], k [B,T,K,D] and v [B,T,K,V] of one dtype; query
  // head h reads key/value head h / (H/K). A query that sees no key gives out 0, lse -inf. Whatever the pitch, `out`
  // and the other extras are dense.
  void (&Attention)(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionExtras& extras,
                    const AttentionParameters& parameters, const TensorView& out, const TensorView& lse);

  // Gradients dq, dk, dv, with the shapes of q, k, v; `out` and `lse` are those over all keys, of which k, v may be a
  // part: then dq is that part's contribution. With a pitch nothing between the heads of dq, dk, dv is written.
  void (&AttentionGrad)(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                        const TensorView& out, const TensorView& lse, const TensorView& first_keys,
                        const AttentionParameters& parameters, const TensorView& dq, const TensorView& dk,
                        const TensorView& dv);

  // The gradient of parameters.bias, with its shape: a sum over what it is the same for, in an order that the number of
  // threads does not change. Costs the products of a forward; no scores are kept. Not with a pitch.
  void (&AttentionBiasGrad)(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                            const TensorView& out, const TensorView& lse, const TensorView& first_keys,
                            const AttentionParameters& parameters, const TensorView& dbias);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_ATTENTION_H_
