#include "coordinator/service/listener.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace tacc::coordinator {
namespace {

// A socket of its own port on 127.0.0.1 or ::1, or -1 where the machine has no such address.
int BindLoopback(int family) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_loopback;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool bound = family == AF_INET6 ? bind(fd, reinterpret_cast<sockaddr*>(&v6), sizeof(v6)) == 0
                                        : bind(fd, reinterpret_cast<sockaddr*>(&v4), sizeof(v4)) == 0;
  if (bound) return fd;
  close(fd);
  return -1;
}

bool Exists(int family) {
  const int fd = BindLoopback(family);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

// Whether the loopback address of `family` takes a connection at the port of `address`.
bool Takes(int family, const std::string& address) {
  const int fd = BindLoopback(family);
  if (fd < 0) return false;
  const uint16_t port = htons(std::stoi(address.substr(address.rfind(':') + 1)));
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_loopback;
  v6.sin6_port = port;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  v4.sin_port = port;
  const bool connected = family == AF_INET6 ? connect(fd, reinterpret_cast<sockaddr*>(&v6), sizeof(v6)) == 0
                                            : connect(fd, reinterpret_cast<sockaddr*>(&v4), sizeof(v4)) == 0;
  close(fd);
  return connected;
}

TEST(ListenerTest, AllAddressesOfIPv4AreNotThoseOfIPv6) {
  const auto listener = Listener::Listen("0.0.0.0:0");
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(Takes(AF_INET, (*listener)->address()));
  EXPECT_FALSE(Takes(AF_INET6, (*listener)->address()));
}

// Whatever net.ipv6.bindv6only says: in a network namespace of its own, `unshare -n`, it can be set to 1.
TEST(ListenerTest, AllAddressesOfIPv6AreThoseOfIPv4AsWell) {
  const auto listener = Listener::Listen("[::]:0");
  if (listener.ok()) {
    EXPECT_TRUE(Takes(AF_INET, (*listener)->address()));
    EXPECT_EQ(Takes(AF_INET6, (*listener)->address()), Exists(AF_INET6));
  } else {
    // Only a machine without IPv6 refuses, and says where.
    EXPECT_FALSE(Exists(AF_INET6));
    EXPECT_NE(listener.status().message().find("cannot listen on [::]:0: "), std::string::npos) << listener.status();
  }
}

TEST(ListenerTest, APortIsTakenOnce) {
  const auto first = Listener::Listen("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = Listener::Listen((*first)->address());
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().message().find("in use by another coordinator"), std::string::npos) << second.status();
}

}  // namespace
}  // namespace tacc::coordinator
