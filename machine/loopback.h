// Whether an address is of this machine alone.
#ifndef TACC_MACHINE_LOOPBACK_H_
#define TACC_MACHINE_LOOPBACK_H_

#include <string>

namespace tacc {

// True for "localhost" and the loopback addresses written as numbers; other names may be anywhere.
bool IsLoopback(const std::string& host);

}  // namespace tacc

#endif  // TACC_MACHINE_LOOPBACK_H_
