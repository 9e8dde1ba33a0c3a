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
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <thread>
#include <vector>

#include "nlohmann/json.hpp"

namespace tacc::worker {
namespace {

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

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
    const double end = Seconds() + seconds / kShapes.size();
    at::mm_out(c, a, b);
    do {
      const double begin = Seconds();
      at::mm_out(c, a, b);
      best = std::max(best, flops / (Seconds() - begin));
    } while (Seconds() < end);
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
    const double begin = Seconds();
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; ++i) ys[i] = 0.5f * xs[i] + ys[i];
    best = std::max(best, 3.0 * static_cast<double>(n) * sizeof(float) / (Seconds() - begin));
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
    double begin = Seconds();
    for (int i = 0; ok && i < kPings; ++i)
      ok = SendAll(client, buffer.data(), 1) && ReceiveAll(client, buffer.data(), 1);
    if (ok) link.latency_seconds = (Seconds() - begin) / kPings / 2;
    begin = Seconds();
    for (int i = 0; ok && i < kBlocks; ++i) ok = SendAll(client, buffer.data(), kBlock);
    ok = ok && ReceiveAll(client, buffer.data(), 1);
    if (ok) link.bytes_per_second = static_cast<double>(kBlock) * kBlocks / (Seconds() - begin);
    shutdown(client, SHUT_RDWR);
    echo.join();
    if (server >= 0) close(server);
  }
  if (listener >= 0) close(listener);
  if (client >= 0) close(client);
  return link;
}

// A line "key : value" of a file in /proc.
std::string ProcValue(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

int64_t ProcBytes(const char* path, const std::string& key) {
  return std::strtoll(ProcValue(path, key).c_str(), nullptr, 10) * 1024;  // "kB"
}

}  // namespace

int64_t ResidentBytes() { return ProcBytes("/proc/self/status", "VmRSS"); }

void ConfigureThreads(int threads) {
  at::set_num_threads(threads);
  omp_set_num_threads(threads);
  _mm_setcsr(_mm_getcsr() | kFlushToZeroAndDenormalsAreZero);
#pragma omp parallel num_threads(threads)
  _mm_setcsr(_mm_getcsr() | kFlushToZeroAndDenormalsAreZero);
}

std::string ProbeDevice(int threads) {
  ConfigureThreads(threads);
  constexpr double kSecondsPerDtype = 2.0;
  const Link link = MeasureLoopback();
  const nlohmann::json device = {
      {"name", "cpu"},
      {"kind", "cpu"},
      {"model", ProcValue("/proc/cpuinfo", "model name")},
      {"threads", threads},
      {"memory_bytes", ProcBytes("/proc/meminfo", "MemTotal")},
      {"memory_free_bytes", ProcBytes("/proc/meminfo", "MemAvailable")},
      {"matmul_flops_per_second",
       {{"f32", MatmulPeak(at::kFloat, kSecondsPerDtype)}, {"bf16", MatmulPeak(at::kBFloat16, kSecondsPerDtype)}}},
      {"memory_bytes_per_second", MemoryBandwidth(threads)},
      {"link_bytes_per_second", link.bytes_per_second},
      {"link_latency_seconds", link.latency_seconds}};
  return device.dump();
}

}  // namespace tacc::worker
