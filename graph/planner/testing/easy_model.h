#ifndef TACC_GRAPH_PLANNER_TESTING_EASY_MODEL_H_
#define TACC_GRAPH_PLANNER_TESTING_EASY_MODEL_H_

#include "graph/planner/cost/estimate.h"

// A model and a cluster whose estimates can be worked out by hand.
namespace tacc::graph {

// A model of eight layers, each one product of 1e12 FLOPs a sample and direction, and as many bytes of everything as
// are easy to count with.
inline ModelWork EasyModel() {
  UnitWork layer;
  layer.name = "layer";
  layer.count = 8;
  layer.is_layer = true;
  KernelWork product;
  product.dtype = DType::kBF16;
  product.region = Split::kTensor;
  product.flops = 1e12;
  layer.forward.kernels = {product};
  layer.backward.kernels = {product, product};
  for (PhaseWork* phase : {&layer.forward, &layer.backward}) phase->gathers = phase->scatters = {{1e8}};
  layer.parameters.tensor = 1e8;
  layer.input_bytes = 1e8;
  layer.saved_home_bytes = 1e8;
  layer.saved_tensor_bytes = 4e8;
  ModelWork model;
  model.units = {layer};
  model.num_layers = 8;
  model.num_heads = 8;
  model.seq_len = 2048;
  return model;
}

// 1e14 FLOP/s and links of 1e11 and 1e10 bytes/s, without latencies.
inline Cluster EasyCluster() {
  Machine m;
  m.name = "easy";
  m.half_flops_per_second = 1e14;
  m.f32_flops_per_second = 1e14;
  m.memory_bytes = 1e11;
  m.memory_bytes_per_second = 1e12;
  m.intra_bytes_per_second = 1e11;
  m.inter_bytes_per_second = 1e10;
  return {m, 4};
}

inline Layout Of(int64_t pp, int64_t dp, int64_t tp, int64_t accumulation) {
  Layout l;
  l.sizes[Axis::kPp] = pp;
  l.sizes[Axis::kDp] = dp;
  l.sizes[Axis::kTp] = tp;
  l.accumulation = accumulation;
  return l;
}

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_TESTING_EASY_MODEL_H_
