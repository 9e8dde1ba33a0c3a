#include "worker/data/shards.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/testing/data_folder.h"

namespace tacc::worker {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::vector<uint32_t> Iota(uint32_t first, size_t count) {
  std::vector<uint32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::string OpenError(const std::string& dir, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const auto dataset = Dataset::Open(dir);
  if (dataset.ok()) return "no error";
  EXPECT_EQ(dataset.status().code(), code);
  return std::string(dataset.status().message());
}

TEST(Dataset, ReadsAcrossShardsOfBothWidths) {
  TestDirectory dir;
  WriteDataFolder(dir.path(), {{Iota(0, 5)}, {Iota(5, 1)}, {Iota(6, 10), {}, 4}});
  const auto dataset = Dataset::Open(dir.path());
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ((*dataset)->info().num_tokens, 16);
  EXPECT_EQ((*dataset)->info().shards.size(), 3u);
  EXPECT_EQ((*dataset)->NumSamples(5), 3);
  for (int64_t first = 0; first <= 16; ++first) {
    for (int64_t count = 0; count <= 16 - first; ++count) {
      std::vector<int32_t> tokens(count, -7);
      ASSERT_TRUE((*dataset)->ReadTokens(first, count, tokens.data()).ok());
      for (int64_t i = 0; i < count; ++i) EXPECT_EQ(tokens[i], first + i);
    }
  }
  std::vector<int32_t> tokens(17);
  EXPECT_EQ((*dataset)->ReadTokens(0, 17, tokens.data()).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ((*dataset)->ReadTokens(-1, 2, tokens.data()).code(), absl::StatusCode::kOutOfRange);
}

TEST(Dataset, LossMaskIsOneWhereAShardHasNone) {
  TestDirectory dir;
  WriteDataFolder(dir.path(), {{Iota(0, 3)}, {Iota(3, 3), {1, 0, 1}}});
  const auto dataset = Dataset::Open(dir.path());
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_TRUE((*dataset)->has_loss_mask());
  std::vector<uint8_t> mask(5);
  ASSERT_TRUE((*dataset)->ReadLossMask(1, 5, mask.data()).ok());
  EXPECT_EQ(mask, (std::vector<uint8_t>{1, 1, 1, 0, 1}));
}

TEST(Dataset, PathsThatAreNoPreparedData) {
  TestDirectory dir;
  EXPECT_THAT(OpenError(dir.path() + "/none", absl::StatusCode::kNotFound), HasSubstr("/none: no such folder"));
  EXPECT_THAT(OpenError(dir.path(), absl::StatusCode::kNotFound), HasSubstr("the folder is empty"));
  WriteFile(dir.path() + "/corpus.txt", "hello");
  EXPECT_THAT(OpenError(dir.path()),
              AllOf(HasSubstr("/.venv/bin/python -m tacc data prepare --tokenizer MODEL_DIR --input " + dir.path() +
                              " --out " + dir.path() + ".tacc")));
  EXPECT_THAT(OpenError(dir.path() + "/corpus.txt"), HasSubstr("python -m tacc data prepare"));
  WriteFile(dir.path() + "/config.json", "{}");
  EXPECT_THAT(OpenError(dir.path()), HasSubstr("looks like a model"));
}

// Each damage to index.json, with what the error must say.
TEST(Dataset, DamagedIndex) {
  struct Case {
    std::function<void(nlohmann::json&)> damage;
    std::string message;
  };
  const std::vector<Case> cases = {
      {[](nlohmann::json& index) { index = 3; }, "not the index of prepared data"},
      {[](nlohmann::json& index) { index["format"] = "parquet"; }, "not the index of prepared data"},
      {[](nlohmann::json& index) { index["version"] = 2; }, "format version 2, this program reads version 1"},
      {[](nlohmann::json& index) { index.erase("version"); }, "format version null"},
      {[](nlohmann::json& index) { index.erase("num_tokens"); }, "num_tokens is missing"},
      {[](nlohmann::json& index) { index["num_tokens"] = -1; }, "num_tokens = -1; it must be an integer"},
      {[](nlohmann::json& index) { index["num_tokens"] = 1.5; }, "num_tokens = 1.5; it must be an integer"},
      {[](nlohmann::json& index) { index["num_tokens"] = 7; }, "num_tokens = 7, but its shards have 6 tokens"},
      {[](nlohmann::json& index) { index["fingerprint"] = 1; }, "fingerprint = 1; it must be a text"},
      {[](nlohmann::json& index) { index["tokenizer"] = "gpt2"; }, "tokenizer must be an object"},
      {[](nlohmann::json& index) { index["tokenizer"].erase("vocab_size"); }, "tokenizer.vocab_size is missing"},
      {[](nlohmann::json& index) { index["tokenizer"]["vocab_size"] = 1 << 27; },
       "vocab_size = 134217728; at most 67108864"},
      {[](nlohmann::json& index) { index["max_token_id"] = 1000; },
       "max_token_id = 1000 is not below vocab_size = 1000"},
      {[](nlohmann::json& index) { index["shards"] = 1; }, "shards must be a list"},
      {[](nlohmann::json& index) { index["shards"][1] = 1; }, "shards[1] must be an object"},
      {[](nlohmann::json& index) { index["shards"][1].erase("name"); }, "shards[1].name is missing"},
      {[](nlohmann::json& index) { index["shards"][0]["name"] = "../x"; }, "must be a file name inside the folder"},
      {[](nlohmann::json& index) { index["shards"][0]["num_tokens"] = INT64_MAX; }, "is too large"},
      {[](nlohmann::json& index) { index["shards"][0]["num_bytes"] = 1000; },
       "134 bytes, but the index says 1000 (cut short)"},
  };
  for (const Case& c : cases) {
    TestDirectory dir;
    const std::vector<TestShard> shards = {{{1, 2, 3}}, {{4, 5, 6}}};
    WriteDataFolder(dir.path(), shards);
    nlohmann::json index = TestIndex(shards, 1000);
    c.damage(index);
    WriteFile(dir.path() + "/index.json", index.dump());
    EXPECT_THAT(OpenError(dir.path()), HasSubstr(c.message));
  }
  TestDirectory dir;
  WriteDataFolder(dir.path(), {{{1, 2, 3}}});
  WriteFile(dir.path() + "/index.json", "{\"format\": ");
  EXPECT_THAT(OpenError(dir.path()), HasSubstr("index.json: not valid JSON at byte 12"));
  WriteFile(dir.path() + "/index.json", "");  // Torn before its first byte.
  EXPECT_THAT(OpenError(dir.path()), HasSubstr("index.json: not valid JSON at byte 1"));
  WriteFile(dir.path() + "/index.json", "{\"version\": 1e400}");
  EXPECT_THAT(OpenError(dir.path()), HasSubstr("index.json: a number is too large"));
  EXPECT_EQ(Dataset::Open(dir.path()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Dataset, APipeIsNotWaitedFor) {
  TestDirectory dir;
  WriteDataFolder(dir.path(), {{{1}}});
  std::filesystem::remove(dir.path() + "/00000.tacc");
  ASSERT_EQ(mkfifo((dir.path() + "/00000.tacc").c_str(), 0600), 0);  // Which nobody writes.
  EXPECT_THAT(OpenError(dir.path()), HasSubstr("00000.tacc: is not a file"));
}

TEST(Dataset, ReportsAllProblemsAtOnce) {
  TestDirectory dir;
  WriteDataFolder(dir.path(), {{{1}}, {{2}}, {{3}}});
  std::filesystem::remove(dir.path() + "/00000.tacc");
  std::filesystem::resize_file(dir.path() + "/00002.tacc", 100);
  EXPECT_THAT(OpenError(dir.path()),
              AllOf(HasSubstr("00000.tacc: cannot be opened"), HasSubstr("00002.tacc: 100 bytes")));
}

// Each damage to the bytes of a shard, with what the error must say.
TEST(Dataset, DamagedShard) {
  struct Case {
    size_t offset;
    std::string bytes;
    std::string message;
  };
  const std::string huge = "\xff\xff\xff\xff\xff\xff\xff\x7f";
  const std::vector<Case> cases = {
      {0, "PK", "not a shard of tokens"},
      {8, std::string("\x09", 1), "format version 9, this program reads version 1"},
      {12, std::string("\0\0\0\0", 4), "0 columns; 1 to 16 are possible"},
      {12, "\xff\xff\xff\xff", "4294967295 columns"},
      {12, std::string("\x10\0\0\0", 4), "the file ends at byte"},
      {16, std::string("\x04", 1), "the header says 4 tokens, the index 3"},
      {64, "chunks", "has no column `tokens`"},
      {80, std::string("\x03", 1), "column tokens has elements of 3 bytes; 2 or 4 wanted"},
      {88, huge, "column tokens: 6 bytes at offset 9223372036854775807 do not fit a file of 137 bytes"},
      {88, std::string("\x20\0\0\0\0\0\0\0", 8), "column tokens: 6 bytes at offset 32 do not fit"},
      {112, std::string("\x02", 1), "column loss_mask has elements of 2 bytes; 1 wanted"},
      {120, std::string("\x88", 1), "column loss_mask: 3 bytes at offset 136 do not fit"},
  };
  for (const Case& c : cases) {
    TestDirectory dir;
    const TestShard shard = {{1, 2, 3}, {1, 1, 1}};
    WriteDataFolder(dir.path(), {shard});
    std::string bytes = ShardBytes(shard);
    bytes.replace(c.offset, c.bytes.size(), c.bytes);
    WriteFile(dir.path() + "/00000.tacc", bytes);
    EXPECT_THAT(OpenError(dir.path()), AllOf(HasSubstr("00000.tacc: "), HasSubstr(c.message)));
  }
}

// What is not there or cannot be read may come back; only what was read can be wrong.
TEST(Dataset, WhatCannotBeReadIsNotWrong) {
  TestDirectory dir;
  WriteDataFolder(dir.path(), {{Iota(0, 5)}, {Iota(5, 3)}});
  const std::string shard = Dataset::Open(dir.path()).value()->info().shards[1].name;
  const std::string path = dir.path() + "/" + shard, away = dir.path() + "/away";
  ASSERT_EQ(rename(path.c_str(), away.c_str()), 0);
  EXPECT_THAT(OpenError(dir.path(), absl::StatusCode::kNotFound),
              HasSubstr(shard + ": cannot be opened: No such file"));
  ASSERT_EQ(symlink(path.c_str(), path.c_str()), 0);  // ELOOP.
  EXPECT_THAT(OpenError(dir.path(), absl::StatusCode::kUnavailable), HasSubstr(shard));
  ASSERT_EQ(remove(path.c_str()), 0);
  ASSERT_EQ(rename(away.c_str(), path.c_str()), 0);
  const auto points = Failpoints::Parse("read_data=errno:ESTALE@2");
  const auto dataset = Dataset::Open(dir.path(), points->get());
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  int32_t tokens[2];
  EXPECT_TRUE((*dataset)->ReadTokens(0, 2, tokens).ok());
  const absl::Status status = (*dataset)->ReadTokens(0, 2, tokens);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Stale file handle"));
}

TEST(Dataset, AnIdAboveTheVocabularyIsDataLoss) {
  TestDirectory dir;
  for (const uint32_t bad : {1000u, 0xffffffffu}) {
    const TestShard good = {{1, 2, 3}, {}, 4}, damaged = {{1, bad, 3}, {}, 4};
    WriteDataFolder(dir.path(), {good});
    WriteFile(dir.path() + "/00000.tacc", ShardBytes(damaged));
    const auto dataset = Dataset::Open(dir.path());
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    int32_t tokens[3];
    const absl::Status read = (*dataset)->ReadTokens(0, 3, tokens);
    EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(read.message()), HasSubstr(" is not below vocab_size = 1000"));
  }
}

TEST(Dataset, AFileCutShortWhileOpenIsDataLoss) {
  TestDirectory dir;
  WriteDataFolder(dir.path(), {{Iota(0, 100)}});
  const auto dataset = Dataset::Open(dir.path());
  ASSERT_TRUE(dataset.ok());
  std::filesystem::resize_file(dir.path() + "/00000.tacc", 150);
  int32_t tokens[100];
  const absl::Status read = (*dataset)->ReadTokens(0, 100, tokens);
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(read.message()), HasSubstr("00000.tacc: the file ends at byte 150"));
}

}  // namespace
}  // namespace tacc::worker
