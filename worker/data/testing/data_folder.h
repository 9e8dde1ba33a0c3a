// Writes small data folders for tests, independently of the Python writer.
#ifndef TACC_WORKER_DATA_TESTING_DATA_FOLDER_H_
#define TACC_WORKER_DATA_TESTING_DATA_FOLDER_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "machine/testing/test_directory.h"
#include "nlohmann/json.hpp"

namespace tacc::worker {

struct TestShard {
  std::vector<uint32_t> tokens;
  std::vector<uint8_t> loss_mask;  // Empty: no such column.
  int token_bytes = 2;
  std::vector<uint8_t> segments = {};  // Empty: no such column.
};

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string ShardBytes(const TestShard& shard) {
  const auto number = [](uint64_t value, int bytes) {
    return std::string(reinterpret_cast<const char*>(&value), bytes);
  };
  const auto name = [](std::string text) {
    text.resize(16);
    return text;
  };
  const uint64_t num_tokens = shard.tokens.size();
  std::vector<std::pair<std::string, const std::vector<uint8_t>*>> bytes;  // Columns behind the tokens.
  if (!shard.loss_mask.empty()) bytes.emplace_back("loss_mask", &shard.loss_mask);
  if (!shard.segments.empty()) bytes.emplace_back("segment", &shard.segments);
  uint64_t offset = bytes.size() < 2 ? 128 : 192;
  const uint64_t begin = offset;
  std::string file =
      "taccdata" + number(1, 4) + number(1 + bytes.size(), 4) + number(num_tokens, 8) + std::string(40, '\0');
  file += name("tokens") + number(shard.token_bytes, 8) + number(offset, 8);
  offset += num_tokens * shard.token_bytes;
  for (const auto& [column, values] : bytes) {
    file += name(column) + number(1, 8) + number(offset, 8);
    offset += num_tokens;
  }
  file.resize(begin);
  for (const uint32_t token : shard.tokens) file += number(token, shard.token_bytes);
  for (const auto& [column, values] : bytes) file.append(values->begin(), values->end());
  return file;
}

inline nlohmann::json TestIndex(const std::vector<TestShard>& shards, int64_t vocab_size) {
  nlohmann::json index = {
      {"format", "tacc-data"}, {"version", 1}, {"seq_len", 8}, {"num_documents", 1}, {"fingerprint", "f00d"}};
  index["tokenizer"] = {
      {"fingerprint", "cafe"}, {"vocab_size", vocab_size}, {"eos_token", "<|endoftext|>"}, {"eos_token_id", 0}};
  uint64_t num_tokens = 0, max_token_id = 0;
  index["shards"] = nlohmann::json::array();
  for (const TestShard& shard : shards) {
    const std::string name = "0000" + std::to_string(index["shards"].size()) + ".tacc";
    index["shards"].push_back({{"name", name},
                               {"num_tokens", shard.tokens.size()},
                               {"num_documents", 1},
                               {"num_bytes", ShardBytes(shard).size()},
                               {"sha256", ""}});
    num_tokens += shard.tokens.size();
    for (const uint32_t token : shard.tokens) max_token_id = std::max<uint64_t>(max_token_id, token);
  }
  index["num_tokens"] = num_tokens;
  index["max_token_id"] = max_token_id;
  return index;
}

inline void WriteDataFolder(const std::string& dir, const std::vector<TestShard>& shards, int64_t vocab_size = 1000) {
  std::filesystem::create_directories(dir);
  for (size_t i = 0; i < shards.size(); ++i)
    WriteFile(dir + "/0000" + std::to_string(i) + ".tacc", ShardBytes(shards[i]));
  WriteFile(dir + "/index.json", TestIndex(shards, vocab_size).dump());
}

}  // namespace tacc::worker

#endif  // TACC_WORKER_DATA_TESTING_DATA_FOLDER_H_
