// The embedding of kernels/cpu/embedding.h on the GPU: the same functions and contracts, on device memory.
#ifndef TACC_KERNELS_CUDA_EMBEDDING_H_
#define TACC_KERNELS_CUDA_EMBEDDING_H_

#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

void Embedding(const TensorView& table, const TensorView& ids, int64_t offset, const TensorView& y);

// Without atomics: the sums' order is that of the tokens, in blocks that the ids alone decide.
void EmbeddingGrad(const TensorView& dy, const TensorView& ids, int64_t offset, const TensorView& dtable);

// Scratch of EmbeddingGrad.
int64_t EmbeddingGradWorkspaceBytes(int64_t num_tokens, int64_t vocabulary, int64_t row_length, DType compute);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_EMBEDDING_H_
