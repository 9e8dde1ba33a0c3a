#include "worker/rank/session/outbox.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace tacc::worker {
namespace {

std::shared_ptr<const Outbox::Message> Sized(size_t size) {
  return std::make_shared<const Outbox::Message>(Outbox::Message{"head", std::string(size, 'x')});
}

class OutboxTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair_), 0); }
  ~OutboxTest() override {
    close(pair_[0]);
    close(pair_[1]);
  }
  // What the other end reads now, at most so much.
  std::string Read(size_t most) const {
    std::string text(most, '\0');
    const ssize_t count = recv(pair_[1], text.data(), most, MSG_DONTWAIT);
    return text.substr(0, count > 0 ? count : 0);
  }
  int pair_[2] = {-1, -1};
  Outbox outbox_;
  const absl::Time begin_ = absl::UnixEpoch();
};

TEST_F(OutboxTest, SendsAllInItsOrderAndDoesNotWait) {
  const size_t size = 3 << 20;  // More than a socket takes at once.
  outbox_.Push(Sized(size), begin_);
  outbox_.Push(std::make_shared<const Outbox::Message>(Outbox::Message{"next", ""}), begin_);
  EXPECT_TRUE(outbox_.Send(pair_[0], begin_));
  EXPECT_EQ(outbox_.size(), 2) << "nobody reads it";
  std::string got;
  for (std::string part = Read(1 << 16); !part.empty(); part = Read(1 << 16)) {
    got += part;
    EXPECT_TRUE(outbox_.Send(pair_[0], begin_));
  }
  EXPECT_EQ(outbox_.size(), 0);
  EXPECT_TRUE(got == "head" + std::string(size, 'x') + "next") << got.size();
}

TEST_F(OutboxTest, WhoTakesNothingIsLate) {
  EXPECT_FALSE(outbox_.IsLate(begin_ + absl::Hours(1))) << "there is nothing to take";
  outbox_.Push(Sized(64 << 20), begin_);
  EXPECT_TRUE(outbox_.Send(pair_[0], begin_));
  EXPECT_FALSE(outbox_.IsLate(begin_ + absl::Seconds(29)));
  EXPECT_TRUE(outbox_.IsLate(begin_ + absl::Seconds(31)));
}

TEST_F(OutboxTest, WhoTakesALittleNowAndThenIsLateToo) {
  const size_t size = 4 << 20;
  outbox_.Push(Sized(size), begin_);
  // 4 MiB have 30 s and 64 s more.
  absl::Time now = begin_;
  while (now < begin_ + absl::Seconds(90)) {
    EXPECT_TRUE(outbox_.Send(pair_[0], now));
    now += absl::Seconds(10);
    Read(16 << 10);
    EXPECT_TRUE(outbox_.Send(pair_[0], now));
    EXPECT_EQ(outbox_.IsLate(now), now > begin_ + absl::Seconds(95)) << now - begin_;
  }
  EXPECT_TRUE(outbox_.IsLate(begin_ + absl::Seconds(95)));
}

TEST_F(OutboxTest, ABrokenConnectionIsToldOf) {
  shutdown(pair_[0], SHUT_RDWR);
  outbox_.Push(Sized(1), begin_);
  EXPECT_FALSE(outbox_.Send(pair_[0], begin_));
}

}  // namespace
}  // namespace tacc::worker
