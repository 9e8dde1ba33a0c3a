#include "worker/rank/session/client_socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <vector>

#include "gtest/gtest.h"

namespace tacc::worker {
namespace {

int NumOpen() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<int>(std::distance(begin(open), end(open)));
}

class DescriptorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair_), 0);
    num_open_ = NumOpen();
  }
  ~DescriptorTest() override {
    close(pair_[0]);
    close(pair_[1]);
  }
  // A byte with so many descriptors.
  void Send(int count) const {
    std::vector<int> given(count, pair_[0]);
    char byte = 'x';
    iovec part = {&byte, 1};
    alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(rights), given.data(), count * sizeof(int));
    ASSERT_EQ(sendmsg(pair_[0], &message, 0), 1);
  }
  ssize_t Take(GivenDescriptor* given) {
    char byte = 0;
    return Receive(pair_[1], absl::MakeSpan(&byte, 1), given);
  }
  int pair_[2] = {-1, -1};
  int num_open_ = 0;
};

TEST_F(DescriptorTest, OneIsKept) {
  GivenDescriptor given;
  Send(1);
  EXPECT_EQ(Take(&given), 1);
  EXPECT_GE(given.fd, 0);
  EXPECT_FALSE(given.is_unclear);
  EXPECT_EQ(fcntl(given.fd, F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(NumOpen(), num_open_ + 1);
  given.Close();
  EXPECT_EQ(NumOpen(), num_open_);
}

TEST_F(DescriptorTest, OfSeveralTheOthersAreClosed) {
  for (const int count : {2, 3, 4, 5, 16}) {
    GivenDescriptor given;
    Send(count);
    EXPECT_EQ(Take(&given), 1);
    EXPECT_TRUE(given.is_unclear);
    EXPECT_LE(NumOpen(), num_open_ + 1) << count;
  }
  GivenDescriptor given;
  for (int i = 0; i < 2; ++i) {  // One with each message.
    Send(1);
    EXPECT_EQ(Take(&given), 1);
  }
  EXPECT_TRUE(given.is_unclear);
  EXPECT_EQ(NumOpen(), num_open_ + 1);
}

TEST_F(DescriptorTest, WhereNoneIsWantedAllAreClosed) {
  for (const int count : {1, 3, 16}) {
    Send(count);
    EXPECT_EQ(Take(nullptr), 1);
    EXPECT_EQ(NumOpen(), num_open_);
  }
}

TEST_F(DescriptorTest, OneThatHasNoRoomIsNoticed) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest_free = dup(pair_[0]);
  close(lowest_free);
  rlimit none = before;
  none.rlim_cur = lowest_free;
  Send(1);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  GivenDescriptor given;
  const ssize_t count = Take(&given);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(count, 1);
  EXPECT_TRUE(given.is_unclear);
  EXPECT_EQ(given.fd, -1);
}

TEST(KeepAliveTest, AMachineThatHasGoneIsNoticedInAMinute) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  KeepAlive(fd);
  const auto option = [&](int level, int name) {
    int value = 0;
    socklen_t size = sizeof(value);
    EXPECT_EQ(getsockopt(fd, level, name, &value, &size), 0);
    return value;
  };
  EXPECT_EQ(option(SOL_SOCKET, SO_KEEPALIVE), 1);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_KEEPIDLE) + option(IPPROTO_TCP, TCP_KEEPINTVL) * option(IPPROTO_TCP, TCP_KEEPCNT),
            60);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 60'000);
  close(fd);
}

}  // namespace
}  // namespace tacc::worker
