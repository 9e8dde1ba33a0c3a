#include "machine/core_files.h"

#include <sys/resource.h>

#include <algorithm>

namespace tacc {

void LeaveNoCoreFiles() {
  // A limit of 0 bytes is not asked about where core files go to a program (core(5): a pattern that begins with "|"); 1
  // is, by the kernel itself, and is too little for a file.
  constexpr rlim_t kNone = 1;
  rlimit limit{};
  if (getrlimit(RLIMIT_CORE, &limit) != 0) return;
  const rlim_t least = std::min(limit.rlim_max, kNone);
  const rlimit none{least, least};
  setrlimit(RLIMIT_CORE, &none);  // It is no more than what is allowed: it does not fail.
}

}  // namespace tacc
