// The authority of one service: it signs the certificates of all who take part.
#ifndef TACC_IDENTITY_AUTHORITY_H_
#define TACC_IDENTITY_AUTHORITY_H_

#include <ctime>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "identity/openssl_pointer.h"
#include "identity/principal.h"

namespace tacc::identity {

// Seconds since the epoch, both included.
struct Validity {
  std::time_t not_before = 0;
  std::time_t not_after = 0;
};

// From a few minutes ago, for clocks that are behind, to `days` from now.
Validity ValidFor(int days, std::time_t now);

struct CertificateRequest {
  Principal principal;
  // Of a server, by which clients reach it: names and IP addresses. Of others none: who has their key cannot pose as
  // one.
  std::vector<std::string> hosts;
  Validity validity;
};

class Authority {
 public:
  // A new one, with a key of its own (ECDSA P-256, as all keys here).
  static absl::StatusOr<Authority> Make(const Validity& validity);
  // Of PEM texts. InvalidArgument: they are no certificate and its key.
  static absl::StatusOr<Authority> Read(const std::string& certificate_pem, const std::string& key_pem);

  absl::StatusOr<std::string> CertificatePem() const;
  absl::StatusOr<std::string> KeyPem() const;
  std::time_t not_after() const;

  // A new key and its certificate, as one PEM text. It ends with this authority's own at the latest. InvalidArgument: a
  // name or a host is none.
  absl::StatusOr<std::string> Issue(const CertificateRequest& request) const;

  // ES256 (RFC 7518, 3.4): ECDSA of P-256 and SHA-256, as the two numbers, of 32 bytes each. InvalidArgument: the key
  // is of another kind.
  absl::StatusOr<std::string> SignEs256(absl::string_view text) const;

 private:
  Authority(CertificatePointer certificate, KeyPointer key)
      : certificate_(std::move(certificate)), key_(std::move(key)) {}

  CertificatePointer certificate_;
  KeyPointer key_;
};

bool IsP256(const EVP_PKEY* key);
// Whether the signature of `text` is ES256, of that key.
bool IsSignedEs256(absl::string_view text, absl::string_view signature, EVP_PKEY* key);

// Names and addresses of hosts in a certificate (PEM); none: it cannot be read or has none.
std::vector<std::string> HostsOfPem(const std::string& pem);
// 0: it cannot be read.
std::time_t NotAfterOfPem(const std::string& pem);

}  // namespace tacc::identity

#endif  // TACC_IDENTITY_AUTHORITY_H_
