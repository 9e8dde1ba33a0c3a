// Tokens per second of one worker's loader on a data folder: `loader_bench DIR` prints {"tokens_per_second": N}.
#include <chrono>
#include <cstdio>
#include <vector>

#include "worker/data/loader.h"
#include "worker/data/shards.h"

int main(int argc, char** argv) {
  constexpr int64_t kRows = 64, kSeqLen = 256, kBatches = 2000;
  if (argc != 2) {
    std::fprintf(stderr, "error: usage: loader_bench DIR\n");
    return 2;
  }
  auto dataset = tacc::worker::Dataset::Open(argv[1]);
  if (!dataset.ok()) {
    std::fprintf(stderr, "error: %s\n", dataset.status().ToString().c_str());
    return 2;
  }
  tacc::worker::LoaderOptions options;
  options.seq_len = kSeqLen;
  options.global_batch_size = kRows;
  options.last_row = kRows;
  auto loader = tacc::worker::Loader::Create(dataset->get(), options, 0);
  if (!loader.ok()) {
    std::fprintf(stderr, "error: %s\n", loader.status().ToString().c_str());
    return 2;
  }
  std::vector<int32_t> tokens(kRows * kSeqLen), targets(kRows * kSeqLen);
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < kBatches; ++i) {
    if (auto info = (*loader)->Next(tokens.data(), targets.data()); !info.ok()) {
      std::fprintf(stderr, "error: %s\n", info.status().ToString().c_str());
      return 1;
    }
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("{\"tokens_per_second\": %.0f}\n", kBatches * kRows * kSeqLen / seconds);
  return 0;
}
