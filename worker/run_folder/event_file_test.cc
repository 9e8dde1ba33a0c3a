// The bytes against vectors from outside; a reader's view is in rank_test.py, by read_metrics.py.
#include "worker/run_folder/event_file.h"

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"

namespace tacc::worker {
namespace {

// Source: RFC 3720, B.4.
TEST(Crc32c, EqualsTheVectorsOfTheStandard) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(""), 0u);
}

// The length of an Event in a record.
uint64_t Length(const std::string& record) { return static_cast<unsigned char>(record[0]); }

TEST(EventFile, RecordsAreFramedEvents) {
  constexpr size_t kFraming = 8 + 4 + 4;
  const std::string version = FileVersionRecord(1.5);
  ASSERT_EQ(version.size(), Length(version) + kFraming);
  EXPECT_EQ(absl::BytesToHexString(version.substr(12, Length(version))),
            "09000000000000f83f"  // wall_time 1.5
            "1000"                // step 0
            "1a0d"                // file_version, 13 bytes
            "627261696e2e4576656e743a32");
  const std::string start = SessionStartRecord(1.5, 300);
  EXPECT_EQ(absl::BytesToHexString(start.substr(12, Length(start))),
            "09000000000000f83f"
            "10ac02"      // step 300
            "3a020801");  // session_log: status START
  const std::string scalars = ScalarsRecord(1.5, 2, {{"a", 1}, {"b", 2}});
  EXPECT_EQ(absl::BytesToHexString(scalars.substr(12, Length(scalars))),
            "09000000000000f83f"
            "1002"
            "2a14"  // summary, 20 bytes
            "0a08"
            "0a0161"
            "150000803f"  // a 1
            "0a08"
            "0a0162"
            "1500000040");
}

}  // namespace
}  // namespace tacc::worker
