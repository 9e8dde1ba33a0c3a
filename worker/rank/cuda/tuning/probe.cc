#include "worker/rank/cuda/tuning/probe.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/launch/stream.h"
#include "machine/machine.h"
#include "nlohmann/json.hpp"
#include "worker/rank/cuda/device/errors.h"
#include "worker/rank/cuda/device/exceptions.h"
#include "worker/rank/cuda/device/timer.h"
#include "worker/rank/cuda/tuning/attention_on_gpu.h"
#include "worker/rank/cuda/tuning/attention_picker.h"
#include "worker/rank/torch/matmul_rate.h"

namespace tacc::worker {
namespace {

using nlohmann::json;

#define TACC_RETURN_IF_CUDA_FAILS(call, what)                                              \
  do {                                                                                     \
    if (absl::Status status = CudaStatus(call, what, device); !status.ok()) return status; \
  } while (false)

// Memory of the device or of the host that the device reads, given back in the end.
using Memory = std::unique_ptr<void, void (*)(void*)>;
void FreeOnDevice(void* data) { (void)cudaFree(data); }
void FreeOnHost(void* data) { (void)cudaFreeHost(data); }

absl::StatusOr<Memory> DeviceMemory(int device, size_t num_bytes) {
  void* data = nullptr;
  TACC_RETURN_IF_CUDA_FAILS(cudaMalloc(&data, num_bytes), absl::StrCat("allocation of ", num_bytes, " bytes"));
  return Memory(data, &FreeOnDevice);
}

absl::StatusOr<int> NumDevices() {
  int count = 0;
  const int device = 0;
  TACC_RETURN_IF_CUDA_FAILS(cudaGetDeviceCount(&count), "counting GPUs");
  return count;
}

std::string NameOf(int device) { return absl::StrCat("cuda:", device); }

// Whether `device` reads and writes `peer`'s memory, and by what: NVLink knows atomics between GPUs, PCIe does not.
struct Link {
  bool peer_access = false;
  bool nvlink = false;
};

absl::StatusOr<Link> LinkBetween(int device, int peer) {
  int access = 0, atomics = 0;
  TACC_RETURN_IF_CUDA_FAILS(cudaDeviceGetP2PAttribute(&access, cudaDevP2PAttrAccessSupported, device, peer),
                            "looking for a link");
  TACC_RETURN_IF_CUDA_FAILS(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, peer),
                            "looking for a link");
  return Link{access != 0, access != 0 && atomics != 0};
}

// Makes the device current and checks that it works.
absl::StatusOr<json> Look(int device) {
  const absl::StatusOr<int> count = NumDevices();
  if (!count.ok()) return count.status();
  if (device < 0 || device >= *count) {
    return absl::NotFoundError(absl::StrCat(NameOf(device), ": this machine has ", *count, " GPUs, from cuda:0 on"));
  }
  TACC_RETURN_IF_CUDA_FAILS(cudaSetDevice(device), "making it current");
  cudaDeviceProp properties;
  TACC_RETURN_IF_CUDA_FAILS(cudaGetDeviceProperties(&properties, device), "asking for its properties");
  {
    constexpr size_t kBytes = 1 << 20;
    constexpr unsigned char kPattern = 0xa5;
    absl::StatusOr<Memory> memory = DeviceMemory(device, kBytes);
    if (!memory.ok()) return memory.status();
    std::array<unsigned char, 64> read = {};
    TACC_RETURN_IF_CUDA_FAILS(cudaMemset(memory->get(), kPattern, kBytes), "setting memory");
    TACC_RETURN_IF_CUDA_FAILS(cudaMemcpy(read.data(), static_cast<char*>(memory->get()) + kBytes - read.size(),
                                         read.size(), cudaMemcpyDeviceToHost),
                              "a copy from its memory");
    if (std::count(read.begin(), read.end(), kPattern) != static_cast<ptrdiff_t>(read.size())) {
      return absl::UnavailableError(
          absl::StrCat(NameOf(device), ": its memory does not hold what was written: take it out of service"));
    }
  }
  size_t free_bytes = 0, total_bytes = 0;
  TACC_RETURN_IF_CUDA_FAILS(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for its free memory");
  json links = json::object();
  for (int peer = 0; peer < *count; ++peer) {
    if (peer == device) continue;
    const absl::StatusOr<Link> link = LinkBetween(device, peer);
    if (!link.ok()) return link.status();
    links[NameOf(peer)] = link->nvlink ? "nvlink" : "pcie";
  }
  std::ifstream version("/proc/driver/nvidia/version");
  const std::string text((std::istreambuf_iterator<char>(version)), std::istreambuf_iterator<char>());
  return json{{"name", NameOf(device)},
              {"kind", "cuda"},
              {"model", properties.name},
              {"total_memory_bytes", total_bytes},
              {"free_memory_bytes", free_bytes},
              {"compute_capability", absl::StrCat(properties.major, ".", properties.minor)},
              {"links", links},
              {"driver", DriverVersion(text)}};
}

at::TensorOptions On(at::ScalarType dtype) { return at::TensorOptions(at::kCUDA).dtype(dtype); }

// Side of the square products: large enough for the peak, small enough for half the free memory.
int64_t MatmulSide(int64_t free_bytes, int64_t largest) {
  int64_t side = largest;
  while (side > 512 && 3 * side * side * 4 > free_bytes / 2) side /= 2;
  return side;
}

double CubeFlops(int64_t side) { return 2 * std::pow(static_cast<double>(side), 3); }

// Random numbers: a GPU multiplies zeros and ones faster than what models hold.
double MatmulPeak(at::ScalarType dtype, int64_t side) {
  constexpr int kRepeats = 10;
  const at::Tensor a = at::randn({side, side}, On(dtype)), b = at::randn({side, side}, On(dtype)).t();
  at::Tensor c = at::empty({side, side}, On(dtype));
  return CubeFlops(side) / BestSeconds(kRepeats, [&] { at::mm_out(c, a, b); });
}

// A large model's layers, so that what small products lose is no part of it, in the type that most jobs compute in.
MatmulRate LayerRate(int64_t side) {
  constexpr int kRepeats = 8;
  return MeasureMatmul(On(at::kBFloat16), {{2 * side, side, side}, {side, side / 2, 7 * side / 4}},
                       [](const std::function<void()>& product) { return RunSeconds(kRepeats, product); });
}

// 0 where LibTorch refuses the product on this GPU.
double Fp8Peak(int64_t side) {
  constexpr int kRepeats = 10;
  const at::Tensor a = at::randn({side, side}, On(at::kBFloat16)).to(at::kFloat8_e4m3fn);
  const at::Tensor b = at::randn({side, side}, On(at::kBFloat16)).to(at::kFloat8_e4m3fn).t();
  const at::Tensor scale = at::ones({}, On(at::kFloat));
  at::Tensor c = at::empty({side, side}, On(at::kBFloat16));
  try {
    return CubeFlops(side) / BestSeconds(kRepeats, [&] {
             at::_scaled_mm_out(c, a, b, scale, scale, /*bias=*/{}, /*scale_result=*/{}, at::kBFloat16,
                                /*use_fast_accum=*/true);
           });
  } catch (const c10::AcceleratorError&) {
    throw;
  } catch (const c10::Error&) {
    return 0;
  }
}

// Bytes read and written a second by a copy within the device.
absl::StatusOr<double> MemoryBandwidth(int device, int64_t free_bytes) {
  constexpr int kRepeats = 5;
  const size_t num_bytes = static_cast<size_t>(std::min<int64_t>(int64_t{512} << 20, free_bytes / 4));
  absl::StatusOr<Memory> from = DeviceMemory(device, num_bytes), to = DeviceMemory(device, num_bytes);
  if (!from.ok()) return from.status();
  if (!to.ok()) return to.status();
  TACC_RETURN_IF_CUDA_FAILS(cudaMemset(from->get(), 1, num_bytes), "setting memory");
  cudaError_t error = cudaSuccess;
  const double seconds = BestSeconds(kRepeats, [&] {
    const cudaError_t now =
        cudaMemcpyAsync(to->get(), from->get(), num_bytes, cudaMemcpyDeviceToDevice, kernels::cuda::CurrentStream());
    if (now != cudaSuccess) error = now;
  });
  TACC_RETURN_IF_CUDA_FAILS(error, "a copy within its memory");
  return 2 * static_cast<double>(num_bytes) / seconds;
}

struct LinkSpeed {
  double bytes_per_second = 0, latency_seconds = 0;
};

// Copies to another GPU that this one reaches, or where there is none to the host.
absl::StatusOr<LinkSpeed> MeasureLink(int device) {
  constexpr size_t kBytes = 64 << 20;
  constexpr int kSmallCopies = 100;
  const absl::StatusOr<int> count = NumDevices();
  if (!count.ok()) return count.status();
  int peer = -1;
  for (int other = 0; other < *count && peer < 0; ++other) {
    if (other == device) continue;
    const absl::StatusOr<Link> link = LinkBetween(device, other);
    if (!link.ok()) return link.status();
    if (link->peer_access) peer = other;
  }
  absl::StatusOr<Memory> from = DeviceMemory(device, kBytes);
  if (!from.ok()) return from.status();
  Memory to(nullptr, &FreeOnHost);
  if (peer >= 0) {
    TACC_RETURN_IF_CUDA_FAILS(cudaSetDevice(peer), absl::StrCat("making ", NameOf(peer), " current"));
    absl::StatusOr<Memory> memory = DeviceMemory(peer, kBytes);
    TACC_RETURN_IF_CUDA_FAILS(cudaSetDevice(device), "making it current");
    // Another rank may use all of the other GPU's memory: then the host shows what there is.
    if (memory.ok()) {
      to = *std::move(memory);
      const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
      } else {
        TACC_RETURN_IF_CUDA_FAILS(error, absl::StrCat("access to the memory of ", NameOf(peer)));
      }
    } else if (FaultOf(memory.status()) == CudaFault::kOutOfMemory) {
      (void)cudaGetLastError();
    } else {
      return memory.status();
    }
  }
  if (to == nullptr) {
    void* data = nullptr;
    TACC_RETURN_IF_CUDA_FAILS(cudaMallocHost(&data, kBytes), "allocation of pinned host memory");
    to = Memory(data, &FreeOnHost);
  }
  cudaError_t error = cudaSuccess;
  const auto copy = [&](size_t num_bytes) {
    // Unified addresses say where each lies.
    const cudaError_t now =
        cudaMemcpyAsync(to.get(), from->get(), num_bytes, cudaMemcpyDefault, kernels::cuda::CurrentStream());
    if (now != cudaSuccess) error = now;
  };
  LinkSpeed speed;
  speed.bytes_per_second = static_cast<double>(kBytes) / BestSeconds(3, [&] { copy(kBytes); });
  speed.latency_seconds = BestSeconds(3,
                                      [&] {
                                        for (int i = 0; i < kSmallCopies; ++i) copy(4);
                                      }) /
                          kSmallCopies;
  TACC_RETURN_IF_CUDA_FAILS(error, "a copy over a link");
  return speed;
}

// FLOP/s of attention in bf16, causal, forward and backward together, by backend; 0 where one is refused.
json AttentionSpeeds() {
  constexpr int64_t kSequence = 2048, kHeads = 16, kHeadDim = 128;
  const kernels::TensorView shape{nullptr, kernels::DType::kBF16, {1, kSequence, kHeads, kHeadDim}};
  StreamAttentionBench bench;
  const AttentionMeasurement measured = MeasureAttention(
      bench, shape, shape, {}, {.causal = true, .scale = 1 / std::sqrt(static_cast<double>(kHeadDim))});
  // As a step's FLOPs are counted (graph/ops/attention.cc): two products forward, four backward, over half of the
  // scores.
  const double flops = 6.0 / 2 * 2 * kHeads * kHeadDim * static_cast<double>(kSequence * kSequence);
  json speeds;
  for (const AttentionTiming& timing : measured.timings) {
    const double seconds = timing.forward_seconds + timing.backward_seconds;
    speeds[timing.backend] = timing.refused.empty() && seconds > 0 ? flops / seconds : 0.0;
  }
  return speeds;
}

absl::StatusOr<std::string> Probe(int device) {
  absl::StatusOr<json> result = Look(device);
  if (!result.ok()) return result.status();
  json& profile = *result;
  const int64_t free_bytes = profile["free_memory_bytes"].get<int64_t>();
  at::Context& context = at::globalContext();
  context.lazyInitDevice(c10::DeviceType::CUDA);
  const absl::StatusOr<double> bandwidth = MemoryBandwidth(device, free_bytes);
  if (!bandwidth.ok()) return bandwidth.status();
  const absl::StatusOr<LinkSpeed> link = MeasureLink(device);
  if (!link.ok()) return link.status();
  const int64_t wide_side = MatmulSide(free_bytes, 4096), side = MatmulSide(free_bytes, 8192);
  json peaks;
  context.setAllowTF32CuBLAS(false);
  peaks["f32"] = MatmulPeak(at::kFloat, wide_side);
  context.setAllowTF32CuBLAS(true);
  peaks["tf32"] = MatmulPeak(at::kFloat, wide_side);
  context.setAllowTF32CuBLAS(false);
  const MatmulRate layers = LayerRate(MatmulSide(free_bytes / 2, 8192));
  const double bf16 = std::max(MatmulPeak(at::kBFloat16, side), layers.best);
  peaks["bf16"] = bf16;
  peaks["f16"] = MatmulPeak(at::kHalf, side);
  const std::string capability = profile["compute_capability"].get<std::string>();
  peaks["fp8"] = std::atof(capability.c_str()) >= 8.9 ? Fp8Peak(side) : 0.0;
  profile["matmul_flops_per_second"] = peaks;
  profile["matmul_fraction"] = layers.sustained / bf16;
  profile["memory_bytes_per_second"] = *bandwidth;
  profile["link_bytes_per_second"] = link->bytes_per_second;
  profile["link_latency_seconds"] = link->latency_seconds;
  profile["attention_flops_per_second"] = AttentionSpeeds();
  profile["memory_bytes"] = free_bytes;
  profile["threads"] = 1;
  profile["cpus"] = ThisMachine().num_cpus;
  return profile.dump();
}

}  // namespace

absl::StatusOr<std::string> ProbeCudaDevice(int device) {
  try {
    return Probe(device);
  } catch (const std::exception& error) {
    return StatusOfException(error, device);
  }
}

absl::StatusOr<std::string> LookAtCudaDevice(int device) {
  const absl::StatusOr<json> result = Look(device);
  if (!result.ok()) return result.status();
  return result->dump();
}

std::string CudaDevices() {
  json devices = json::array();
  const absl::StatusOr<int> count = NumDevices();
  for (int device = 0; count.ok() && device < *count; ++device) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
    devices.push_back({{"name", NameOf(device)}, {"kind", "cuda"}, {"model", properties.name}});
  }
  return devices.dump();
}

}  // namespace tacc::worker
