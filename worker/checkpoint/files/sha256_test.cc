#include "worker/checkpoint/files/sha256.h"

#include <gtest/gtest.h>

#include <string>

namespace tacc::worker {
namespace {

std::string Digest(const std::string& text) {
  Sha256 sha256;
  for (char c : text) sha256.Update(&c, 1);
  return sha256.HexDigest();
}

// Source: FIPS 180-2, appendix B.
TEST(Sha256Test, KnownDigests) {
  EXPECT_EQ(Digest(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Digest("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

}  // namespace
}  // namespace tacc::worker
