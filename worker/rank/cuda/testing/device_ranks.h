// For tests: ranks as threads, each with collectives on a simulated GPU's queues, and calls for them.
#ifndef TACC_WORKER_RANK_CUDA_TESTING_DEVICE_RANKS_H_
#define TACC_WORKER_RANK_CUDA_TESTING_DEVICE_RANKS_H_

#include <barrier>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "worker/rank/cuda/collectives/device_collectives.h"
#include "worker/rank/cuda/testing/simulated_communication.h"
#include "worker/rank/device/kernel_table.h"
#include "worker/rank/testing/in_process_transport.h"

namespace tacc::worker {

inline constexpr absl::Duration kRanksTimeout = absl::Seconds(20);

struct DeviceRank {
  int rank = 0;
  Transport& transport;
  SimulatedCommunication& communication;
  DeviceCollectives& collectives;
};

// Runs `body` as each of `world` ranks. A rank's queues live until all ranks have ended.
inline void RunRanks(int world, SimulatedCommunication::Slow slow, int64_t staging_bytes,
                     const std::function<void(DeviceRank)>& body, int ranks_a_machine = 0,
                     DeviceCollectives::Sums sums = DeviceCollectives::Sums::kInOrder) {
  auto transports = MakeInProcessTransports(world, kRanksTimeout, ranks_a_machine);
  std::barrier ended(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto communication = std::make_unique<SimulatedCommunication>(transports[rank].get(), slow);
      SimulatedCommunication& queues = *communication;
      DeviceCollectives collectives(std::move(communication), sums, staging_bytes);
      body({rank, *transports[rank], queues, collectives});
      ended.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Memory of a call with regions of `runs` pieces, and what it holds at first.
struct BoundCall {
  std::vector<std::vector<char>> memory;
  CollectiveCall call;
};

// Numbers of both signs and many sizes, so that the order of a sum shows in its bits.
inline void Fill(kernels::DType dtype, std::mt19937& random, std::vector<char>& memory) {
  std::normal_distribution<float> normal;
  const auto value = [&] { return normal(random) * static_cast<float>(1 << random() % 12); };
  const size_t n = memory.size() / kernels::SizeOf(dtype);
  for (size_t i = 0; i < n; ++i) {
    char* at = memory.data() + i * kernels::SizeOf(dtype);
    const float x = value();
    const double wide = x * 1.000000001;
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    const uint16_t half = static_cast<uint16_t>(bits >> 16);
    const int64_t integer = static_cast<int64_t>(x * 1000);
    if (dtype == kernels::DType::kF32) std::memcpy(at, &x, 4);
    if (dtype == kernels::DType::kF64) std::memcpy(at, &wide, 8);
    if (dtype == kernels::DType::kBF16) std::memcpy(at, &half, 2);
    if (dtype == kernels::DType::kI32) std::memcpy(at, &integer, 4);
    if (dtype == kernels::DType::kI64) std::memcpy(at, &integer, 8);
  }
}

// A region of `elements` in `runs` equal pieces (rounded down to a multiple), with gaps where there are several.
inline Region Cut(std::vector<char>& memory, int64_t elements, int64_t runs, int64_t size) {
  const int64_t run_bytes = elements / runs * size, gap = runs > 1 ? 3 * size : 0;
  memory.assign(runs * (run_bytes + gap), 0);
  if (run_bytes == 0) return Region();
  return {memory.data(), runs, run_bytes, run_bytes + gap};
}

inline BoundCall MakeReduceScatter(int me, const std::vector<int64_t>& elements, int64_t send_runs,
                                   int64_t receive_runs, kernels::DType in, kernels::DType out) {
  BoundCall bound;
  const int n = static_cast<int>(elements.size());
  bound.memory.resize(n + 1);
  bound.call.kind = CollectiveCall::Kind::kReduceScatter;
  bound.call.me = me;
  bound.call.send_dtype = in;
  bound.call.receive_dtype = out;
  std::mt19937 random(me + 1);
  for (int i = 0; i < n; ++i) {
    bound.call.members.push_back(i);
    bound.call.send.push_back(Cut(bound.memory[i], elements[i], send_runs, kernels::SizeOf(in)));
    Fill(in, random, bound.memory[i]);
  }
  bound.call.receive = {Cut(bound.memory[n], elements[me], receive_runs, kernels::SizeOf(out))};
  return bound;
}

inline BoundCall MakeExchange(int me, const std::vector<std::vector<int64_t>>& elements, int64_t send_runs,
                              int64_t receive_runs) {
  BoundCall bound;
  const int n = static_cast<int>(elements.size());
  bound.memory.resize(2 * n);
  bound.call.kind = CollectiveCall::Kind::kExchange;
  bound.call.me = me;
  std::mt19937 random(me + 1);
  for (int i = 0; i < n; ++i) {
    bound.call.members.push_back(i);
    bound.call.send.push_back(Cut(bound.memory[i], elements[me][i], send_runs, 4));
    Fill(kernels::DType::kF32, random, bound.memory[i]);
    bound.call.receive.push_back(Cut(bound.memory[n + i], elements[i][me], receive_runs, 4));
  }
  return bound;
}

inline BoundCall MakeAllReduce(int me, int n, int64_t elements, kernels::DType in, kernels::DType out) {
  BoundCall bound;
  bound.memory.resize(2);
  bound.call.kind = CollectiveCall::Kind::kAllReduce;
  bound.call.me = me;
  bound.call.send_dtype = in;
  bound.call.receive_dtype = out;
  for (int i = 0; i < n; ++i) bound.call.members.push_back(i);
  std::mt19937 random(me + 1);
  bound.call.send = {Cut(bound.memory[0], elements, 1, kernels::SizeOf(in))};
  Fill(in, random, bound.memory[0]);
  bound.call.receive = {Cut(bound.memory[1], elements, 1, kernels::SizeOf(out))};
  return bound;
}

// Of a device that only communicates.
class NoKernels : public KernelTable {
  absl::StatusOr<Kernel> Prepare(const KernelRequest&) const override { return absl::UnimplementedError("a kernel"); }
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_TESTING_DEVICE_RANKS_H_
