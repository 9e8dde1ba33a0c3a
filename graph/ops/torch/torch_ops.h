// Families of ops that models of PyTorch need and the model families do not; called by OpTable's constructor.
#ifndef TACC_GRAPH_OPS_TORCH_TORCH_OPS_H_
#define TACC_GRAPH_OPS_TORCH_TORCH_OPS_H_

#include "graph/ops/op.h"

namespace tacc::graph {

void AddIndexingOps(OpTable& table);  // compare gather scatter_add cumsum flip
void AddAtenOps(OpTable& table);      // aten aten_vjp

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_TORCH_TORCH_OPS_H_
