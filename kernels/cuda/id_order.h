// Tokens in the order of their ids: what the gradient of an embedding and mixtures of experts walk over. A radix sort,
// stable and without atomics, so the order is the ids' alone.
#ifndef TACC_KERNELS_CUDA_ID_ORDER_H_
#define TACC_KERNELS_CUDA_ID_ORDER_H_

#include <cstdint>

#include "kernels/cuda/scratch.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

// Scratch of an IdOrder.
int64_t IdOrderBytes(int64_t num_tokens, int64_t num_ids);

class IdOrder {
 public:
  // Queues the sort. ids i32, of any dims (at most 2^31 - 1); keys are id - offset, and what lies outside [0, num_ids)
  // comes last.
  IdOrder(const TensorView& ids, int64_t offset, int64_t num_ids);

  // Device memory, valid for what is queued while this lives. Of the i-th in order, its index in ids and its key
  // (num_ids for what comes last).
  const int32_t* tokens() const { return tokens_; }
  const int32_t* keys() const { return keys_; }
  // [num_ids + 2]: key k has places starts[k] to starts[k + 1] of the order; k may be num_ids.
  const int32_t* starts() const { return starts_; }

 private:
  Scratch memory_;
  int32_t *tokens_ = nullptr, *keys_ = nullptr, *starts_ = nullptr;
};

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_ID_ORDER_H_
