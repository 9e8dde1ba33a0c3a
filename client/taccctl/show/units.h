// Numbers with units, for people.
#ifndef TACC_CLIENT_TACCCTL_SHOW_UNITS_H_
#define TACC_CLIENT_TACCCTL_SHOW_UNITS_H_

#include <string>

namespace tacc::client {

// "1.5 GiB", "12 B".
std::string FormatBytes(double bytes);
// "0:07", "12:34", "1:02:03", "3 d 04:05".
std::string FormatDuration(double seconds);
// Local time, "2026-01-31 12:34:56"; "" for 0.
std::string FormatTime(double seconds_since_epoch);
// Three significant digits with a suffix: "8.19k", "1.2M", "950".
std::string FormatCount(double value);
// `digits` significant digits: "3.214", "0.0003".
std::string FormatNumber(double value, int digits);
// "12.3%".
std::string FormatPercent(double fraction);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_SHOW_UNITS_H_
