#include "client/jobfile/job_docs.h"

#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tacc::client {
namespace {

// CTest runs it in the root of the repository.
TEST(JobDocsTest, ThePageIsFresh) {
  const absl::StatusOr<std::string> page = JobDocs("proto");
  ASSERT_TRUE(page.ok()) << page.status();
  std::stringstream stored;
  stored << std::ifstream("docs/job.md").rdbuf();
  EXPECT_EQ(stored.str(), *page) << "docs/job.md is stale; run `ninja -C build docs`";
}

TEST(JobDocsTest, SaysWhatAFieldIs) {
  const absl::StatusOr<std::string> page = JobDocs("proto");
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(
      *page,
      testing::HasSubstr(
          "| `adam_beta2` | number, at least 0, less than 1 | `0.999` | Decay rate of AdamW's second moment. |\n"));
  EXPECT_THAT(*page, testing::HasSubstr("- `cosine`: Half a cosine"));
}

}  // namespace
}  // namespace tacc::client
