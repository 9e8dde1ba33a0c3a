// TACC_KERNEL_CHECK: a precondition of a kernel. The graph verifier and the binding table have proved it for every
// program, so a failure is a bug of ours: it prints the condition and aborts.
#ifndef TACC_KERNELS_CHECK_H_
#define TACC_KERNELS_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define TACC_KERNEL_CHECK(condition)                                                           \
  do {                                                                                         \
    if (!(condition)) [[unlikely]] {                                                           \
      std::fprintf(stderr, "%s:%d: kernel precondition %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                            \
    }                                                                                          \
  } while (false)

#endif  // TACC_KERNELS_CHECK_H_
