#include "worker/rank/timing/step_measurement.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "graph/ir/text.h"
#include "gtest/gtest.h"
#include "worker/rank/device/host_device.h"
#include "worker/rank/testing/in_process_transport.h"
#include "worker/rank/testing/naive_kernels.h"

namespace tacc::worker {
namespace {

constexpr char kProgram[] = R"(tacc.program 1 partitioned
mesh fsdp=2
stage 0 of 1
state "weights/w" : f32[2] of f32[4] shard=[fsdp] kind=weight init=ones stored=[4]
graph forward_backward {
  %w = read "weights/w" : f32[2] of f32[4] shard=[fsdp]
  %d = mul %w, %w : f32[2] of f32[4] shard=[fsdp]
}
step {
  call forward_backward micro_batch=0
}
)";

// What is timed is not recorded, and on GPUs all ranks record the same: where one is to write a profile, all time.
TEST(StepMeasurement, AllRanksTimeAllStepsWhereOneWasAskedForAProfile) {
  const auto program = graph::ParseProgram(kProgram, {});
  ASSERT_TRUE(program.ok()) << program.status();
  const NaiveKernels kernels;
  for (const std::string& path : {std::string(), testing::TempDir() + "/profile.json"}) {
    auto transports = MakeInProcessTransports(2, absl::Seconds(20));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        Collectives host(rank, 2);
        host.Connect(transports[rank].get());
        HostDevice device(&kernels);
        ExecutorOptions options;
        options.program = &*program;
        options.rank = rank;
        options.device = &device;
        options.aliases = [](const graph::Graph&, const graph::Node&) { return std::vector<int>(); };
        options.collectives = &host;
        const auto executor = Executor::Create(options);
        ASSERT_TRUE(executor.ok()) << executor.status();
        const graph::OpTable ops;
        EventWriter events(-1);
        StepMeasurement measurement(rank == 1 ? path : "", &*program, executor->get(), &host, StepTimer(&device, &host),
                                    RankTrace({}, &*program, &ops, &host, &events));
        ASSERT_EQ(measurement.Start(0, 1), absl::OkStatus());
        EXPECT_EQ(measurement.times_all_steps(), !path.empty()) << "rank " << rank;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace tacc::worker
