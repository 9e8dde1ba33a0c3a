#include "worker/rank/torch/runtime.h"

#include <ATen/Parallel.h>
#include <arpa/inet.h>
#include <immintrin.h>
#include <netinet/tcp.h>
#include <omp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/cpu/einsum.h"
#include "machine/machine.h"
#include "nlohmann/json.hpp"
#include "worker/rank/torch/matmul_rate.h"

namespace tacc::worker {
namespace {

constexpr unsigned kFlushToZeroAndDenormalsAreZero = 0x8040;

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

using Clock = std::function<double()>;

// Of a small, a middle and a large model's layers, in about `seconds`, or up to twice that; then `is_cut_short` is set
// where there was no time for some.
MatmulRate MatmulRateOf(at::ScalarType dtype, double seconds, const Clock& clock, bool* is_cut_short) {
  const std::vector<LayerShape> layers = {{1024, 512, 1536}, {2048, 1024, 1024}, {1024, 2048, 4096}, {512, 4096, 512}};
  constexpr int kKinds = 3;
  const double each = seconds / static_cast<double>(layers.size() * kKinds);
  const double last = clock() + 2 * seconds;
  bool is_first = true;
  return MeasureMatmul(dtype, layers, [&](const std::function<void()>& product) {
    std::vector<double> taken;
    double now = clock();
    if (now >= last && !is_first) {
      *is_cut_short = true;
      return taken;
    }
    is_first = false;
    product();
    now = clock();
    const double end = now + each;
    do {
      const double begin = now;
      product();
      now = clock();
      taken.push_back(now - begin);
    } while (now < end);
    return taken;
  });
}

// What half of the passes of y[i] = a*x[i] + y[i] over arrays well beyond the caches reach: two reads and one write an
// element.
double MemoryBandwidth(int threads, const Clock& clock) {
  constexpr size_t kRepeats = 8;
  constexpr double kMaxSeconds = 1;
  const int64_t n = int64_t{16} << 20;
  std::vector<float> x(n, 1.0f), y(n, 2.0f);
  float* xs = x.data();
  float* ys = y.data();
  std::vector<double> rates;
  double now = clock();
  const double last = now + kMaxSeconds;
  do {
    const double begin = now;
#pragma omp parallel for simd num_threads(threads) schedule(static)
    for (int64_t i = 0; i < n; ++i) ys[i] = 0.5f * xs[i] + ys[i];
    now = clock();
    rates.push_back(3.0 * static_cast<double>(n) * sizeof(float) / (now - begin));
  } while (rates.size() < kRepeats && now < last);
  return Median(std::move(rates));
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
Link MeasureLoopback(const Clock& clock) {
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
    constexpr double kMaxSecondsEach = 0.5;
    constexpr char kPing = 0, kLastPing = 1;
    std::thread echo([server] {
      std::vector<char> buffer(kBlock);
      do {
        if (!ReceiveAll(server, buffer.data(), 1) || !SendAll(server, buffer.data(), 1)) return;
      } while (buffer[0] == kPing);
      // Whatever comes until the other end has sent all.
      while (recv(server, buffer.data(), kBlock, 0) > 0) {
      }
      SendAll(server, buffer.data(), 1);
    });
    std::vector<char> buffer(kBlock, kPing);
    bool ok = true;
    double begin = clock(), now = begin;
    int done = 0;
    while (ok && buffer[0] == kPing) {
      buffer[0] = done + 1 < kPings && now < begin + kMaxSecondsEach ? kPing : kLastPing;
      ok = SendAll(client, buffer.data(), 1) && ReceiveAll(client, buffer.data(), 1);
      now = clock();
      ++done;
    }
    if (ok) link.latency_seconds = (now - begin) / done / 2;
    begin = now;
    done = 0;
    do {
      ok = ok && SendAll(client, buffer.data(), kBlock);
      ++done;
    } while (ok && done < kBlocks && clock() < begin + kMaxSecondsEach);
    shutdown(client, SHUT_WR);
    ok = ok && ReceiveAll(client, buffer.data(), 1);
    if (ok) link.bytes_per_second = static_cast<double>(kBlock) * done / (clock() - begin);
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

std::string ProbeDevice(int threads, const Clock& clock) {
  ConfigureThreads(threads);
  constexpr double kSecondsPerDtype = 2.0;
  const Link link = MeasureLoopback(clock);
  const LocalMachine machine = ThisMachine();
  bool is_cut_short = false;
  const MatmulRate f32 = MatmulRateOf(at::kFloat, kSecondsPerDtype, clock, &is_cut_short);
  // Our kernels compute products of f16 in f32, and of bf16 too where the processor has no instruction for them;
  // LibTorch would take another way there, up to ten times as slow.
  const bool multiplies_bf16 = kernels::cpu::HasBf16Multiply();
  const MatmulRate bf16 = multiplies_bf16 ? MatmulRateOf(at::kBFloat16, kSecondsPerDtype, clock, &is_cut_short) : f32;
  nlohmann::json device = {{"name", "cpu"},
                           {"kind", "cpu"},
                           {"model", machine.cpu_model},
                           {"threads", threads},
                           {"memory_bytes", machine.memory_bytes},
                           {"matmul_flops_per_second", {{"f32", f32.best}, {"bf16", bf16.best}, {"f16", f32.best}}},
                           {"matmul_fraction", (f32.sustained / f32.best + bf16.sustained / bf16.best) / 2},
                           {"memory_bytes_per_second", MemoryBandwidth(threads, clock)},
                           {"link_bytes_per_second", link.bytes_per_second},
                           {"link_latency_seconds", link.latency_seconds},
                           {"cpus", machine.num_cpus},
                           {"multiplies_bf16", multiplies_bf16}};
  if (is_cut_short) device["cut_short"] = true;
  return device.dump();
}

}  // namespace tacc::worker
