// The low-level interface, deprecated since OpenSSL 3.0 but kept there: it is linked statically into tacc-rank, which
// must run on machines without OpenSSL, and pulls in 30 KB where EVP brings 4 MB of unrelated ciphers.
#define OPENSSL_API_COMPAT 0x10100000L
#include "worker/checkpoint/files/sha256.h"

#include <openssl/sha.h>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace tacc::worker {

struct Sha256::State {
  SHA256_CTX context;
};

Sha256::Sha256() : state_(std::make_unique<State>()) { SHA256_Init(&state_->context); }
Sha256::~Sha256() = default;

void Sha256::Update(const void* data, size_t num_bytes) { SHA256_Update(&state_->context, data, num_bytes); }

std::string Sha256::HexDigest() {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256_Final(digest, &state_->context);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), sizeof(digest)));
}

}  // namespace tacc::worker
