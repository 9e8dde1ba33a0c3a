#include "identity/authority.h"

#include <arpa/inet.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/rand.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tacc::identity {
namespace {

constexpr std::time_t kDaySeconds = 24 * 60 * 60;
constexpr std::time_t kClockSkewSeconds = 5 * 60;
constexpr int kVersion3 = 2;  // Counted from 0.
constexpr int kSerialBytes = 16;
constexpr size_t kMaxHostBytes = 253;
constexpr int kP256Bytes = 32;  // Of each of a signature's two numbers.

void FreeBytes(unsigned char* bytes) { OPENSSL_free(bytes); }

bool IsIpAddress(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

// A name of a host, without wildcards, or an IP address.
absl::Status CheckHost(const std::string& host) {
  const bool is_name =
      !host.empty() && host.size() <= kMaxHostBytes && absl::ascii_isalnum(host.front()) &&
      absl::ascii_isalnum(host.back()) &&
      std::all_of(host.begin(), host.end(), [](char c) { return absl::ascii_isalnum(c) || c == '-' || c == '.'; });
  if (IsIpAddress(host) || is_name) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("host \"", host, "\": give a name of a host, without a port and without *, or an IP address"));
}

absl::StatusOr<std::string> Written(BIO* out, int ok) {
  if (ok != 1) return OpensslError("cannot write PEM");
  char* data = nullptr;
  const long size = BIO_get_mem_data(out, &data);
  return std::string(data, static_cast<size_t>(size));
}

absl::StatusOr<std::string> PemOf(X509* certificate) {
  const BioPointer out(BIO_new(BIO_s_mem()));
  return Written(out.get(), PEM_write_bio_X509(out.get(), certificate));
}

absl::StatusOr<std::string> PemOf(EVP_PKEY* key) {
  const BioPointer out(BIO_new(BIO_s_mem()));
  return Written(out.get(), PEM_write_bio_PrivateKey(out.get(), key, nullptr, nullptr, 0, nullptr, nullptr));
}

bool AddToName(X509_NAME* name, const char* field, const std::string& value) {
  return value.empty() ||
         X509_NAME_add_entry_by_txt(name, field, MBSTRING_UTF8, reinterpret_cast<const unsigned char*>(value.data()),
                                    static_cast<int>(value.size()), -1, 0) == 1;
}

bool SetSerial(X509* certificate) {
  unsigned char bytes[kSerialBytes];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) return false;
  bytes[0] = static_cast<unsigned char>((bytes[0] & 0x7f) | 0x40);  // Positive, and of one length.
  const std::unique_ptr<BIGNUM, OpensslFree<BN_free>> number(BN_bin2bn(bytes, sizeof(bytes), nullptr));
  return number != nullptr && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

struct Extension {
  int nid;
  std::string value;  // In the words of OpenSSL's configuration.
};

// A certificate that is whole but for its signature; null: OpenSSL's errors say why.
CertificatePointer Unsigned(const Validity& validity, EVP_PKEY* key, const std::string& organization,
                            const std::string& name) {
  CertificatePointer certificate(X509_new());
  if (certificate == nullptr || X509_set_version(certificate.get(), kVersion3) != 1 || !SetSerial(certificate.get()) ||
      ASN1_TIME_set(X509_getm_notBefore(certificate.get()), validity.not_before) == nullptr ||
      ASN1_TIME_set(X509_getm_notAfter(certificate.get()), validity.not_after) == nullptr ||
      X509_set_pubkey(certificate.get(), key) != 1 ||
      !AddToName(X509_get_subject_name(certificate.get()), "O", organization) ||
      !AddToName(X509_get_subject_name(certificate.get()), "CN", name)) {
    return nullptr;
  }
  return certificate;
}

absl::Status Sign(const std::vector<Extension>& extensions, X509* issuer, EVP_PKEY* issuer_key, X509* certificate) {
  if (X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) != 1)
    return OpensslError("cannot name the issuer");
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  for (const Extension& extension : extensions) {
    const std::unique_ptr<X509_EXTENSION, OpensslFree<X509_EXTENSION_free>> made(
        X509V3_EXT_conf_nid(nullptr, &context, extension.nid, extension.value.c_str()));
    if (made == nullptr || X509_add_ext(certificate, made.get(), -1) != 1)
      return OpensslError("cannot add an extension");
  }
  return X509_sign(certificate, issuer_key, EVP_sha256()) > 0 ? absl::OkStatus() : OpensslError("cannot sign");
}

KeyPointer NewKey() { return KeyPointer(EVP_EC_gen("P-256")); }

std::time_t TimeOf(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? timegm(&parts) : 0;
}

}  // namespace

Validity ValidFor(int days, std::time_t now) { return {now - kClockSkewSeconds, now + days * kDaySeconds}; }

absl::StatusOr<Authority> Authority::Make(const Validity& validity) {
  KeyPointer key = NewKey();
  if (key == nullptr) return OpensslError("cannot make a key");
  CertificatePointer certificate = Unsigned(validity, key.get(), "tacc", "tacc certificate authority");
  if (certificate == nullptr) return OpensslError("cannot make a certificate");
  const absl::Status status = Sign({{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                    {NID_key_usage, "critical,keyCertSign,cRLSign"},
                                    {NID_subject_key_identifier, "hash"}},
                                   certificate.get(), key.get(), certificate.get());
  if (!status.ok()) return status;
  return Authority(std::move(certificate), std::move(key));
}

absl::StatusOr<Authority> Authority::Read(const std::string& certificate_pem, const std::string& key_pem) {
  CertificatePointer certificate = ReadCertificate(certificate_pem);
  if (certificate == nullptr) return absl::InvalidArgumentError("the authority's certificate cannot be read");
  KeyPointer key = ReadKey(key_pem);
  if (key == nullptr) return absl::InvalidArgumentError("the authority's key cannot be read");
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError("the authority's key is of another certificate");
  }
  return Authority(std::move(certificate), std::move(key));
}

absl::StatusOr<std::string> Authority::CertificatePem() const { return PemOf(certificate_.get()); }

absl::StatusOr<std::string> Authority::KeyPem() const { return PemOf(key_.get()); }

absl::StatusOr<std::string> Authority::SignEs256(absl::string_view text) const {
  if (!IsP256(key_.get()))
    return absl::InvalidArgumentError("the authority's key is not of ECDSA P-256, which alone signs tokens");
  const std::unique_ptr<EVP_MD_CTX, OpensslFree<EVP_MD_CTX_free>> context(EVP_MD_CTX_new());
  const auto* data = reinterpret_cast<const unsigned char*>(text.data());
  size_t size = 0;
  if (EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, key_.get()) != 1 ||
      EVP_DigestSign(context.get(), nullptr, &size, data, text.size()) != 1) {
    return OpensslError("cannot sign");
  }
  std::vector<unsigned char> der(size);
  if (EVP_DigestSign(context.get(), der.data(), &size, data, text.size()) != 1) return OpensslError("cannot sign");
  const unsigned char* at = der.data();
  const std::unique_ptr<ECDSA_SIG, OpensslFree<ECDSA_SIG_free>> numbers(
      d2i_ECDSA_SIG(nullptr, &at, static_cast<long>(size)));
  unsigned char raw[2 * kP256Bytes];
  if (numbers == nullptr || BN_bn2binpad(ECDSA_SIG_get0_r(numbers.get()), raw, kP256Bytes) != kP256Bytes ||
      BN_bn2binpad(ECDSA_SIG_get0_s(numbers.get()), raw + kP256Bytes, kP256Bytes) != kP256Bytes) {
    return OpensslError("cannot write a signature");
  }
  return std::string(reinterpret_cast<const char*>(raw), sizeof(raw));
}

std::time_t Authority::not_after() const { return TimeOf(X509_get0_notAfter(certificate_.get())); }

absl::StatusOr<std::string> Authority::Issue(const CertificateRequest& request) const {
  const Principal& principal = request.principal;
  if (absl::Status status = CheckPrincipal(principal); !status.ok()) return status;
  const bool is_server = principal.role == Role::kServer;
  if (!is_server && !request.hosts.empty())
    return absl::InvalidArgumentError(absl::StrCat("host: a ", RoleName(principal.role), " has none, a server has"));
  std::string names = absl::StrCat("URI:", SpiffeUri(principal));
  for (const std::string& host : request.hosts) {
    if (absl::Status status = CheckHost(host); !status.ok()) return status;
    absl::StrAppend(&names, IsIpAddress(host) ? ",IP:" : ",DNS:", host);
  }
  Validity validity = request.validity;
  validity.not_after = std::min(validity.not_after, not_after());

  const KeyPointer key = NewKey();
  if (key == nullptr) return OpensslError("cannot make a key");
  const CertificatePointer certificate = Unsigned(validity, key.get(), principal.project, principal.name);
  if (certificate == nullptr) return OpensslError("cannot make a certificate");
  // A coordinator is a client as well: of itself, when it looks whether it answers.
  absl::Status status = Sign({{NID_basic_constraints, "critical,CA:FALSE"},
                              {NID_key_usage, "critical,digitalSignature"},
                              {NID_ext_key_usage, is_server ? "serverAuth,clientAuth" : "clientAuth"},
                              {NID_subject_key_identifier, "hash"},
                              {NID_authority_key_identifier, "keyid:always"},
                              {NID_subject_alt_name, names}},
                             certificate_.get(), key_.get(), certificate.get());
  if (!status.ok()) return status;
  const absl::StatusOr<std::string> key_pem = PemOf(key.get());
  if (!key_pem.ok()) return key_pem.status();
  const absl::StatusOr<std::string> certificate_pem = PemOf(certificate.get());
  if (!certificate_pem.ok()) return certificate_pem.status();
  return absl::StrCat(*key_pem, *certificate_pem);
}

bool IsP256(const EVP_PKEY* key) {
  char group[64] = "";
  return EVP_PKEY_get_base_id(key) == EVP_PKEY_EC &&
         EVP_PKEY_get_utf8_string_param(key, OSSL_PKEY_PARAM_GROUP_NAME, group, sizeof(group), nullptr) == 1 &&
         absl::string_view(group) == SN_X9_62_prime256v1;
}

bool IsSignedEs256(absl::string_view text, absl::string_view signature, EVP_PKEY* key) {
  if (signature.size() != 2 * kP256Bytes || !IsP256(key)) return false;
  const auto* raw = reinterpret_cast<const unsigned char*>(signature.data());
  const std::unique_ptr<ECDSA_SIG, OpensslFree<ECDSA_SIG_free>> numbers(ECDSA_SIG_new());
  // The signature owns both numbers.
  if (numbers == nullptr || ECDSA_SIG_set0(numbers.get(), BN_bin2bn(raw, kP256Bytes, nullptr),
                                           BN_bin2bn(raw + kP256Bytes, kP256Bytes, nullptr)) != 1) {
    return false;
  }
  unsigned char* der = nullptr;
  const int size = i2d_ECDSA_SIG(numbers.get(), &der);
  const std::unique_ptr<unsigned char, OpensslFree<FreeBytes>> free_der(der);
  const std::unique_ptr<EVP_MD_CTX, OpensslFree<EVP_MD_CTX_free>> context(EVP_MD_CTX_new());
  const bool is_signed = size > 0 && EVP_DigestVerifyInit(context.get(), nullptr, EVP_sha256(), nullptr, key) == 1 &&
                         EVP_DigestVerify(context.get(), der, static_cast<size_t>(size),
                                          reinterpret_cast<const unsigned char*>(text.data()), text.size()) == 1;
  ERR_clear_error();
  return is_signed;
}

std::vector<std::string> HostsOfPem(const std::string& pem) {
  std::vector<std::string> hosts;
  const CertificatePointer certificate = ReadCertificate(pem);
  if (certificate == nullptr) return hosts;
  const NamesPointer names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    const auto* data = name->type == GEN_DNS || name->type == GEN_IPADD ? ASN1_STRING_get0_data(name->d.ia5) : nullptr;
    if (data == nullptr) continue;
    const int size = ASN1_STRING_length(name->d.ia5);
    if (name->type == GEN_DNS) {
      hosts.emplace_back(reinterpret_cast<const char*>(data), static_cast<size_t>(size));
    } else {
      char text[INET6_ADDRSTRLEN];
      if (inet_ntop(size == sizeof(in_addr) ? AF_INET : AF_INET6, data, text, sizeof(text)) != nullptr)
        hosts.emplace_back(text);
    }
  }
  return hosts;
}

std::time_t NotAfterOfPem(const std::string& pem) {
  const CertificatePointer certificate = ReadCertificate(pem);
  return certificate == nullptr ? 0 : TimeOf(X509_get0_notAfter(certificate.get()));
}

}  // namespace tacc::identity
