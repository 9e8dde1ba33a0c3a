#include "machine/secret.h"

#include <gtest/gtest.h>

namespace tacc {
namespace {

TEST(SecretTest, EachIsAnother) {
  const auto one = NewSecret(), other = NewSecret();
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(one->size(), 32u);
  EXPECT_EQ(one->find_first_not_of("0123456789abcdef"), std::string::npos) << *one;
  EXPECT_NE(*one, *other);
}

}  // namespace
}  // namespace tacc
