#include "jobfile/job_docs.h"

#include <fstream>
#include <sstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tacc::jobfile {
namespace {

// CTest runs it in the root of the repository.
std::string Stored(const std::string& path) {
  std::stringstream stored;
  stored << std::ifstream(path).rdbuf();
  return stored.str();
}

TEST(JobDocsTest, ThePagesAreFresh) {
  for (const auto& [path, page] :
       {std::pair("docs/job.md", JobDocs("proto/")), std::pair("docs/json.md", JsonDocs("proto/"))}) {
    ASSERT_TRUE(page.ok()) << page.status();
    EXPECT_EQ(Stored(path), *page) << path << " is stale; run `ninja -C build docs`";
  }
}

TEST(JobDocsTest, TheOutputsFieldsAreThere) {
  const absl::StatusOr<std::string> page = JsonDocs("proto/");
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(*page, testing::HasSubstr("| `eta_seconds` | number, optional | Unset until steps were measured"));
  EXPECT_THAT(*page, testing::HasSubstr("| `restarts` | list of [Restart](#restart) |"));
  EXPECT_THAT(*page, testing::HasSubstr("\n## Restart\n"));
}

TEST(JobDocsTest, SaysWhatAFieldIs) {
  const absl::StatusOr<std::string> page = JobDocs("proto/");
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_THAT(*page,
              testing::HasSubstr(
                  "| `adam_epsilon` | number, at least 1e-37, at most 1e+37 | `1e-08` | Added to the root of the "
                  "second moment of `adamw` and `adam`. |\n"));
  EXPECT_THAT(*page, testing::HasSubstr("- `cosine`: Half a cosine"));
}

}  // namespace
}  // namespace tacc::jobfile
