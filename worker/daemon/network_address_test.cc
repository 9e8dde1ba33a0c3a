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

TEST(NetworkAddressTest, LocalAddressTowardsLoopbackIsLoopback) {
  const auto address = LocalAddressTowards({"127.0.0.1", 7070});
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(*address, "127.0.0.1");
  EXPECT_FALSE(LocalAddressTowards({"name.invalid", 1}).ok());
}

TEST(NetworkAddressTest, FindsTheInterfaceOfAnAddress) {
  EXPECT_EQ(InterfaceOf("127.0.0.1"), "lo");
  EXPECT_EQ(InterfaceOf("localhost"), "lo");
  for (const char* elsewhere : {"192.0.2.1", "2001:db8::1", "name.invalid", ""})
    EXPECT_EQ(InterfaceOf(elsewhere), "") << elsewhere;
}

}  // namespace
}  // namespace tacc::worker
