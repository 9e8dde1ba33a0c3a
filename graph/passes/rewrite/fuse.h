#ifndef TACC_GRAPH_PASSES_REWRITE_FUSE_H_
#define TACC_GRAPH_PASSES_REWRITE_FUSE_H_

#include <vector>

#include "graph/ir/graph.h"
#include "graph/ops/op.h"

// Two nodes become one kernel, which saves a pass over memory. For partitioned graphs: what lies alike, and which sums
// are pending where, is decided by then.
namespace tacc::graph {

// An add of acc and einsum(a, b) becomes einsum_accumulate(acc, a, b), when nothing else reads the product and the
// elements of both have one type: where acc has only the last dims of the product, a bias; where it is a state read
// before, an fp32 (or f64) accumulator; and where it is itself a product that nothing else reads, as in the gradient of
// what several products read. Saves a pass over memory, and where acc has all the dims the product's buffer; bf16 and
// f16 are rounded once instead of twice. Returns whether anything changed.
bool FuseAccumulation(Graph& graph, const OpTable&);

// An add of channel_affine(x, a) and channel_affine(z, b, c), which nothing else reads, becomes
// channel_affine_pair(x, a, z, b, c): the gradient of what a batch norm read, by way of its values and by way of their
// statistics. Saves two passes over memory and two buffers, and rounds once. Returns whether anything changed.
bool FuseChannels(Graph& graph, const OpTable&);

// The residual's add goes into the norm that it meets, rms_norm or layer_norm:
// - y, ... = norm(s, ...) of s = add(a, b) becomes y, ..., s = add_norm(a, b, ...) where the norm stands, if nothing
//   stands between them but what makes the norm's weights.
// - add(acc, dx) of dx, ... = norm_grad(dy, ...) becomes norm_grad_accumulate(acc, dy, ...) where the gradient stands,
//   if nothing else reads dx, acc is there by then, and no row is padding. Saves dx's buffer too.
// - norm_grad(dy, x, ...) of a dy or an x that was cast to be wider for nothing else reads it as it was before; of such
//   an x the gradient keeps the wider type (dx=).
// - A cast to a narrower type that is the first to read dx, or the sum acc + dx, becomes the gradient's last result
//   (copy=).
// The results have the bits that two kernels give. Returns whether anything changed.
bool FuseNorms(Graph& graph, const OpTable&);

// By node (an add or a cast): the norm, or norm's gradient, into which FuseNorms would take it, or -1.
std::vector<int> NormsThatTake(Graph graph);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_REWRITE_FUSE_H_
