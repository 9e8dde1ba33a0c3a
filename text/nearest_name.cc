#include "text/nearest_name.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"

namespace tacc {
namespace {

// Names longer than this are no slip of the keyboard.
constexpr size_t kMaxSlipBytes = 64;

// Memory is three rows, for names may be long.
size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        row[j] = i + j;
        continue;
      }
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

// The first of the nearest with at most `most` edits.
std::string Nearest(const std::string& name, const std::vector<std::string>& names, size_t most) {
  const std::string wanted = absl::AsciiStrToLower(name);
  std::string nearest;
  size_t best = std::numeric_limits<size_t>::max();
  for (const std::string& candidate : names) {
    const size_t distance = EditDistance(wanted, absl::AsciiStrToLower(candidate));
    if (distance <= most && distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace

std::string NearestName(const std::string& name, const std::vector<std::string>& names) {
  return Nearest(name, names, std::numeric_limits<size_t>::max());
}

std::string NearestSlip(const std::string& name, const std::vector<std::string>& names) {
  if (name.size() > kMaxSlipBytes) return "";
  return Nearest(name, names, std::max<size_t>(1, name.size() / 3));
}

}  // namespace tacc
