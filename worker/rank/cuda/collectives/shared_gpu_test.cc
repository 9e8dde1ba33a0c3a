#include "worker/rank/cuda/collectives/shared_gpu.h"

#include <thread>

#include "gtest/gtest.h"
#include "worker/rank/testing/in_process_transport.h"

namespace tacc::worker {
namespace {

// What every rank is told where rank r runs on gpus[r].
std::vector<std::string> Find(const std::vector<GpuId>& gpus) {
  const int world = static_cast<int>(gpus.size());
  auto transports = MakeInProcessTransports(world, absl::Seconds(20));
  std::vector<std::string> found(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives host(rank, world);
      host.Connect(transports[rank].get());
      found[rank] = *FindSharedGpu(host, gpus[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return found;
}

TEST(FindSharedGpu, NamesTwoRanksToAll) {
  const std::string none;
  EXPECT_EQ(Find({{1, 2}, {1, 3}, {2, 2}}), (std::vector<std::string>{none, none, none}));
  const std::string two = "ranks 1 and 3 run on one GPU";
  EXPECT_EQ(Find({{1, 2}, {1, 3}, {2, 2}, {1, 3}}), (std::vector<std::string>{two, two, two, two}));
}

}  // namespace
}  // namespace tacc::worker
