// Owners of OpenSSL's objects, and its last error as a Status.
#ifndef TACC_IDENTITY_OPENSSL_POINTER_H_
#define TACC_IDENTITY_OPENSSL_POINTER_H_

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tacc::identity {

template <auto kFree>
struct OpensslFree {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};

using BioPointer = std::unique_ptr<BIO, OpensslFree<BIO_free_all>>;
using CertificatePointer = std::unique_ptr<X509, OpensslFree<X509_free>>;
using KeyPointer = std::unique_ptr<EVP_PKEY, OpensslFree<EVP_PKEY_free>>;
using NamesPointer = std::unique_ptr<GENERAL_NAMES, OpensslFree<GENERAL_NAMES_free>>;

// The first certificate of a PEM text; null: it has none.
CertificatePointer ReadCertificate(const std::string& pem);
// The private key of a PEM text; null: it has none.
KeyPointer ReadKey(const std::string& pem);

// Internal, with OpenSSL's own words.
inline absl::Status OpensslError(const char* what) {
  char words[256] = "no reason given";
  if (const unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, words, sizeof(words));
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("OpenSSL: ", what, ": ", words));
}

}  // namespace tacc::identity

#endif  // TACC_IDENTITY_OPENSSL_POINTER_H_
