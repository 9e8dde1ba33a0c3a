// CountingAllocator: measures what kernels and LibTorch take through c10's CPU allocator. For tests.
#ifndef TACC_KERNELS_CPU_COUNTING_ALLOCATOR_H_
#define TACC_KERNELS_CPU_COUNTING_ALLOCATOR_H_

#include <cstdint>

namespace tacc::kernels::cpu {

// Installs a c10 CPU allocator that counts, in place of the one before, until the process ends. Thread-safe.
void InstallCountingAllocator();

// Starts a new measurement: the peak is taken from here on.
void ResetPeak();

// The most bytes that were live at once since ResetPeak, beyond what was live then; each block counts as a multiple of
// 64 bytes plus 64, as in the planned workspace.
int64_t PeakBytes();

}  // namespace tacc::kernels::cpu

#endif  // TACC_KERNELS_CPU_COUNTING_ALLOCATOR_H_
