#ifndef TACC_GRAPH_PASSES_REWRITE_JOIN_PRODUCTS_H_
#define TACC_GRAPH_PASSES_REWRITE_JOIN_PRODUCTS_H_

#include <functional>

#include "graph/ir/program.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// What a node takes on the device, of the types given.
using NodeSeconds = std::function<double(const Node& node, const OpCall& call)>;

// Products of one operand become one, where that is faster: gate and up of a SwiGLU, and q, k and v of an attention
// whose q and k are turned alike, or not at all.
// - gate = einsum(x, Wg), up = einsum(x, Wu), y = swiglu(gate, up) become z = einsum_joined(x, Wg, Wu),
//   y = swiglu_joined(z): a row of z is one of gate and one of up. For q, k and v their heads lie one behind the other;
//   rotary turns the first of them, and attention_joined reads all.
// - The gradient dz of z is one tensor likewise, and that of x, instead of a sum of several products,
//   dx = einsum_joined(dz, Wg, Wu), whose sum over all is the product's own.
// - The weights' gradients stay products of their own, each of its part of dz where it lies: they may be added to their
//   accumulators, reduced and stored as before.
// The kernel takes the weights as they lie if they lie one behind the other: plan-memory gives them such places, so
// only what is made for this use (cast, gathered) or read from a state is joined, of a size after which another may
// begin, and each weight with the same others only.
//
// For partitioned graphs: the weights must lie alike, and so must what is made of them; each rank joins its parts. Left
// as they are: products that anything else reads (a bias, a norm of q, an adapter). Sums of dx are rounded once instead
// of several times; nothing else changes a bit of what is computed. Returns whether anything changed.
bool JoinProducts(Program& program, const OpTable&, const NodeSeconds& seconds);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_REWRITE_JOIN_PRODUCTS_H_
