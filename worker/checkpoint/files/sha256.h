// SHA-256 over a stream of bytes (OpenSSL's, which uses the CPU's instructions for it).
#ifndef TACC_WORKER_CHECKPOINT_FILES_SHA256_H_
#define TACC_WORKER_CHECKPOINT_FILES_SHA256_H_

#include <cstddef>
#include <memory>
#include <string>

namespace tacc::worker {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void Update(const void* data, size_t num_bytes);
  // Returns the digest as 64 lower-case hex digits. The object takes no more data after it.
  std::string HexDigest();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_FILES_SHA256_H_
