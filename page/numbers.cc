#include "page/numbers.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tacc {
namespace {

constexpr const char* kByteUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};

// The unit in which so many bytes are shown.
size_t ByteUnit(double bytes) {
  size_t unit = 0;
  for (; std::fabs(bytes) >= 1024 && unit + 1 < std::size(kByteUnits); ++unit) bytes /= 1024;
  return unit;
}

std::string BytesIn(size_t unit, double bytes) {
  const double number = bytes / std::pow(1024, unit);
  return unit == 0 ? absl::StrFormat("%.0f B", number) : absl::StrFormat("%.1f %s", number, kByteUnits[unit]);
}

// Whole numbers beside the parts that add up to `total`: the largest remainders are rounded up. Parts that do not add
// up to about that are each rounded by itself.
std::vector<double> RoundedParts(const std::vector<double>& parts, double total) {
  std::vector<double> rounded;
  for (const double part : parts) rounded.push_back(std::floor(part));
  const double left = total - std::accumulate(rounded.begin(), rounded.end(), 0.0);
  std::vector<size_t> order(parts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return parts[a] - rounded[a] > parts[b] - rounded[b]; });
  const bool add_up = left >= 0 && left <= static_cast<double>(parts.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t part = order[i];
    if (add_up ? static_cast<double>(i) < left : parts[part] - rounded[part] >= 0.5) rounded[part] += 1;
  }
  return rounded;
}

}  // namespace

std::string BytesText(double bytes) { return BytesIn(ByteUnit(bytes), bytes); }

std::vector<std::string> BytesTexts(const std::vector<double>& parts, double total) {
  const size_t unit = ByteUnit(total);
  const double digit = std::pow(1024, unit) / (unit == 0 ? 1 : 10);
  std::vector<std::string> texts(parts.size());
  std::vector<double> large;
  double of_large = total;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] >= digit) {
      large.push_back(parts[i] / digit);
    } else {
      texts[i] = BytesText(parts[i]);
      of_large -= parts[i];
    }
  }
  const std::vector<double> rounded = RoundedParts(large, std::round(of_large / digit));
  for (size_t i = 0, next = 0; i < parts.size(); ++i) {
    if (texts[i].empty()) texts[i] = BytesIn(unit, rounded[next++] * digit);
  }
  return texts;
}

std::vector<double> RoundedPercents(const std::vector<double>& shares) {
  std::vector<double> percents;
  for (const double share : shares) percents.push_back(1000 * share);
  percents = RoundedParts(percents, 1000);
  for (double& percent : percents) percent /= 10;
  return percents;
}

std::string PercentText(double percent) { return absl::StrFormat("%.1f %%", percent); }

std::string SecondsText(double seconds) {
  const double size = std::fabs(seconds);
  if (size == 0) return "0 s";
  if (size < 1e-9) return "< 1 ns";
  // In three digits 999.5 of a unit are one of the next.
  if (size * 1e9 < 999.5) return absl::StrFormat("%.3g ns", seconds * 1e9);
  if (size * 1e6 < 999.5) return absl::StrFormat("%.3g us", seconds * 1e6);
  if (size * 1e3 < 999.5) return absl::StrFormat("%.3g ms", seconds * 1e3);
  return absl::StrFormat("%.*f s", size < 9.995 ? 2 : size < 99.95 ? 1 : 0, seconds);
}

std::string DurationText(double seconds) {
  if (seconds < 100) return SecondsText(seconds);
  const int64_t minutes = std::llround(seconds / 60);
  if (minutes < 60) return absl::StrCat(minutes, " min");
  if (minutes < 48 * 60) return absl::StrCat(minutes / 60, " h ", minutes % 60, " min");
  return absl::StrCat(minutes / 1440, " days ", minutes / 60 % 24, " h");
}

std::string RangeText(const std::string& low, const std::string& high) {
  const size_t of_low = low.find(' '), of_high = high.find(' ');
  const bool same = !low.empty() && absl::ascii_isdigit(low[0]) && of_low != std::string::npos &&
                    of_high != std::string::npos &&
                    low.compare(of_low, std::string::npos, high, of_high, std::string::npos) == 0;
  return absl::StrCat(same ? low.substr(0, of_low) : low, " to ", high);
}

std::string WholeText(int64_t number) {
  std::string digits = absl::StrCat(number);
  for (int at = static_cast<int>(digits.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3) digits.insert(at, ",");
  return digits;
}

std::string CountText(double count) {
  static constexpr const char* kUnits[] = {"", " thousand", " million", " billion", " trillion"};
  size_t unit = 0;
  for (; std::fabs(count) >= 999.5 && unit + 1 < std::size(kUnits); ++unit) count /= 1000;
  return absl::StrFormat("%.3g%s", count, kUnits[unit]);
}

}  // namespace tacc
