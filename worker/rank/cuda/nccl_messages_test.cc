#include "worker/rank/cuda/nccl_messages.h"

#include "gtest/gtest.h"

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

}  // namespace
}  // namespace tacc::worker
