// For tests that hold for the kernels of every device: TACC_BACKEND is the namespace under test, cpu unless the build
// says otherwise.
#ifndef TACC_KERNELS_BACKEND_UNDER_TEST_H_
#define TACC_KERNELS_BACKEND_UNDER_TEST_H_

#ifndef TACC_BACKEND
#define TACC_BACKEND cpu
#endif

#define TACC_QUOTED(path) #path
// clang-format off
#define TACC_KERNEL_PATH(backend, header) TACC_QUOTED(kernels/backend/header)
// clang-format on
// #include TACC_KERNEL_HEADER(norm.h)
#define TACC_KERNEL_HEADER(header) TACC_KERNEL_PATH(TACC_BACKEND, header)

#endif  // TACC_KERNELS_BACKEND_UNDER_TEST_H_
