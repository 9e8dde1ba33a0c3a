#include "client/taccctl/session/interrupt.h"

#include <gtest/gtest.h>

namespace tacc::client {
namespace {

TEST(Interrupt, SignalsOfOneKeyPressAreOneWish) {
  Interrupt interrupt;
  interrupt.Signal(0);  // Whenever the clock began.
  EXPECT_EQ(interrupt.count(), 1);
  for (const double now : {0.001, 0.5, 0.999}) interrupt.Signal(now);
  EXPECT_EQ(interrupt.count(), 1);
  interrupt.Signal(1.5);
  EXPECT_EQ(interrupt.count(), 2);
  interrupt.Signal(2.4);
  EXPECT_EQ(interrupt.count(), 2);
  interrupt.Signal(2.6);
  EXPECT_EQ(interrupt.count(), 3);
}

TEST(Interrupt, HooksNest) {
  Interrupt interrupt;
  int outer = 0, inner = 0;
  const Interrupt::Hook stream(&interrupt, 0, [&] { ++outer; });
  {
    const Interrupt::Hook call(&interrupt, 0, [&] { ++inner; });
    interrupt.Raise();
    EXPECT_EQ(outer, 1);
    EXPECT_EQ(inner, 1);
  }
  interrupt.Raise();
  EXPECT_EQ(outer, 2);
  EXPECT_EQ(inner, 1);
  const Interrupt::Hook late(&interrupt, 1, [&] { ++inner; });
  EXPECT_EQ(inner, 2);
}

}  // namespace
}  // namespace tacc::client
