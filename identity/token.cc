#include "identity/token.h"

#include <openssl/rand.h>

#include <algorithm>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "json/parse_json.h"

namespace tacc::identity {
namespace {

constexpr std::time_t kHourSeconds = 60 * 60;
constexpr std::time_t kClockSkewSeconds = 5 * 60;
constexpr int kIdBytes = 16;
// {"alg":"ES256","typ":"JWT"}
constexpr absl::string_view kHeader = "eyJhbGciOiJFUzI1NiIsInR5cCI6IkpXVCJ9.";
constexpr absl::string_view kUnchecked = "the token cannot be checked now: ";  // Clients know it by that.

absl::Status Refused(absl::string_view why) { return absl::UnauthenticatedError(absl::StrCat("the token ", why)); }

// Only the one text that stands for those bytes: Abseil's reader takes padding, spaces and stray bits as well.
std::optional<std::string> DecodeBase64Url(absl::string_view text) {
  std::string bytes;
  if (!absl::WebSafeBase64Unescape(text, &bytes) || absl::WebSafeBase64Escape(bytes) != text) return std::nullopt;
  return bytes;
}

std::string TextOf(const nlohmann::json& claims, const char* name) {
  const auto found = claims.find(name);
  return found != claims.end() && found->is_string() ? found->get<std::string>() : "";
}

// Seconds since the epoch.
std::optional<std::time_t> TimeOf(const nlohmann::json& claims, const char* name) {
  const auto found = claims.find(name);
  if (found == claims.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<std::time_t>();
}

absl::Status CheckTimes(const nlohmann::json& claims, std::time_t now) {
  const std::optional<std::time_t> issued = TimeOf(claims, "iat"), from = TimeOf(claims, "nbf"),
                                   until = TimeOf(claims, "exp");
  if (!issued.has_value() || !from.has_value() || !until.has_value())
    return Refused("does not say when it is valid (iat, nbf, exp)");
  if (now >= *until) return Refused("has expired; ask for another one");
  if (now < *from) return Refused("is not valid yet: is a clock wrong?");
  if (*issued > *until || *issued < *until - kMaxTokenHours * kHourSeconds)  // Whatever `iat` is: `exp` is after now.
    return Refused(absl::StrCat("is valid for more than ", kMaxTokenHours, " hours"));
  return absl::OkStatus();
}

absl::StatusOr<Principal> SubjectOf(const nlohmann::json& claims) {
  absl::StatusOr<Principal> principal = ParseSpiffeUri(TextOf(claims, "sub"));
  if (!principal.ok()) return Refused(absl::StrCat("names nobody here: ", principal.status().message()));
  if (!MayHaveToken(principal->role))
    return Refused(absl::StrCat("is of a ", RoleName(principal->role), ", which needs a certificate"));
  principal->project = TextOf(claims, "project");
  if (absl::Status status = CheckPrincipal(*principal); !status.ok())
    return Refused(absl::StrCat("names nobody here: ", status.message()));
  return principal;
}

}  // namespace

absl::Status CheckToken(absl::string_view token) {
  if (token.empty()) return absl::InvalidArgumentError("the token is empty");
  if (token.size() > kMaxTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token has ", token.size(), " bytes, and may have ", kMaxTokenBytes));
  }
  const bool is_token = std::all_of(token.begin(), token.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("-._~+/=", c);
  });
  if (!is_token) return absl::InvalidArgumentError("the token has characters that none has");
  return absl::OkStatus();
}

absl::Status TokenUnchecked(absl::string_view why) { return absl::UnavailableError(absl::StrCat(kUnchecked, why)); }

bool IsTokenUnchecked(absl::string_view message) { return absl::StartsWith(message, kUnchecked); }

bool MayHaveToken(Role role) { return role != Role::kWorker && role != Role::kServer; }

absl::StatusOr<std::string> IssueToken(const Authority& authority, const Principal& principal, int hours,
                                       std::time_t now) {
  if (absl::Status status = CheckPrincipal(principal); !status.ok()) return status;
  if (!MayHaveToken(principal.role)) {
    return absl::InvalidArgumentError(
        absl::StrCat("role: a ", RoleName(principal.role), " has a certificate, and no token"));
  }
  if (hours < 1 || hours > kMaxTokenHours)
    return absl::InvalidArgumentError(absl::StrCat("hours = ", hours, " is not 1 to ", kMaxTokenHours));
  unsigned char id[kIdBytes];
  if (RAND_bytes(id, sizeof(id)) != 1) return OpensslError("cannot make an id");
  nlohmann::json claims = {{"iss", kTokenIssuer},
                           {"aud", kTokenAudience},
                           {"sub", SpiffeUri(principal)},
                           {"iat", now},
                           {"nbf", now - kClockSkewSeconds},
                           {"exp", now + hours * kHourSeconds},
                           {"jti", absl::BytesToHexString({reinterpret_cast<const char*>(id), sizeof(id)})}};
  if (!principal.project.empty()) claims["project"] = principal.project;
  const std::string text = absl::StrCat(kHeader, absl::WebSafeBase64Escape(claims.dump()));
  const absl::StatusOr<std::string> signature = authority.SignEs256(text);
  if (!signature.ok()) return signature.status();
  return absl::StrCat(text, ".", absl::WebSafeBase64Escape(*signature));
}

std::vector<KeyPointer> TokenKeys(const std::string& authorities, std::time_t now) {
  std::vector<KeyPointer> keys;
  const BioPointer in(BIO_new_mem_buf(authorities.data(), static_cast<int>(authorities.size())));
  while (true) {
    const CertificatePointer authority(PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr));
    if (authority == nullptr) break;
    KeyPointer key(X509_get_pubkey(authority.get()));
    const bool is_valid = X509_cmp_time(X509_get0_notBefore(authority.get()), &now) == -1 &&
                          X509_cmp_time(X509_get0_notAfter(authority.get()), &now) == 1;
    if (is_valid && key != nullptr && IsP256(key.get()) && X509_check_ca(authority.get()) == 1)
      keys.push_back(std::move(key));
  }
  ERR_clear_error();
  return keys;
}

bool IsOurToken(absl::string_view token) { return absl::StartsWith(token, kHeader); }

absl::StatusOr<Principal> ReadToken(absl::string_view token, absl::Span<const KeyPointer> keys, std::time_t now) {
  if (!IsOurToken(token)) return Refused("is none of this service's: its header is not that of `init token`");
  const size_t dot = token.rfind('.');
  const absl::string_view text = token.substr(0, dot);
  const std::optional<std::string> signature = DecodeBase64Url(token.substr(dot + 1));
  const std::optional<std::string> payload = DecodeBase64Url(text.substr(std::min(text.size(), kHeader.size())));
  if (text.size() <= kHeader.size() || !signature.has_value() || !payload.has_value())
    return Refused("is no JSON Web Token of three parts");
  const bool is_signed = std::any_of(keys.begin(), keys.end(),
                                     [&](const KeyPointer& key) { return IsSignedEs256(text, *signature, key.get()); });
  if (!is_signed) return Refused("was signed by none of the authorities in the coordinator's ca.crt, or was altered");
  const nlohmann::json claims = ParseJson(*payload);
  if (!claims.is_object()) return Refused("has no claims");
  if (TextOf(claims, "iss") != kTokenIssuer || TextOf(claims, "aud") != kTokenAudience)
    return Refused(absl::StrCat("is for another service: its aud is not ", kTokenAudience));
  if (absl::Status status = CheckTimes(claims, now); !status.ok()) return status;
  return SubjectOf(claims);
}

}  // namespace tacc::identity
