// Slots of tokens in buffers, one for each destination of a group of tokens. Shapes: B samples, S tokens a sample, K
// slots of a token, G groups of S/G tokens in a row, D destinations, C rows of a buffer, N features.
#ifndef TACC_KERNELS_CONTRACT_DISPATCH_H_
#define TACC_KERNELS_CONTRACT_DISPATCH_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

struct DispatchKernels {
  // ids i32[B,S,K] -> places i32[B,S,K], row_ids i32[B,G,D,C], overflow f32[]. Expert ids are cut into D equal ranges;
  // a slot goes to the next row c of its group's buffer d, and its place is d C + c; where the buffer is full, or the
  // id is no expert's, the place is -1, and overflow counts the former. Rows that nothing went to have the id -1.
  void (&DispatchSlots)(const TensorView& ids, int64_t num_experts, const TensorView& places, const TensorView& row_ids,
                        const TensorView& overflow);

  // rows [B,G,D,C,N]: the row of x [B,S,N] or [B,S,K,N] of each slot, at its place; zero elsewhere. No two slots of a
  // group have one place.
  void (&Dispatch)(const TensorView& x, const TensorView& places, const TensorView& rows);

  // y [B,S,K,N]: the row at each slot's place, zero without one; or [B,S,N] in f32
  // (f64): their sum over a token's slots.
  void (&Combine)(const TensorView& rows, const TensorView& places, const TensorView& y);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_DISPATCH_H_
