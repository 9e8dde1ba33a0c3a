// Text from outside, made fit for protobuf strings, which must be UTF-8.
#ifndef TACC_COORDINATOR_CORE_UTF8_H_
#define TACC_COORDINATOR_CORE_UTF8_H_

#include <cstddef>
#include <string>

namespace tacc::coordinator {

// At most `max_bytes` of `text`, each byte that is not part of a UTF-8 character replaced by '?', NUL by a space.
std::string ValidUtf8(const std::string& text, size_t max_bytes);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_CORE_UTF8_H_
