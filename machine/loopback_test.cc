#include "machine/loopback.h"

#include <gtest/gtest.h>

namespace tacc {
namespace {

TEST(LoopbackTest, NumbersAndOneName) {
  for (const char* host : {"localhost", "127.0.0.1", "127.9.9.9", "::1"}) EXPECT_TRUE(IsLoopback(host)) << host;
  for (const char* host : {"10.0.0.1", "0.0.0.0", "::", "fe80::1", "localhost.example", "127.0.0.1.example", ""})
    EXPECT_FALSE(IsLoopback(host)) << host;
}

}  // namespace
}  // namespace tacc
