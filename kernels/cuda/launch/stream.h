// The stream that kernels of kernels/cuda are queued on: one a thread, as LibTorch's current stream, together with
// which it is set.
#ifndef TACC_KERNELS_CUDA_LAUNCH_STREAM_H_
#define TACC_KERNELS_CUDA_LAUNCH_STREAM_H_

struct CUstream_st;

namespace tacc::kernels::cuda {

// cudaStream_t, without CUDA's headers. Null is CUDA's default stream.
using Stream = CUstream_st*;

Stream CurrentStream();

// Makes `stream` this thread's current one while it lives.
class StreamScope {
 public:
  explicit StreamScope(Stream stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  Stream before_;
};

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_LAUNCH_STREAM_H_
