// Algorithms of products as they were measured, and which was chosen.
#ifndef TACC_WORKER_RANK_DEVICE_MEASURED_PRODUCTS_H_
#define TACC_WORKER_RANK_DEVICE_MEASURED_PRODUCTS_H_

#include <map>
#include <string>
#include <vector>

namespace tacc::worker {

// LibTorch's own way to multiply, which always works.
inline constexpr char kLibtorchProduct[] = "libtorch";

// How one algorithm of a library did.
struct ProductTiming {
  std::string algorithm;  // kLibtorchProduct, or as the library names it (kernels/cuda/product.h)
  double seconds = 0;     // 0: not measured
  std::string failed;     // Why it is not used though it should have worked; empty if it may be.
  double distance = 0;    // Of its result from LibTorch's, over the length of that, where this is why.
  int rank = 0;           // The first on which it failed, once the ranks have agreed.
};

// A matrix product on a device.
struct ProductChoice {
  std::string shape;      // kernels::cuda::InWords
  std::string algorithm;  // Who computes it; empty until the ranks have agreed.
  // LibTorch's first, then as the library held them for the fastest.
  std::vector<ProductTiming> timings;
  // LibTorch has it for want of an algorithm that works on all ranks, not as the fastest: no choice to keep.
  bool is_makeshift = false;
};

// By shape, the algorithm that an earlier attempt of the job took.
using EarlierProducts = std::map<std::string, std::string>;

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_DEVICE_MEASURED_PRODUCTS_H_
