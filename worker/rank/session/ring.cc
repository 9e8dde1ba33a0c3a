#include "worker/rank/session/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace tacc::worker {

absl::StatusOr<std::shared_ptr<const Ring>> Ring::Map(int fd) {
  const int seals = fcntl(fd, F_GET_SEALS);
  // Who reads beyond the end of memory that was made smaller is killed.
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return absl::InvalidArgumentError("the client's memory is no memfd with F_SEAL_SHRINK");
  struct stat info = {};
  if (fstat(fd, &info) != 0 || info.st_size <= 0)
    return absl::InvalidArgumentError(absl::StrCat("the client's memory has ", info.st_size, " bytes"));
  void* const data = mmap(nullptr, info.st_size, PROT_READ, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED)
    return absl::InvalidArgumentError(absl::StrCat("cannot map the client's memory: ", strerror(errno)));
  return std::shared_ptr<const Ring>(new Ring(static_cast<const char*>(data), info.st_size));
}

Ring::~Ring() { munmap(const_cast<char*>(data_), size_); }

}  // namespace tacc::worker
