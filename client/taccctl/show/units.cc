#include "client/taccctl/show/units.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tacc::client {

std::string FormatBytes(double bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (std::fabs(bytes) >= 1024 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%.0f B", bytes) : absl::StrFormat("%.1f %s", bytes, kUnits[unit]);
}

std::string FormatDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e12) return "-";
  const int64_t s = static_cast<int64_t>(seconds + 0.5);
  const int64_t days = s / 86400, hours = s / 3600 % 24, minutes = s / 60 % 60;
  if (days > 0) return absl::StrFormat("%d d %02d:%02d", days, hours, minutes);
  if (hours > 0) return absl::StrFormat("%d:%02d:%02d", hours, minutes, s % 60);
  return absl::StrFormat("%d:%02d", minutes, s % 60);
}

std::string FormatTime(double seconds_since_epoch) {
  if (!(seconds_since_epoch > 0) || seconds_since_epoch > 1e12) return "";
  const time_t time = static_cast<time_t>(seconds_since_epoch);
  struct tm local;
  char text[32];
  if (localtime_r(&time, &local) == nullptr || strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &local) == 0)
    return "";
  return text;
}

std::string FormatCount(double value) {
  static const char* const kSuffixes[] = {"", "k", "M", "G", "T", "P"};
  size_t suffix = 0;
  while (std::fabs(value) >= 999.5 && suffix + 1 < std::size(kSuffixes)) {
    value /= 1000;
    ++suffix;
  }
  return absl::StrCat(FormatNumber(value, 3), kSuffixes[suffix]);
}

std::string FormatNumber(double value, int digits) { return absl::StrFormat("%.*g", digits, value); }

std::string FormatPercent(double fraction) {
  const double percent = fraction * 100;
  if (percent <= 0 || percent >= 0.05) return absl::StrFormat("%.1f%%", percent);
  return percent >= 0.005 ? absl::StrFormat("%.2f%%", percent) : "<0.01%";
}

}  // namespace tacc::client
