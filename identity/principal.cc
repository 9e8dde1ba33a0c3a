#include "identity/principal.h"

#include <memory>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "identity/openssl_pointer.h"

namespace tacc::identity {
namespace {

constexpr char kTrustDomain[] = "spiffe://tacc/";
constexpr size_t kMaxNameBytes = 63;
constexpr size_t kMaxKnown = 1024;  // Certificates of about a kilobyte.
constexpr char kFirstCharacters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
constexpr char kCharacters[] = "abcdefghijklmnopqrstuvwxyz0123456789-_";

absl::Status Nobody(absl::string_view why) {
  return absl::UnauthenticatedError(absl::StrCat("the certificate names nobody here: ", why));
}

absl::string_view Text(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)), static_cast<size_t>(ASN1_STRING_length(text))};
}

// The only URI among the subject alternative names.
absl::StatusOr<std::string> OnlyUri(const X509* certificate) {
  int critical = 0;  // -2: there are several such extensions, for which OpenSSL gives none.
  const NamesPointer names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, &critical, nullptr)));
  std::string uri;
  int num_uris = 0;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    ++num_uris;
    uri = std::string(Text(name->d.uniformResourceIdentifier));
  }
  if (num_uris != 1) return Nobody(absl::StrCat("it has ", num_uris, " URIs, and must have one"));
  return uri;
}

// The only O of the subject.
absl::StatusOr<std::string> OnlyOrganization(X509* certificate) {
  X509_NAME* subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_organizationName, -1);
  if (at < 0 || X509_NAME_get_index_by_NID(subject, NID_organizationName, at) >= 0)
    return Nobody("a user's has its project as the one O of its subject");
  return std::string(Text(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at))));
}

absl::StatusOr<Principal> HolderOf(X509* certificate) {
  const absl::StatusOr<std::string> uri = OnlyUri(certificate);
  if (!uri.ok()) return uri.status();
  absl::StatusOr<Principal> principal = ParseSpiffeUri(*uri);
  if (!principal.ok()) return Nobody(principal.status().message());
  if (principal->role != Role::kUser) return principal;
  absl::StatusOr<std::string> project = OnlyOrganization(certificate);
  if (!project.ok()) return project.status();
  if (!CheckName("", *project).ok()) return Nobody("the O of its subject is no name of a project");
  principal->project = *std::move(project);
  return principal;
}

std::time_t SecondsOf(const ASN1_TIME* time) {
  std::tm parts{};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? timegm(&parts) : 0;
}

// What a certificate says, whatever the time is.
struct Facts {
  std::time_t not_before = 0, not_after = 0;
  absl::StatusOr<Principal> holder;
  std::string fingerprint;
};

std::shared_ptr<const Facts> ReadFacts(const std::string& pem) {
  const CertificatePointer certificate = ReadCertificate(pem);
  if (certificate == nullptr) return nullptr;
  if (SecondsOf(X509_get0_notBefore(certificate.get())) == 0) return nullptr;  // It cannot be read.
  auto facts =
      std::make_shared<Facts>(Facts{SecondsOf(X509_get0_notBefore(certificate.get())),
                                    SecondsOf(X509_get0_notAfter(certificate.get())), HolderOf(certificate.get()), ""});
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (X509_digest(certificate.get(), EVP_sha256(), digest, &size) == 1)
    facts->fingerprint = absl::BytesToHexString({reinterpret_cast<const char*>(digest), size});
  return facts;
}

// The same, of the last that were read: each call of a connection asks for its certificate several times, and OpenSSL
// takes a part of a millisecond to read one. Null: it cannot be read.
std::shared_ptr<const Facts> FactsOf(const std::string& pem) {
  static std::mutex mutex;
  static auto* const known = new absl::flat_hash_map<std::string, std::shared_ptr<const Facts>>();
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (const auto found = known->find(pem); found != known->end()) return found->second;
  }
  std::shared_ptr<const Facts> facts = ReadFacts(pem);
  std::lock_guard<std::mutex> lock(mutex);
  if (known->size() >= kMaxKnown) known->clear();
  (*known)[pem] = facts;
  return facts;
}

}  // namespace

CertificatePointer ReadCertificate(const std::string& pem) {
  const BioPointer in(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  CertificatePointer certificate(PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return certificate;
}

KeyPointer ReadKey(const std::string& pem) {
  const BioPointer in(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  // No password is asked for: a key that has one cannot be read.
  KeyPointer key(PEM_read_bio_PrivateKey(in.get(), nullptr, [](char*, int, int, void*) { return -1; }, nullptr));
  ERR_clear_error();
  return key;
}

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kAdmin:
      return "admin";
    case Role::kUser:
      return "user";
    case Role::kViewer:
      return "viewer";
    case Role::kWorker:
      return "worker";
    case Role::kMetrics:
      return "metrics";
    case Role::kServer:
      return "server";
  }
  return "";
}

std::optional<Role> FindRole(absl::string_view name) {
  for (const Role role : kRoles) {
    if (RoleName(role) == name) return role;
  }
  return std::nullopt;
}

std::string Describe(const Principal& principal) {
  return absl::StrCat(RoleName(principal.role), " ", principal.name, principal.project.empty() ? "" : " of project ",
                      principal.project);
}

absl::Status CheckName(absl::string_view what, absl::string_view name) {
  if (!name.empty() && name.size() <= kMaxNameBytes && name.find_first_not_of(kCharacters) == name.npos &&
      absl::string_view(kFirstCharacters).find(name[0]) != absl::string_view::npos) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, " = \"", name.substr(0, 2 * kMaxNameBytes), "\": a name has at most ", kMaxNameBytes,
                   " lower-case letters, digits, dashes and underscores, and begins with a letter or a digit"));
}

absl::Status CheckPrincipal(const Principal& principal) {
  if (absl::Status status = CheckName("name", principal.name); !status.ok()) return status;
  if (principal.role == Role::kUser) return CheckName("project", principal.project);
  if (principal.project.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("project: a ", RoleName(principal.role), " has none, a user has"));
}

bool IsWorker(const Principal& principal, absl::string_view worker) {
  return principal.role == Role::kWorker && absl::ConsumePrefix(&worker, principal.name) &&
         (worker.empty() || worker[0] == '.');
}

std::string SpiffeUri(const Principal& principal) {
  return absl::StrCat(kTrustDomain, RoleName(principal.role), "/", principal.name);
}

absl::StatusOr<Principal> ParseSpiffeUri(absl::string_view uri) {
  if (!absl::ConsumePrefix(&uri, kTrustDomain))
    return absl::InvalidArgumentError("its URI does not begin with spiffe://tacc/");
  const size_t slash = uri.find('/');
  const std::optional<Role> role = FindRole(uri.substr(0, slash));
  if (slash == uri.npos || !role.has_value())
    return absl::InvalidArgumentError("its URI is not spiffe://tacc/ROLE/NAME");
  const absl::string_view name = uri.substr(slash + 1);
  if (!CheckName("", name).ok()) return absl::InvalidArgumentError("the NAME in its URI is none");
  return Principal{*role, std::string(name), ""};
}

absl::StatusOr<Principal> ReadPrincipal(const std::string& pem, std::time_t now) {
  const std::shared_ptr<const Facts> facts = FactsOf(pem);
  if (facts == nullptr) return Nobody("it cannot be read");
  if (now < facts->not_before) return absl::UnauthenticatedError("the certificate is not valid yet: is a clock wrong?");
  if (now >= facts->not_after) return absl::UnauthenticatedError("the certificate has expired; make another one");
  return facts->holder;
}

std::string Fingerprint(const std::string& pem) {
  const std::shared_ptr<const Facts> facts = FactsOf(pem);
  return facts == nullptr ? "" : facts->fingerprint;
}

}  // namespace tacc::identity
