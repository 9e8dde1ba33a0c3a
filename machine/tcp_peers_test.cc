#include "machine/tcp_peers.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tacc {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A port of this process, to which a process of `user` connects and stays until it is killed.
class TcpPeersTest : public testing::Test {
 protected:
  TcpPeersTest() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    socklen_t size = sizeof(address_);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address_), &size), 0);
  }
  ~TcpPeersTest() override {
    close(listener_);
    if (accepted_ >= 0) close(accepted_);
    End();
  }
  // `ends_writing`: only its own direction.
  void ConnectAs(uid_t user, bool ends_writing = false) {
    client_ = fork();
    if (client_ == 0) {
      close(listener_);
      if (user != geteuid() && setresuid(user, user, user) != 0) _exit(1);
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      if (connect(fd, reinterpret_cast<sockaddr*>(&address_), sizeof(address_)) != 0) _exit(2);
      if (ends_writing) shutdown(fd, SHUT_WR);
      pause();
    }
    accepted_ = accept(listener_, nullptr, nullptr);
    ASSERT_GE(accepted_, 0);
    char byte;
    if (ends_writing) {
      EXPECT_EQ(read(accepted_, &byte, 1), 0);
    }
  }
  void End() {
    if (client_ <= 0) return;
    kill(client_, SIGKILL);
    waitpid(client_, nullptr, 0);
    client_ = -1;
  }

  int listener_ = -1, accepted_ = -1;
  sockaddr_in address_{};
  pid_t client_ = -1;
};

TEST_F(TcpPeersTest, AreNoneWhereItOnlyListens) { EXPECT_THAT(*TcpPeerUsers(), IsEmpty()); }

TEST_F(TcpPeersTest, IsThisUserWhereItsOtherProcessHasConnected) {
  ConnectAs(geteuid());
  EXPECT_THAT(*TcpPeerUsers(), ElementsAre(geteuid()));
  End();
  EXPECT_THAT(*TcpPeerUsers(), IsEmpty()) << "nobody has the other end any more";
}

TEST_F(TcpPeersTest, IsAnotherUserWhoHasConnected) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  ConnectAs(4242);
  EXPECT_THAT(*TcpPeerUsers(), ElementsAre(4242));
}

TEST_F(TcpPeersTest, IsAnotherUserWhoOnlyReads) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  ConnectAs(4242, /*ends_writing=*/true);
  EXPECT_THAT(*TcpPeerUsers(), ElementsAre(4242));
}

}  // namespace
}  // namespace tacc
