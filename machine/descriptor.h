// A file descriptor that closes itself.
#ifndef TACC_MACHINE_DESCRIPTOR_H_
#define TACC_MACHINE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace tacc {

class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_;
};

}  // namespace tacc

#endif  // TACC_MACHINE_DESCRIPTOR_H_
