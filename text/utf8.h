// Text from outside, made fit for protobuf strings, which must be UTF-8. Pure functions.
#ifndef TACC_TEXT_UTF8_H_
#define TACC_TEXT_UTF8_H_

#include <cstddef>
#include <string>

namespace tacc {

// At most `max_bytes` of `text`, each byte that is not part of a UTF-8 character replaced by '?', NUL by a space.
// Source: Unicode 15, table 3-7.
std::string ValidUtf8(const std::string& text, size_t max_bytes = std::string::npos);

// Whether a protobuf string can hold `text` as it is: UTF-8 without NUL.
bool IsUtf8(const std::string& text);

}  // namespace tacc

#endif  // TACC_TEXT_UTF8_H_
