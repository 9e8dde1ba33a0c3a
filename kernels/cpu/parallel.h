// ParallelFor: runs ranges of [0, n) on the process's threads (OpenMP's, shared with LibTorch).
#ifndef TACC_KERNELS_CPU_PARALLEL_H_
#define TACC_KERNELS_CPU_PARALLEL_H_

#include <omp.h>

#include <cstdint>

namespace tacc::kernels::cpu {

// Calls body(begin, end) so that the ranges cover [0, n) once. Ranges start at multiples of `grain`, and at most
// n / grain + 1 threads run. Which range runs on which thread depends only on n, grain and the number of threads.
// Bodies must not depend on how [0, n) is cut, so that results are the same for any number of threads.
template <typename Body>
void ParallelFor(int64_t n, int64_t grain, const Body& body) {
  if (n <= 0) return;
  if (grain < 1) grain = 1;
  const int64_t num_grains = (n + grain - 1) / grain;
  if (num_grains == 1 || omp_in_parallel() || omp_get_max_threads() == 1) {
    body(int64_t{0}, n);
    return;
  }
  // Always the whole team, idle threads included: OpenMP's runtime ends and makes threads when its size changes.
#pragma omp parallel
  {
    const int64_t team = omp_get_num_threads();
    const int64_t used = team < num_grains ? team : num_grains;
    const int64_t id = omp_get_thread_num();
    if (id < used) {
      const int64_t begin = num_grains * id / used * grain;
      int64_t end = num_grains * (id + 1) / used * grain;
      if (end > n) end = n;
      if (begin < end) body(begin, end);
    }
  }
}

}  // namespace tacc::kernels::cpu

#endif  // TACC_KERNELS_CPU_PARALLEL_H_
