#include "worker/rank/runtime.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <arpa/inet.h>
#include <immintrin.h>
#include <netinet/tcp.h>
#include <omp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "machine/clock.h"
#include "machine/machine.h"
#include "nlohmann/json.hpp"

namespace tacc::worker {
namespace {

constexpr unsigned kFlushToZeroAndDenormalsAreZero = 0x8040;

// Best rate of m x k by k x n, in floating-point operations per second.
double MatmulPeak(at::ScalarType dtype, double seconds) {
  // Shapes of a small, a middle and a large model's layers: rows x inner x columns.
  constexpr std::array<std::array<int64_t, 3>, 4> kShapes = {
      {{1024, 512, 1536}, {2048, 1024, 1024}, {1024, 2048, 4096}, {512, 4096, 512}}};
  double best = 0;
  for (const auto& [m, k, n] : kShapes) {
    const at::Tensor a = at::ones({m, k}, dtype), b = at::ones({n, k}, dtype).t();
    at::Tensor c = at::empty({m, n}, dtype);
    const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(k) * static_cast<double>(n);
    const double end = SteadySeconds() + seconds / kShapes.size();
    at::mm_out(c, a, b);
    do {
      const double begin = SteadySeconds();
      at::mm_out(c, a, b);
      best = std::max(best, flops / (SteadySeconds() - begin));
    } while (SteadySeconds() < end);
  }
  return best;
}

// Best rate of y[i] = a*x[i] + y[i] over arrays well beyond the caches: two reads and one write an element.
double MemoryBandwidth(int threads) {
  const int64_t n = int64_t{16} << 20;
  std::vector<float> x(n, 1.0f), y(n, 2.0f);
  float* xs = x.data();
  float* ys = y.data();
  double best = 0;
  for (int repeat = 0; repeat < 8; ++repeat) {
    const double begin = SteadySeconds();
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; ++i) ys[i] = 0.5f * xs[i] + ys[i];
    best = std::max(best, 3.0 * static_cast<double>(n) * sizeof(float) / (SteadySeconds() - begin));
  }
  return best;
}

bool SendAll(int fd, const char* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = send(fd, data + done, bytes - done, MSG_NOSIGNAL);
    if (n <= 0) return false;
    done += n;
  }
  return true;
}

bool ReceiveAll(int fd, char* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = recv(fd, data + done, bytes - done, 0);
    if (n <= 0) return false;
    done += n;
  }
  return true;
}

struct Link {
  double bytes_per_second = 0;
  double latency_seconds = 0;
};

// A TCP connection of this host with itself: what ranks on one machine get. Zeros when the loopback cannot be used.
Link MeasureLoopback() {
  Link link;
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener >= 0 && client >= 0 && bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0 &&
      listen(listener, 1) == 0 && getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
      connect(client, reinterpret_cast<sockaddr*>(&address), length) == 0) {
    const int server = accept(listener, nullptr, nullptr);
    const int on = 1;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    constexpr size_t kBlock = 4 << 20;
    constexpr int kBlocks = 32, kPings = 200;
    std::thread echo([server] {
      std::vector<char> buffer(kBlock);
      for (int i = 0; i < kPings; ++i) {
        if (!ReceiveAll(server, buffer.data(), 1) || !SendAll(server, buffer.data(), 1)) return;
      }
      for (int i = 0; i < kBlocks; ++i) {
        if (!ReceiveAll(server, buffer.data(), kBlock)) return;
      }
      SendAll(server, buffer.data(), 1);
    });
    std::vector<char> buffer(kBlock);
    bool ok = true;
    double begin = SteadySeconds();
    for (int i = 0; ok && i < kPings; ++i)
      ok = SendAll(client, buffer.data(), 1) && ReceiveAll(client, buffer.data(), 1);
    if (ok) link.latency_seconds = (SteadySeconds() - begin) / kPings / 2;
    begin = SteadySeconds();
    for (int i = 0; ok && i < kBlocks; ++i) ok = SendAll(client, buffer.data(), kBlock);
    ok = ok && ReceiveAll(client, buffer.data(), 1);
    if (ok) link.bytes_per_second = static_cast<double>(kBlock) * kBlocks / (SteadySeconds() - begin);
    shutdown(client, SHUT_RDWR);
    echo.join();
    if (server >= 0) close(server);
  }
  if (listener >= 0) close(listener);
  if (client >= 0) close(client);
  return link;
}

}  // namespace

void ConfigureThreads(int threads) {
  at::set_num_threads(threads);
  omp_set_num_threads(threads);
  _mm_setcsr(_mm_getcsr() | kFlushToZeroAndDenormalsAreZero);
#pragma omp parallel num_threads(threads)
  _mm_setcsr(_mm_getcsr() | kFlushToZeroAndDenormalsAreZero);
}

std::string ListDevices() {
  return nlohmann::json::array({{{"name", "cpu"}, {"kind", "cpu"}, {"model", ThisMachine().cpu_model}}}).dump();
}

std::string ProbeDevice(int threads) {
  ConfigureThreads(threads);
  constexpr double kSecondsPerDtype = 2.0;
  const Link link = MeasureLoopback();
  const Machine machine = ThisMachine();
  const double f32 = MatmulPeak(at::kFloat, kSecondsPerDtype);
  const nlohmann::json device = {{"name", "cpu"},
                                 {"kind", "cpu"},
                                 {"model", machine.cpu_model},
                                 {"threads", threads},
                                 {"memory_bytes", machine.memory_bytes},
                                 {"matmul_flops_per_second",
                                  // Our kernels compute products of f16 in f32.
                                  {{"f32", f32}, {"bf16", MatmulPeak(at::kBFloat16, kSecondsPerDtype)}, {"f16", f32}}},
                                 {"memory_bytes_per_second", MemoryBandwidth(threads)},
                                 {"link_bytes_per_second", link.bytes_per_second},
                                 {"link_latency_seconds", link.latency_seconds},
                                 {"cpus", machine.num_cpus}};
  return device.dump();
}

}  // namespace tacc::worker
