// Logs of a job that take many pages.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "coordinator/testing/tls_server.h"

namespace tacc::coordinator {
namespace {

class LogsTest : public TlsServerTest {
 protected:
  std::vector<std::string> Read(const v1::LogsRequest& request) {
    grpc::ClientContext context;
    const auto stub = Client("admin");
    const auto reader = stub->Logs(&context, request);
    std::vector<std::string> texts;
    for (v1::LogsResponse response; reader->Read(&response);) {
      for (const v1::LogLine& line : response.lines()) texts.push_back(line.text());
    }
    EXPECT_TRUE(reader->Finish().ok());
    return texts;
  }
};

TEST_F(LogsTest, TheLastLinesAndThoseOfARankAreFoundFarBehind) {
  v1::SubmitResponse submitted;
  v1::SubmitRequest request;
  *request.mutable_spec() = TestSpec("toy", dir_.path() + "/runs", 1);
  grpc::ClientContext context;
  ASSERT_TRUE(Client("admin")->Submit(&context, request, &submitted).ok());
  FakeDaemon daemon("worker");
  ASSERT_TRUE(daemon.ConnectBy(Connect("worker")).ok());
  const v1::RankId rank = daemon.WaitForRank(1);
  // Each page is about 256 KiB.
  const std::string filler(4000, 'x');
  daemon.Ready(rank, 0);
  for (int i = 0; i < 300; ++i) daemon.Log(rank, absl::StrCat(i, " ", filler));
  ASSERT_TRUE(WaitUntil([&] { return daemon.NumUnacknowledged() == 0; }));

  v1::LogsRequest logs;
  logs.set_job("toy");
  EXPECT_GT(Read(logs).size(), 300U);  // The job's events as well.
  logs.set_rank(0);
  EXPECT_EQ(Read(logs).size(), 300U);
  logs.set_tail(2);
  EXPECT_THAT(Read(logs), testing::ElementsAre("298 " + filler, "299 " + filler));
  logs.set_rank(7);
  EXPECT_TRUE(Read(logs).empty());
  logs.set_tail(0);
  EXPECT_TRUE(Read(logs).empty());
}

}  // namespace
}  // namespace tacc::coordinator
