#include "worker/rank/cuda/collectives/nccl_messages.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "graph/ir/status_macros.h"
#include "gtest/gtest.h"
#include "worker/rank/device/host_device.h"
#include "worker/rank/device/region.h"
#include "worker/rank/testing/in_process_transport.h"

namespace tacc::worker {
namespace {

TEST(NcclMessages, AGpuIsKnownByItsIdOrItIsSaidWhyNot) {
  const auto id = GpuIdOf(0);
  if (id.ok()) {
    EXPECT_NE(*id, GpuId());
    EXPECT_EQ(*GpuIdOf(0), *id);
  } else {
    EXPECT_NE(id.status().message().find("cuda:0"), absl::string_view::npos) << id.status();
  }
}

// No GPU is touched before a stream is asked for.
TEST(NcclMessages, AStrangersMessageIsRefused) {
  Collectives host(0, 1);
  NcclOptions options;
  options.host = &host;
  options.timeout = absl::Seconds(1);
  const auto communication = CreateNcclCommunication(options);
  ASSERT_TRUE(communication.ok()) << communication.status();
  EXPECT_EQ((*communication)->rank(), 0);
  EXPECT_EQ((*communication)->Check(), absl::OkStatus());
  EXPECT_EQ((*communication)->MessageStream(3, 1, 2).status().message(), "rank 0 has no message from 1 to 2");
}

// Which of NCCL's bugs it keeps out depends on where the ranks are; the environment's word goes before.
TEST(NcclMessages, ReplayedBuffersAreNotRegisteredBetweenMachines) {
  const auto setting = [](int ranks_a_machine, const char* own) -> std::string {
    unsetenv("NCCL_GRAPH_REGISTER");
    if (own != nullptr) setenv("NCCL_GRAPH_REGISTER", own, /*overwrite=*/1);
    auto transports = MakeInProcessTransports(2, absl::Seconds(1), ranks_a_machine);
    Collectives host(0, 2);
    host.Connect(transports[0].get());
    NcclOptions options;
    options.host = &host;
    options.timeout = absl::Seconds(1);
    EXPECT_TRUE(CreateNcclCommunication(options).ok());
    const char* const found = getenv("NCCL_GRAPH_REGISTER");
    return found == nullptr ? "" : found;
  };
  EXPECT_EQ(setting(2, nullptr), "");
  EXPECT_EQ(setting(1, nullptr), "0");
  EXPECT_EQ(setting(1, "1"), "1");
  unsetenv("NCCL_GRAPH_REGISTER");
}

class NoKernels : public KernelTable {
  absl::StatusOr<Kernel> Prepare(const KernelRequest&) const override { return absl::UnimplementedError("no kernels"); }
};

// One rank has nobody to send to. All else that a collective queues is here, once by itself and then recorded: a stream
// that leaves compute and joins it again, copies, sums, and the words that the watch reads.
TEST(NcclMessages, WhatACollectiveQueuesIsReplayed) {
  int num_gpus = 0;
  if (cudaGetDeviceCount(&num_gpus) != cudaSuccess || num_gpus == 0) GTEST_SKIP() << "no GPU";
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  NcclOptions options;
  ASSERT_EQ(cudaStreamCreateWithFlags(&options.compute, cudaStreamNonBlocking), cudaSuccess);
  const NoKernels kernels;
  HostDevice device(&kernels);  // Gives what a channel is greeted with, and there is none.
  Collectives host(0, 1);
  options.device = &device;
  options.host = &host;
  options.timeout = absl::Seconds(20);
  const auto communication = CreateNcclCommunication(options);
  ASSERT_TRUE(communication.ok()) << communication.status();
  const absl::StatusOr<CommunicationStream*> stream = (*communication)->CollectiveStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  const auto joined = (*stream)->CreateMark();
  ASSERT_TRUE(joined.ok()) << joined.status();
  ASSERT_EQ((*communication)->Connect(), absl::OkStatus());

  constexpr int64_t kElements = 1003, kBytes = kElements * 4;
  const std::vector<float> ones(kElements, 1.0f);
  std::vector<char*> memory(3);  // a summand, the sum, a copy of it
  for (char*& data : memory) {
    void* allocated = nullptr;
    ASSERT_EQ(cudaMalloc(&allocated, kBytes), cudaSuccess);
    ASSERT_EQ(cudaMemcpy(allocated, ones.data(), kBytes, cudaMemcpyHostToDevice), cudaSuccess);
    data = static_cast<char*>(allocated);
  }
  CollectiveCall call;
  call.members = {0};
  const auto queue = [&]() -> absl::Status {
    TACC_RETURN_IF_ERROR((*communication)->EnterCall(0));
    TACC_RETURN_IF_ERROR((*stream)->FollowCompute());
    TACC_RETURN_IF_ERROR((*stream)->BeginCall(&call));
    TACC_RETURN_IF_ERROR((*stream)->Sum(
        {.others = memory[0], .own = memory[1], .me = 1, .n = 2, .elements = kElements, .sum = memory[1]}));
    TACC_RETURN_IF_ERROR((*stream)->Copy(Flat(memory[1], kBytes), Flat(memory[2], kBytes)));
    TACC_RETURN_IF_ERROR((*stream)->EndCall());
    TACC_RETURN_IF_ERROR((*joined)->Set());
    return (*joined)->LetComputeFollow();
  };
  ASSERT_EQ(queue(), absl::OkStatus());
  ASSERT_EQ(cudaStreamSynchronize(options.compute), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(options.compute, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  const absl::Status queued = queue();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(options.compute, &graph);
  ASSERT_EQ(queued, absl::OkStatus());
  ASSERT_EQ(ended, cudaSuccess) << cudaGetErrorString(ended);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagUseNodePriority), cudaSuccess);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(cudaGraphLaunch(executable, options.compute), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(options.compute), cudaSuccess);
  std::vector<float> copy(kElements);
  ASSERT_EQ(cudaMemcpy(copy.data(), memory[2], kBytes, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(copy, std::vector<float>(kElements, 5.0f));
  EXPECT_EQ((*communication)->Check(), absl::OkStatus());
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
}  // namespace tacc::worker
