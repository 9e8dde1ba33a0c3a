#include "worker/daemon/network_address.h"

#include <gtest/gtest.h>

namespace tacc::worker {
namespace {

TEST(NetworkAddressTest, ParsesHostAndPort) {
  EXPECT_EQ(ParseHostPort("127.0.0.1:7070")->host, "127.0.0.1");
  EXPECT_EQ(ParseHostPort("node-1.example:0")->port, 0);
  EXPECT_EQ(ParseHostPort("[::1]:7070")->host, "::1");
  for (const char* bad : {"", "host", ":7070", "host:", "host:x", "host:-1", "host:65536", "host:+1", "::1:7070",
                          "[]:1", "host:99999999999"}) {
    EXPECT_FALSE(ParseHostPort(bad).ok()) << bad;
  }
}

TEST(NetworkAddressTest, Loopback) {
  for (const char* host : {"localhost", "127.0.0.1", "127.9.9.9", "::1"}) EXPECT_TRUE(IsLoopback(host)) << host;
  for (const char* host : {"10.0.0.1", "0.0.0.0", "::", "fe80::1", "localhost.example", "127.0.0.1.example", ""}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

TEST(NetworkAddressTest, LocalAddressTowardsLoopbackIsLoopback) {
  const auto address = LocalAddressTowards({"127.0.0.1", 7070});
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(*address, "127.0.0.1");
  EXPECT_FALSE(LocalAddressTowards({"name.invalid", 1}).ok());
}

}  // namespace
}  // namespace tacc::worker
