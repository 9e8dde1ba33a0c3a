#ifndef TACC_PAGE_NUMBERS_H_
#define TACC_PAGE_NUMBERS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace tacc {

// Numbers for people: "52.6 GiB"; "2.15 s", "31.0 ms", "12.0 us", "60 ns"; "5 h 58 min", "3 days 4 h"; "262,144";
// "6.74 billion".
std::string BytesText(double bytes);
std::string SecondsText(double seconds);
std::string DurationText(double seconds);
// Two such texts as a range, the unit once where both have it: "981 ms to 1.02 s", "0.86 to 1.02 s".
std::string RangeText(const std::string& low, const std::string& high);
std::string WholeText(int64_t number);
std::string CountText(double count);

// Parts of a whole as BytesText. What is less than a last digit of the total's has a unit of its own; the others have
// the total's, and are rounded up or down so that they add up to what those leave of it. So all that is shown adds up
// to `total` within half of its last digit.
std::vector<std::string> BytesTexts(const std::vector<double>& parts, double total);
// Shares of a whole in percent, rounded to tenths that add up to 100; and one such number as "61.7 %".
std::vector<double> RoundedPercents(const std::vector<double>& shares);
std::string PercentText(double percent);

}  // namespace tacc

#endif  // TACC_PAGE_NUMBERS_H_
