// A data folder: the input is its index.json, and behind a zero byte a shard. What is opened can be read.
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "tests/fuzz/input.h"
#include "worker/data/shards.h"

namespace {

// Of this process; the runner removes it.
std::string MakeFolder() {
  std::string folder = std::filesystem::temp_directory_path() / "data_index-XXXXXX";
  tacc::fuzz::Require(mkdtemp(folder.data()) != nullptr, "there is a temporary folder");
  return folder;
}

void Write(const std::string& path, absl::string_view content) { std::ofstream(path, std::ios::binary) << content; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string folder = MakeFolder();
  const absl::string_view input = tacc::fuzz::TextOf(data, size);
  const size_t end = std::min(input.find('\0'), input.size());
  Write(folder + "/index.json", input.substr(0, end));
  Write(folder + "/shard", input.substr(std::min(end + 1, input.size())));
  const auto dataset = tacc::worker::Dataset::Open(folder);
  if (!dataset.ok()) return 0;
  const int64_t count = std::min<int64_t>((*dataset)->info().num_tokens, 1000);
  std::vector<int32_t> tokens(count);
  std::vector<uint8_t> bytes(count);
  (void)(*dataset)->ReadTokens((*dataset)->info().num_tokens - count, count, tokens.data());
  (void)(*dataset)->ReadLossMask(0, count, bytes.data());
  (void)(*dataset)->ReadSegments(0, count, bytes.data());
  return 0;
}
