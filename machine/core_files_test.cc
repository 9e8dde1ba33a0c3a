#include "machine/core_files.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace tacc {
namespace {

// In a process of its own: it cannot be undone.
int LimitsAfter(rlim_t soft, rlim_t hard) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit before{soft, hard};
    if (setrlimit(RLIMIT_CORE, &before) != 0) _exit(100);
    LeaveNoCoreFiles();
    rlimit after{};
    getrlimit(RLIMIT_CORE, &after);
    _exit(static_cast<int>(10 * after.rlim_cur + after.rlim_max));
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

TEST(CoreFiles, AreTooSmallForAFileAndForAProgram) {
  EXPECT_EQ(LimitsAfter(4096, 8192), 11);
  EXPECT_EQ(LimitsAfter(0, 8192), 11);
  EXPECT_EQ(LimitsAfter(0, 0), 0);  // Nothing larger than what is allowed.
}

}  // namespace
}  // namespace tacc
