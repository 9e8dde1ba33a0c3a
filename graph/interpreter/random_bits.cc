#include "graph/interpreter/random_bits.h"

#include <array>
#include <cmath>

namespace tacc::interpreter {
namespace {

// Source: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011, section 3.3.
uint32_t Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key, int word) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0], p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter[word];
}

uint32_t WordOf(int64_t of_seed, int64_t of_place, int64_t element, double sample, double step) {
  const auto seed = static_cast<uint64_t>(of_seed);
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(seed) ^ static_cast<uint32_t>(seed >> 32) * 0x9E3779B9u,
                                       static_cast<uint32_t>(of_place)};
  return Philox({static_cast<uint32_t>(element / 4), static_cast<uint32_t>(sample), static_cast<uint32_t>(step), 0},
                key, static_cast<int>(element % 4));
}

}  // namespace

bool IsKept(const DropoutKey& dropout, int64_t element, double sample, double step) {
  const uint32_t random = WordOf(dropout.seed, dropout.key, element, sample, step);
  return random >= static_cast<uint32_t>(dropout.rate * 4294967296.0);
}

double DrawnUniform(int64_t seed, int64_t key, int64_t element, double sample, double step) {
  return static_cast<double>(WordOf(seed, key, element, sample, step) / 256) / 16777216.0;
}

double DrawnNormal(int64_t seed, int64_t key, int64_t element, double sample, double step) {
  const int64_t even = element - element % 2;
  const double u = DrawnUniform(seed, key, even, sample, step), v = DrawnUniform(seed, key, even + 1, sample, step);
  const double radius = std::sqrt(-2 * std::log(1 - u)), angle = 2 * 3.14159265358979323846 * v;
  return element == even ? radius * std::cos(angle) : radius * std::sin(angle);
}

}  // namespace tacc::interpreter
