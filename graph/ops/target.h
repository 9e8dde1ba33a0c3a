// What of an op depends on the device that it is compiled for.
#ifndef TACC_GRAPH_OPS_TARGET_H_
#define TACC_GRAPH_OPS_TARGET_H_

#include <cstdint>

#include "graph/ir/type.h"
#include "graph/ops/einsum_spec.h"
#include "graph/ops/window.h"

namespace tacc::graph {

// einsum(a, b) -> y. `is_part`: a is a part of its operand (FactorsOf), which does not lie in a row.
struct ProductCall {
  EinsumSpec spec;
  TensorType a, b, y;
  bool is_part = false;
};

// A convolution of x [N,C,spatial...] by w [O,C/G,kernel...] to y [N,O,windows...], of which one is the result.
struct ConvolutionCall {
  enum class Result { kX, kW, kY } result;
  TensorType x, w, y;
  Window window;
  bool has_bias = false;
};

// What a program is compiled for: scratch bytes of its kernels beside their results, those of libraries that they call
// included. All are upper bounds, which worker/rank's kernel_memory_test holds against what kernels take. The answers
// here are those of kernels that take none; graph/targets has a class for each kind of device that answers otherwise.
class Target {
 public:
  virtual ~Target() = default;

  // What libraries keep of a rank's workspace for themselves, once a program.
  virtual int64_t LibraryBytes() const { return 0; }

  virtual int64_t EinsumBytes(const ProductCall& /*product*/) const { return 0; }
  // y = acc + einsum(a, b).
  virtual int64_t EinsumAccumulateBytes(const ProductCall& product) const { return EinsumBytes(product); }
  virtual int64_t ConvolutionBytes(const ConvolutionCall& /*convolution*/) const { return 0; }
  // Pools and what else makes planes [spatial...] of images of one type from those of others.
  virtual int64_t PlaneBytes(const TensorType& /*from*/, const TensorType& /*to*/) const { return 0; }
  virtual int64_t ChannelSumsBytes(const TensorType& /*x*/) const { return 0; }
  // q [B,S,H,D], k [B,T,K,D], v [B,T,K,V]. `key_runs`: pieces of the keys whose positions follow each other, at most.
  virtual int64_t AttentionBytes(const TensorType& /*q*/, const TensorType& /*k*/, const TensorType& /*v*/,
                                 int64_t /*key_runs*/) const {
    return 0;
  }
  virtual int64_t AttentionGradBytes(const TensorType& /*q*/, const TensorType& /*k*/, const TensorType& /*v*/,
                                     int64_t /*key_runs*/) const {
    return 0;
  }
  virtual int64_t AttentionBiasGradBytes(const TensorType& /*q*/, const TensorType& /*v*/,
                                         const TensorType& /*bias*/) const {
    return 0;
  }
  // expert_matmul(x, ids, w) -> y.
  virtual int64_t ExpertMatmulBytes(const TensorType& /*x*/, const TensorType& /*ids*/, const TensorType& /*w*/,
                                    const TensorType& /*y*/) const {
    return 0;
  }
  // The gradient dw of its matrices from rows a and b.
  virtual int64_t ExpertMatmulGradBytes(const TensorType& /*a*/, const TensorType& /*b*/, const TensorType& /*ids*/,
                                        const TensorType& /*dw*/) const {
    return 0;
  }
  // dispatch_slots with rows of the ids i32[B,G,D,C].
  virtual int64_t DispatchSlotsBytes(const TensorType& /*row_ids*/) const { return 0; }
  // Gradients of rms_norm and layer_norm with `num_sums` gradients of weights over the last dim of x.
  virtual int64_t NormGradBytes(const TensorType& /*x*/, int64_t /*num_sums*/) const { return 0; }
  // dtable from ids.
  virtual int64_t EmbeddingGradBytes(const TensorType& /*ids*/, const TensorType& /*dtable*/) const { return 0; }
  // reduce_sum, reduce_max.
  virtual int64_t ReduceBytes() const { return 0; }
  // square_sums with so many sums by row and by column, of all matrices together.
  virtual int64_t SquareSumsBytes(int64_t /*rows*/, int64_t /*columns*/) const { return 0; }
  // adafactor and adafactor_squares of a tensor of so many elements, with such moments.
  virtual int64_t AdafactorBytes(int64_t /*elements*/, int64_t /*rows*/, int64_t /*columns*/) const { return 0; }
  virtual int64_t SumSquaresBytes(int64_t /*num_operands*/) const { return 0; }
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_TARGET_H_
