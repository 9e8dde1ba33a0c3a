#include "machine/token_bucket.h"

#include "gtest/gtest.h"

namespace tacc {
namespace {

int TakeAll(TokenBucket* bucket, double now) {
  int num_taken = 0;
  while (bucket->Take(now)) ++num_taken;
  return num_taken;
}

TEST(TokenBucketTest, SavesUpAndNoMoreThanItHolds) {
  TokenBucket bucket(2, 10);
  EXPECT_EQ(TakeAll(&bucket, 1000), 10);
  EXPECT_EQ(TakeAll(&bucket, 1000.25), 0);
  EXPECT_EQ(TakeAll(&bucket, 1000.5), 1) << "also what a quarter of a second has left";
  EXPECT_EQ(TakeAll(&bucket, 1003.5), 6);
  EXPECT_EQ(TakeAll(&bucket, 9999), 10);
}

TEST(TokenBucketTest, TakesTimesThatAreLateForNow) {
  TokenBucket bucket(1, 1);
  EXPECT_TRUE(bucket.Take(100));
  EXPECT_FALSE(bucket.Take(50));
  EXPECT_FALSE(bucket.Take(100.5)) << "what lies before 100 is not counted twice";
  EXPECT_TRUE(bucket.Take(101));
}

}  // namespace
}  // namespace tacc
