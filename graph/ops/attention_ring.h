// Ring attention: keys and values go round the ranks that hold blocks of a sequence.
#ifndef TACC_GRAPH_OPS_ATTENTION_RING_H_
#define TACC_GRAPH_OPS_ATTENTION_RING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// The factor of queries in the rules of attention and its gradient, over whose shards a ring goes.
inline constexpr int kSequenceFactor = 2;

// Checks the attributes `block` and `shift` against a sequence of `length`.
absl::Status CheckBlock(const OpCall& call, int64_t length);

// OpDef::expand of attention: the own block first; while it is computed the next one comes in.
absl::Status ExpandAttention(ExpandCall& call);
// And of attention_grad.
absl::Status ExpandAttentionGrad(ExpandCall& call);

// The op rotate_blocks.
void AddRotateBlocks(OpTable& table);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_ATTENTION_RING_H_
