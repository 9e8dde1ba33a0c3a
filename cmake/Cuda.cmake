# CUDA from the pinned wheels in .venv: nvcc as CMake's CUDA compiler, the libraries as imported targets. (The wheels
# have no layout that find_package(CUDAToolkit) knows.)
#   cudart, cublasLt, cupti, torch_cuda, nccl
set(CUDA_DIR ${TACC_SITE_PACKAGES}/nvidia/cu13)
if(NOT EXISTS ${CUDA_DIR}/bin/nvcc)
  message(FATAL_ERROR "No nvcc in .venv: run `make setup` first.")
endif()
set(CMAKE_CUDA_COMPILER ${CUDA_DIR}/bin/nvcc)
# The compressed code of three architectures is a quarter of the size, and takes as long to make.
set(
  CMAKE_CUDA_FLAGS
  "-L${CUDA_DIR}/lib --expt-relaxed-constexpr --compress-mode=size -Xcompiler=-Wall,-Wno-unused-parameter"
)
set(CMAKE_CUDA_FLAGS_DEVELOPMENT "-O2")
set(CMAKE_CUDA_FLAGS_RELEASE "-O2")
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
# A100, H100 and H200, B200; what is newer compiles the PTX of the last.
set(CMAKE_CUDA_ARCHITECTURES "80-real;90-real;100")
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${ccache_launcher})
endif()
enable_language(CUDA)
# CMake 3.25 does not know that this nvcc has C++20.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)

add_library(cudart SHARED IMPORTED)
set_target_properties(
  cudart
  PROPERTIES IMPORTED_LOCATION ${CUDA_DIR}/lib/libcudart.so.13 INTERFACE_INCLUDE_DIRECTORIES ${CUDA_DIR}/include
)
# LibTorch needs these two as well: they are there wherever it is.
add_library(cublasLt SHARED IMPORTED)
set_target_properties(
  cublasLt
  PROPERTIES IMPORTED_LOCATION ${CUDA_DIR}/lib/libcublasLt.so.13 INTERFACE_INCLUDE_DIRECTORIES ${CUDA_DIR}/include
)
add_library(cupti SHARED IMPORTED)
set_target_properties(
  cupti
  PROPERTIES IMPORTED_LOCATION ${CUDA_DIR}/lib/libcupti.so.13 INTERFACE_INCLUDE_DIRECTORIES ${CUDA_DIR}/include
)
add_library(nccl SHARED IMPORTED)
set_target_properties(
  nccl
  PROPERTIES
    IMPORTED_LOCATION ${TACC_SITE_PACKAGES}/nvidia/nccl/lib/libnccl.so.2
    INTERFACE_INCLUDE_DIRECTORIES ${TACC_SITE_PACKAGES}/nvidia/nccl/include
)
add_library(c10_cuda SHARED IMPORTED)
set_target_properties(c10_cuda PROPERTIES IMPORTED_LOCATION ${TORCH_DIR}/lib/libc10_cuda.so)
add_library(torch_cuda SHARED IMPORTED)
set_target_properties(
  torch_cuda
  PROPERTIES IMPORTED_LOCATION ${TORCH_DIR}/lib/libtorch_cuda.so INTERFACE_LINK_LIBRARIES "torch_cpu;c10_cuda;cudart"
)
