#include "page/numbers.h"

#include <cmath>
#include <cstddef>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tacc {

std::string BytesText(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  for (; std::fabs(bytes) >= 1024 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return unit == 0 ? absl::StrFormat("%.0f B", bytes) : absl::StrFormat("%.1f %s", bytes, kUnits[unit]);
}

std::string SecondsText(double seconds) {
  const double size = std::fabs(seconds);
  if (size == 0) return "0 s";
  if (size >= 100) return absl::StrFormat("%.0f s", seconds);
  if (size >= 10) return absl::StrFormat("%.1f s", seconds);
  if (size >= 1) return absl::StrFormat("%.2f s", seconds);
  if (size >= 1e-3) return absl::StrFormat("%.3g ms", seconds * 1e3);
  return absl::StrFormat("%.3g us", seconds * 1e6);
}

std::string DurationText(double seconds) {
  if (seconds < 100) return SecondsText(seconds);
  const int64_t minutes = std::llround(seconds / 60);
  if (minutes < 60) return absl::StrCat(minutes, " min");
  if (minutes < 48 * 60) return absl::StrCat(minutes / 60, " h ", minutes % 60, " min");
  return absl::StrCat(minutes / 1440, " days ", minutes / 60 % 24, " h");
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
