#include "worker/daemon/answers/op_libraries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "absl/strings/str_cat.h"
#include "machine/testing/test_directory.h"

namespace tacc::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class OpLibrariesTest : public ::testing::Test {
 protected:
  OpLibraryRequest Request(const std::string& script) {
    OpLibraryRequest request;
    request.rank_path = directory_.Script("rank", script);
    request.files = {"/opt/a.so", "/opt/b.so"};
    return request;
  }
  std::string Error(const std::string& script) {
    const auto operators = TryOpLibraries(Request(script));
    EXPECT_EQ(operators.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(operators.status().message());
  }
  TestDirectory directory_;
};

TEST_F(OpLibrariesTest, AreTriedAsARankLoadsThem) {
  OpLibraryRequest request =
      Request(absl::StrCat("echo \"$@\" >", directory_.File("arguments"),
                           "\necho '[\"b::x\",\"torchvision::nms\",\"torchvision::roi_align\"]'\n"));
  request.confinement.paths = AllowedPaths({"/data"}, {"/uploads"});
  const auto operators = TryOpLibraries(request);
  ASSERT_TRUE(operators.ok()) << operators.status();
  EXPECT_THAT(*operators, ElementsAre("b::x", "torchvision::nms", "torchvision::roi_align"));
  EXPECT_EQ(TestDirectory::Read(directory_.File("arguments")),
            "--operators --allow-path /data --allow-read /uploads --op-library /opt/a.so --op-library /opt/b.so\n");
  EXPECT_EQ(InWords(*operators), "b (1 operator), torchvision (2 operators)");
}

TEST_F(OpLibrariesTest, OneMayPrintSomethingWhenItIsLoaded) {
  const auto operators = TryOpLibraries(Request("echo b 1.2\necho '[\"b::x\"]'\n"));
  ASSERT_TRUE(operators.ok()) << operators.status();
  EXPECT_THAT(*operators, ElementsAre("b::x"));
}

TEST_F(OpLibrariesTest, WhatIsWrongIsSaid) {
  EXPECT_EQ(Error("echo 'error: --op-library /opt/b.so: undefined symbol: x' >&2; exit 2\n"),
            "--op-library /opt/b.so: undefined symbol: x");
  EXPECT_EQ(Error("echo terminate >&2; echo \"what(): registered twice\" >&2; kill -ABRT $$\n"),
            absl::StrCat("--op-library /opt/a.so --op-library /opt/b.so: killed by signal ", SIGABRT,
                         " while it was loaded, and said: terminate what(): registered twice"));
  for (const char* nothing : {"echo '[]'\n", "echo nonsense\n"}) {
    EXPECT_THAT(Error(nothing), HasSubstr("it adds no operator; wanted a library that registers some with PyTorch"));
  }
  OpLibraryRequest slow = Request("sleep 60\n");
  slow.timeout_seconds = 1;
  EXPECT_THAT(TryOpLibraries(slow).status().message(), HasSubstr("loading takes longer than 1 s"));
}

}  // namespace
}  // namespace tacc::worker
