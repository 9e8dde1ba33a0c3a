#ifndef TACC_PAGE_NUMBERS_H_
#define TACC_PAGE_NUMBERS_H_

#include <cstdint>
#include <string>

namespace tacc {

// Numbers for people: "52.6 GiB"; "2.15 s", "31.0 ms", "12.0 us"; "5 h 58 min", "3 days 4 h"; "262,144"; "6.74
// billion".
std::string BytesText(double bytes);
std::string SecondsText(double seconds);
std::string DurationText(double seconds);
std::string WholeText(int64_t number);
std::string CountText(double count);

}  // namespace tacc

#endif  // TACC_PAGE_NUMBERS_H_
