#include <algorithm>
#include <utility>

#include "kernels/cuda/id_order.h"
#include "kernels/cuda/launch/launch.h"

namespace tacc::kernels::cuda {
namespace {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kChunk = 256;  // tokens that a team sorts at a time
constexpr int kScanTeam = 1024;

int64_t NumChunks(int64_t num_tokens) { return (num_tokens + kChunk - 1) / kChunk; }
int64_t RoundUp(int64_t n) { return (n + 15) / 16 * 16; }

struct KeysOfIds {
  const int32_t* ids;
  int64_t offset, num_ids;
  int32_t *keys, *tokens;

  TACC_DEVICE void operator()(int64_t i) const {
    const int64_t key = ids[i] - offset;
    keys[i] = static_cast<int32_t>(key >= 0 && key < num_ids ? key : num_ids);
    tokens[i] = static_cast<int32_t>(i);
  }
};

// counts[digit, chunk]: how often each of the digits that occur at all does so in a chunk of keys.
struct CountDigits {
  const int32_t* keys;
  int64_t num_tokens, num_chunks;
  int shift, num_digits;
  int32_t* counts;

  TACC_DEVICE void operator()(Team& team, int64_t chunk) const {
    int32_t* digits = team.shared<int32_t>();
    const int64_t first = chunk * kChunk;
    const int n = static_cast<int>(num_tokens - first < kChunk ? num_tokens - first : kChunk);
    for (int i = team.rank(); i < n; i += team.size()) digits[i] = keys[first + i] >> shift & (kDigits - 1);
    team.Sync();
    for (int digit = team.rank(); digit < num_digits; digit += team.size()) {
      int32_t count = 0;
      for (int i = 0; i < n; ++i) count += digits[i] == digit;
      counts[digit * num_chunks + chunk] = count;
    }
  }
};

// Each count becomes the sum of those before it. One team; a thread takes neighbours.
struct SumCountsBefore {
  int64_t n;
  int32_t* counts;

  TACC_DEVICE void operator()(Team& team, int64_t) const {
    int32_t *sums = team.shared<int32_t>(), *of_warps = sums + team.size();
    const int warp = team.rank() / kWarp;
    const int64_t begin = n * team.rank() / team.size(), end = n * (team.rank() + 1) / team.size();
    int32_t sum = 0;
    for (int64_t i = begin; i < end; ++i) sum += counts[i];
    sums[team.rank()] = sum;
    team.Sync();
    if (team.rank() % kWarp == 0) {
      int32_t total = 0;
      for (int i = 0; i < kWarp; ++i) total += sums[team.rank() + i];
      of_warps[warp] = total;
    }
    team.Sync();
    int32_t before = 0;
    for (int i = 0; i < warp; ++i) before += of_warps[i];
    for (int i = warp * kWarp; i < team.rank(); ++i) before += sums[i];
    for (int64_t i = begin; i < end; ++i) {
      const int32_t count = counts[i];
      counts[i] = before;
      before += count;
    }
  }
};

// Each token goes behind those of lower digits and those before it with the same digit.
struct MoveByDigit {
  const int32_t *keys, *tokens, *before;
  int64_t num_tokens, num_chunks;
  int shift;
  int32_t *keys_to, *tokens_to;

  TACC_DEVICE void operator()(Team& team, int64_t chunk) const {
    int32_t* digits = team.shared<int32_t>();
    const int64_t first = chunk * kChunk;
    const int n = static_cast<int>(num_tokens - first < kChunk ? num_tokens - first : kChunk);
    for (int i = team.rank(); i < n; i += team.size()) digits[i] = keys[first + i] >> shift & (kDigits - 1);
    team.Sync();
    for (int i = team.rank(); i < n; i += team.size()) {
      const int32_t digit = digits[i];
      int64_t place = before[digit * num_chunks + chunk];
      for (int j = 0; j < i; ++j) place += digits[j] == digit;
      keys_to[place] = keys[first + i];
      tokens_to[place] = tokens[first + i];
    }
  }
};

// starts[key] = the first place in order whose key is not lower.
struct FindStart {
  const int32_t* keys;
  int64_t num_tokens;
  int32_t* starts;

  TACC_DEVICE void operator()(int64_t key) const {
    int64_t low = 0, high = num_tokens;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (keys[middle] < key) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    starts[key] = static_cast<int32_t>(low);
  }
};

}  // namespace

int64_t IdOrderBytes(int64_t num_tokens, int64_t num_ids) {
  const int64_t numbers = 4 * RoundUp(num_tokens) + RoundUp(kDigits * NumChunks(num_tokens)) + RoundUp(num_ids + 2);
  return numbers * static_cast<int64_t>(sizeof(int32_t));
}

IdOrder::IdOrder(const TensorView& ids, int64_t offset, int64_t num_ids) : memory_(IdOrderBytes(ids.size(), num_ids)) {
  const int64_t n = ids.size(), num_chunks = NumChunks(n);
  TACC_KERNEL_CHECK(ids.dtype == DType::kI32 && n < int64_t{1} << 31 && num_ids < (int64_t{1} << 31) - 2);
  int32_t* next = static_cast<int32_t*>(memory_.data());
  const auto take = [&next](int64_t count) { return std::exchange(next, next + RoundUp(count)); };
  keys_ = take(n);
  tokens_ = take(n);
  int32_t *other_keys = take(n), *other_tokens = take(n);
  int32_t* counts = take(kDigits * num_chunks);
  starts_ = take(num_ids + 2);
  ForEach(n, KeysOfIds{ids.as<int32_t>(), offset, num_ids, keys_, tokens_});
  constexpr int64_t kShared = kChunk * sizeof(int32_t);
  constexpr int64_t kScanShared = (kScanTeam + kScanTeam / kWarp) * sizeof(int32_t);
  for (int shift = 0; num_ids >> shift != 0; shift += kDigitBits) {
    const int num_digits = static_cast<int>(std::min<int64_t>((num_ids >> shift) + 1, kDigits));
    ForEachTeam(num_chunks, kChunk, kShared, CountDigits{keys_, n, num_chunks, shift, num_digits, counts});
    ForEachTeam(1, kScanTeam, kScanShared, SumCountsBefore{num_digits * num_chunks, counts});
    ForEachTeam(num_chunks, kChunk, kShared,
                MoveByDigit{keys_, tokens_, counts, n, num_chunks, shift, other_keys, other_tokens});
    std::swap(keys_, other_keys);
    std::swap(tokens_, other_tokens);
  }
  ForEach(num_ids + 2, FindStart{keys_, n, starts_});
}

}  // namespace tacc::kernels::cuda
