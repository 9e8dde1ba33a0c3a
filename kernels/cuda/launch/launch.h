// How kernels are written here: as functors over elements or over rows, started by ForEach and ForEachTeam.
//
// The files *.cu compile twice. With nvcc they are the GPU's kernels: a functor runs on the GPU, on the current stream
// (kernels/cuda/launch/stream.h). With g++ (library tacc_cuda_kernels_on_host, for tests) the same source runs on the
// host on host memory, a team's threads (64 at most, but all of ForEachExactTeam) as fibers that switch at each Sync:
// so every line of a kernel but the few in the nvcc parts of this folder's headers is tested on machines without a GPU.
// What a GPU would not forgive is made to show there: threads run in another order from Sync to Sync, shared memory and
// scratch start out as NaN, bytes behind shared memory are watched, packs must be aligned.
//
// Functors are structs with `TACC_DEVICE void operator()(...) const` (nvcc takes no lambdas inside templates, and a
// name shows in profiles). Their members are copied into the kernel's parameters, at most 4 KB: no host memory is
// referenced once the call has returned, and no member may point to any.
#ifndef TACC_KERNELS_CUDA_LAUNCH_LAUNCH_H_
#define TACC_KERNELS_CUDA_LAUNCH_LAUNCH_H_

#include <cstdint>
#include <type_traits>
#include <typeinfo>

#ifdef __CUDACC__
#define TACC_DEVICE __device__
#else
#define TACC_DEVICE
#endif

#ifdef __CUDACC__
#include <cuda_runtime.h>

#include "kernels/cuda/launch/stream.h"
#else
#include <functional>

#include "kernels/check.h"
#endif

namespace tacc::kernels::cuda {

// The largest team.
inline constexpr int kMaxTeam = 1024;
inline constexpr int kWarp = 32;
// Of the memory that a team may share Sum and Max take so much at most.
inline constexpr int64_t kOwnSharedBytes = 1 << 10;
// What is left of it on every GPU that we know: 48 KiB are a block's without asking.
inline constexpr int64_t kMaxSharedBytes = (48 << 10) - kOwnSharedBytes;
// Of shared memory.
inline constexpr int kSharedAlignment = 128;
// Parameters of a kernel are 4 KB, its functor and a count.
template <typename F>
inline constexpr bool kIsKernel = std::is_trivially_copyable_v<F> && sizeof(F) <= 4096 - sizeof(int64_t);

// Before a launch, which would fail with no more than "invalid argument": throws std::runtime_error, which names the
// functor, where a team is of no whole warps or of more than `largest` threads, or is to share more than `room` bytes.
void CheckTeam(const std::type_info& functor, int team_size, int largest, int64_t shared_bytes, int64_t room);

// The most blocks of CUDA's grids.
inline constexpr int64_t kMaxGrid = 0x7fffffff;
// Blocks of a grid whose workers each do a share of `num` > 0 pieces, of at most `most`.
constexpr unsigned GridBlocks(int64_t num, int64_t most = kMaxGrid) {
  return static_cast<unsigned>(num < most ? num : most);
}
// f(i) for the pieces in [0, num) of worker number `worker` of `num_workers`, which may be fewer than the pieces.
template <typename F>
TACC_DEVICE void DoShare(int64_t num, int64_t worker, int64_t num_workers, const F& f) {
  for (int64_t i = worker; i < num; i += num_workers) f(i);
}

#ifdef __CUDACC__

// Throws std::runtime_error when the launch before failed.
void CheckLaunch();
// What a team may share on the current device.
int64_t SharedBytesOfDevice();
// Blocks of a grid that keep the current device busy.
int NumBusyBlocks();

// A block of threads that works on one row. Every thread of it must reach each Sync, Sum and Max.
class Team {
 public:
  __device__ explicit Team(char* shared) : shared_(shared) {}
  __device__ int rank() const { return static_cast<int>(threadIdx.x); }
  __device__ int size() const { return static_cast<int>(blockDim.x); }
  // The bytes that ForEachTeam was asked for, shared by the team; aligned to kSharedAlignment.
  template <typename T>
  __device__ T* shared() const {
    return reinterpret_cast<T*>(shared_);
  }
  __device__ void Sync() const { __syncthreads(); }
  // The sum, or the largest, of every thread's value, to all of them; in an order that only the team's size decides.
  template <typename T>
  __device__ T Sum(T value) const {
    return Reduce(value, [](T a, T b) { return a + b; });
  }
  template <typename T>
  __device__ T Max(T value) const {
    return Reduce(value, [](T a, T b) { return a > b ? a : b; });
  }
  // The value of the thread of the same warp whose rank differs by the bits of `mask`. Every thread must reach it.
  template <typename T>
  __device__ T Exchange(T value, int mask) const {
    return __shfl_xor_sync(0xffffffffu, value, mask);
  }

 private:
  template <typename T, typename F>
  __device__ T Reduce(T value, F combine) const {
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      value = combine(value, __shfl_xor_sync(0xffffffffu, value, offset));
    if (blockDim.x <= kWarp) return value;
    __shared__ T of_warps[kMaxTeam / kWarp];
    __syncthreads();  // The last reduction's values have been read.
    if (threadIdx.x % kWarp == 0) of_warps[threadIdx.x / kWarp] = value;
    __syncthreads();
    T result = of_warps[0];
    for (unsigned warp = 1; warp < blockDim.x / kWarp; ++warp) result = combine(result, of_warps[warp]);
    return result;
  }

  char* shared_;
};

namespace launch {

inline constexpr int kThreads = 256;

template <typename F>
__global__ void __launch_bounds__(kThreads) Elements(int64_t n, const __grid_constant__ F f) {
  DoShare(n, static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, static_cast<int64_t>(gridDim.x) * blockDim.x,
          f);
}

template <typename F>
struct OfTeam {
  Team& team;
  const F& f;
  __device__ void operator()(int64_t index) const {
    f(team, index);
    __syncthreads();  // The next row's shared memory is this row's.
  }
};

template <int kLargestTeam, typename F>
__global__ void __launch_bounds__(kLargestTeam) Teams(int64_t num_teams, const __grid_constant__ F f) {
  extern __shared__ __align__(kSharedAlignment) char shared[];
  Team team(shared);
  DoShare(num_teams, blockIdx.x, gridDim.x, OfTeam<F>{team, f});
}

}  // namespace launch

// f(i) for each i in [0, n), in any order.
template <typename F>
void ForEach(int64_t n, F f) {
  static_assert(kIsKernel<F>);
  if (n <= 0) return;
  const int64_t wanted = (n + launch::kThreads - 1) / launch::kThreads;
  launch::Elements<<<GridBlocks(wanted, NumBusyBlocks()), launch::kThreads, 0, CurrentStream()>>>(n, f);
  CheckLaunch();
}

// f(team, index) for each index in [0, num_teams), in any order, by teams of `team_size` threads (a multiple of 32, at
// most kLargestTeam: the smaller it is, the more registers a thread may have) that share `shared_bytes` (at most
// kMaxSharedBytes). Throws as CheckTeam.
template <int kLargestTeam = kMaxTeam, typename F>
void ForEachTeam(int64_t num_teams, int team_size, int64_t shared_bytes, F f) {
  static_assert(kIsKernel<F> && kLargestTeam <= kMaxTeam);
  if (num_teams <= 0) return;
  CheckTeam(typeid(F), team_size, kLargestTeam, shared_bytes, SharedBytesOfDevice());
  launch::Teams<kLargestTeam>
      <<<GridBlocks(num_teams), team_size, static_cast<size_t>(shared_bytes), CurrentStream()>>>(num_teams, f);
  CheckLaunch();
}

#else

// On the host: a fiber of a team.
class Team {
 public:
  struct Block;
  Team(Block* block, int rank) : block_(block), rank_(rank) {}
  int rank() const { return rank_; }
  int size() const;
  template <typename T>
  T* shared() const {
    return static_cast<T*>(SharedBytes());
  }
  void Sync() const;
  template <typename T>
  T Sum(T value) const {
    return Reduce(value, [](T a, T b) { return a + b; });
  }
  template <typename T>
  T Max(T value) const {
    return Reduce(value, [](T a, T b) { return a > b ? a : b; });
  }
  template <typename T>
  T Exchange(T value, int mask) const {
    TACC_KERNEL_CHECK(mask > 0 && mask < kWarp);
    Give(value);
    return *static_cast<T*>(Slot(rank_ ^ mask));
  }

 private:
  void* SharedBytes() const;
  void* Slot(int rank) const;
  // The value of each thread to its slot.
  template <typename T>
  void Give(T value) const {
    static_assert(sizeof(T) <= 16);
    Sync();
    *static_cast<T*>(Slot(rank_)) = value;
    Sync();
  }
  template <typename T, typename F>
  T Reduce(T value, F combine) const {
    Give(value);
    T result = *static_cast<T*>(Slot(0));
    for (int i = 1; i < size(); ++i) result = combine(result, *static_cast<T*>(Slot(i)));
    return result;
  }

  Block* block_;
  int rank_;
};

void RunTeams(int64_t num_teams, int team_size, int64_t shared_bytes, const std::function<void(Team&, int64_t)>& f);
// Two warps show what more would show, sooner.
int HostTeamSize(int team_size);

template <typename F>
void ForEach(int64_t n, F f) {
  static_assert(kIsKernel<F>);
  for (int64_t i = n - 1; i >= 0; --i) f(i);  // Not the order that hides a dependence.
}

template <int kLargestTeam = kMaxTeam, typename F>
void ForEachTeam(int64_t num_teams, int team_size, int64_t shared_bytes, F f) {
  static_assert(kIsKernel<F> && kLargestTeam <= kMaxTeam);
  if (num_teams <= 0) return;
  CheckTeam(typeid(F), team_size, kLargestTeam, shared_bytes, kMaxSharedBytes);
  RunTeams(num_teams, HostTeamSize(team_size), shared_bytes, [&f](Team& team, int64_t index) { f(team, index); });
}

#endif

// As ForEachTeam, by teams of just kTeam threads.
template <int kTeam, typename F>
void ForEachExactTeam(int64_t num_teams, int64_t shared_bytes, F f) {
#ifdef __CUDACC__
  ForEachTeam<kTeam>(num_teams, kTeam, shared_bytes, f);
#else
  static_assert(kIsKernel<F> && kTeam <= kMaxTeam);
  if (num_teams <= 0) return;
  CheckTeam(typeid(F), kTeam, kTeam, shared_bytes, kMaxSharedBytes);
  RunTeams(num_teams, kTeam, shared_bytes, [&f](Team& team, int64_t index) { f(team, index); });
#endif
}

// A team size for rows of n elements of which a thread takes about `per_thread`.
inline int TeamSize(int64_t n, int64_t per_thread = 8) {
  int size = kWarp;
  while (size < 512 && size * per_thread < n) size *= 2;
  return size;
}

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_LAUNCH_LAUNCH_H_
