// The main of GoogleTest programs: as GoogleTest's own, but a program all of whose cases were skipped ends with the
// code that CTest takes for "Skipped" (SKIP_RETURN_CODE in cmake/TaccTargets.cmake).
#include "gmock/gmock.h"
#include "gtest/gtest.h"

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;
  testing::InitGoogleMock(&argc, argv);
  const int code = RUN_ALL_TESTS();
  const testing::UnitTest& tests = *testing::UnitTest::GetInstance();
  return code == 0 && tests.skipped_test_count() > 0 && tests.successful_test_count() == 0 ? kSkipped : code;
}
