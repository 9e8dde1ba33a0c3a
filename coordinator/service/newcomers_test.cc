#include "coordinator/service/newcomers.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tacc::coordinator {
namespace {

using ::testing::ElementsAre;

// Two ends of a TCP connection.
struct Pair {
  int client = -1;
  int server = -1;
};

class NewcomersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    ASSERT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(listen(listener_, 100), 0);
    ASSERT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = address;
  }
  void TearDown() override {
    newcomers_.reset();
    for (const int fd : clients_) close(fd);
    for (const int fd : taken_) close(fd);
    close(listener_);
  }
  void Start(Newcomers::Limits limits) {
    newcomers_ = std::make_unique<Newcomers>(limits, [this](int, int fd) {
      std::lock_guard<std::mutex> lock(mutex_);
      taken_.push_back(fd);
    });
  }
  // The client's end of a connection that has arrived.
  int Arrive() {
    const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address_), sizeof(address_)), 0);
    clients_.push_back(client);
    newcomers_->Arrive(listener_, accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    return client;
  }
  static void Say(int client, size_t num_bytes) {
    const std::string text(num_bytes, 'x');
    EXPECT_EQ(send(client, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(num_bytes));
  }
  size_t NumTaken() {
    std::lock_guard<std::mutex> lock(mutex_);
    return taken_.size();
  }
  static bool WaitFor(const std::function<bool()>& done) {
    for (int i = 0; i < 2000 && !done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return done();
  }
  static bool IsClosed(int client) {
    char byte = 0;
    const ssize_t size = recv(client, &byte, 1, MSG_DONTWAIT);
    return size == 0 || (size < 0 && errno != EAGAIN);
  }
  static std::string Name(int client) {
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    getsockname(client, reinterpret_cast<sockaddr*>(&address), &size);
    return absl::StrCat("ipv4:127.0.0.1:", ntohs(address.sin_port));
  }

  int listener_ = -1;
  sockaddr_in address_{};
  std::mutex mutex_;
  std::vector<int> taken_;
  std::vector<int> clients_;
  std::unique_ptr<Newcomers> newcomers_;
};

TEST_F(NewcomersTest, AConnectionIsTakenWhenItSpeaks) {
  Start({});
  const int first = Arrive(), second = Arrive();
  Say(second, 1);
  EXPECT_TRUE(WaitFor([&] { return NumTaken() == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(NumTaken(), 1u);
  Say(first, 1);
  EXPECT_TRUE(WaitFor([&] { return NumTaken() == 2; }));
}

TEST_F(NewcomersTest, OneThatLeavesWithoutAWordIsNot) {
  Start({});
  close(Arrive());
  clients_.pop_back();
  Say(Arrive(), 1);
  EXPECT_TRUE(WaitFor([&] { return NumTaken() == 1; }));
  EXPECT_FALSE(newcomers_->MakeRoom());
}

TEST_F(NewcomersTest, WhoIsNotKnownInTimeIsClosed) {
  Newcomers::Limits limits;
  limits.seconds = 0.2;
  Start(limits);
  const int silent = Arrive(), speaking = Arrive(), known = Arrive();
  Say(speaking, 1);
  Say(known, 1);
  EXPECT_TRUE(WaitFor([&] { return NumTaken() == 2; }));
  const int taken = newcomers_->Greet(Name(known));
  EXPECT_EQ(absl::StrCat("ipv4:", AddressOfOtherEnd(taken)), Name(known));
  EXPECT_EQ(newcomers_->Greet(Name(known)), -1) << "it is known";
  EXPECT_TRUE(WaitFor([&] { return IsClosed(silent) && IsClosed(speaking); }));
  EXPECT_FALSE(IsClosed(known));
}

TEST_F(NewcomersTest, OnlyWhoIsKnownMaySendMuch) {
  Newcomers::Limits limits;
  limits.bytes = 1000;
  limits.large_bytes = 3000;
  Start(limits);
  const int large = Arrive(), stranger = Arrive(), known = Arrive(), modest = Arrive();
  for (const int client : {large, stranger, known, modest}) Say(client, 1);
  EXPECT_TRUE(WaitFor([&] { return NumTaken() == 4; }));
  newcomers_->Greet(Name(known));
  Say(known, 5000);
  Say(modest, 999);
  Say(large, 2999);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  Say(stranger, 1000);
  EXPECT_TRUE(WaitFor([&] { return IsClosed(stranger); }));
  EXPECT_FALSE(IsClosed(known));
  EXPECT_FALSE(IsClosed(modest));
  EXPECT_FALSE(IsClosed(large)) << "one may be";
  Say(large, 1);
  EXPECT_TRUE(WaitFor([&] { return IsClosed(large); }));
}

// gRPC has not seen yet that the other end of the first is closed.
TEST_F(NewcomersTest, OneThatHasEndedIsNotTheOneThatMaySendMuch) {
  Newcomers::Limits limits;
  limits.bytes = 1000;
  limits.large_bytes = 5000;
  Start(limits);
  Say(Arrive(), 3000);
  ASSERT_TRUE(WaitFor([&] { return NumTaken() == 1; }));
  close(clients_.back());
  clients_.pop_back();
  const int next = Arrive();
  Say(next, 3000);
  ASSERT_TRUE(WaitFor([&] { return NumTaken() == 2; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_FALSE(IsClosed(next));
  EXPECT_GE(BytesReceived(taken_.at(0)), 3000) << "it is not closed here";
}

// It has been received, and gRPC would work through it.
TEST_F(NewcomersTest, WhatOneThatIsClosedHasSentIsThrownAway) {
  Newcomers::Limits limits;
  limits.bytes = limits.large_bytes = 1000;
  Start(limits);
  const int client = Arrive();
  Say(client, 50000);
  ASSERT_TRUE(WaitFor([&] { return IsClosed(client); }));
  char byte = 0;
  EXPECT_LE(recv(taken_.at(0), &byte, 1, MSG_DONTWAIT), 0);
}

TEST_F(NewcomersTest, OfTooManyThatSpeakTheOldestIsClosed) {
  Newcomers::Limits limits;
  limits.max_speaking = 2;
  Start(limits);
  std::vector<int> clients;
  for (size_t i = 0; i < 4; ++i) {
    clients.push_back(Arrive());
    Say(clients.back(), 1);
    EXPECT_TRUE(WaitFor([&] { return NumTaken() == i + 1; }));
    if (i == 0) newcomers_->Greet(Name(clients[0]));
  }
  EXPECT_TRUE(WaitFor([&] { return IsClosed(clients[1]); }));
  std::vector<bool> closed;
  for (const int client : clients) closed.push_back(IsClosed(client));
  EXPECT_THAT(closed, ElementsAre(false, true, false, false));
}

TEST_F(NewcomersTest, MakesRoomByTheOneThatIsSilentForLongest) {
  Start({});
  EXPECT_FALSE(newcomers_->MakeRoom());
  const int first = Arrive(), second = Arrive();
  EXPECT_TRUE(newcomers_->MakeRoom());
  EXPECT_TRUE(WaitFor([&] { return IsClosed(first); }));
  EXPECT_FALSE(IsClosed(second));
}

TEST(AddressOfPeerTest, ReadsTheNamesOfGRPC) {
  EXPECT_EQ(AddressOfPeer("ipv4:10.0.0.1:4711"), "10.0.0.1:4711");
  EXPECT_EQ(AddressOfPeer("ipv6:%5B::1%5D:4711"), "[::1]:4711");
  EXPECT_EQ(AddressOfPeer("ipv6:%5Bfe80::1%252%5D:4711"), "[fe80::1]:4711");
  EXPECT_EQ(AddressOfPeer("%"), "");
}

TEST_F(NewcomersTest, GreetsWhoeverGRPCNames) {
  Start({});
  newcomers_->Greet("ipv4:127.0.0.1:1");
  newcomers_->Greet("unix:");
  newcomers_->Greet("");
  Say(Arrive(), 1);
  EXPECT_TRUE(WaitFor([&] { return NumTaken() == 1; }));
}

}  // namespace
}  // namespace tacc::coordinator
