// Bearer tokens, beside certificates: JSON Web Tokens (RFC 7519), signed by the service's authority, for an hour or so.
// Nothing is kept of them: who has the authority's certificate can check one.
//
// Their header is one constant text, ES256, which is compared and not read: a token can choose neither another
// algorithm nor a key. Claims: iss, aud, sub (spiffe://tacc/ROLE/NAME), project of a user, iat, nbf, exp, jti.
#ifndef TACC_IDENTITY_TOKEN_H_
#define TACC_IDENTITY_TOKEN_H_

#include <ctime>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "identity/authority.h"
#include "identity/openssl_pointer.h"
#include "identity/principal.h"

namespace tacc::identity {

inline constexpr char kTokenIssuer[] = "spiffe://tacc";
inline constexpr char kTokenAudience[] = "tacc-coordinator";
inline constexpr int kMaxTokenHours = 24;
// gRPC itself refuses a call whose metadata has 8 KiB.
inline constexpr size_t kMaxTokenBytes = 4 << 10;

// InvalidArgument, in words without the token: it has more bytes, or others than the letters, digits and signs of a
// bearer token (RFC 6750, 2.1). Two tokens are none.
absl::Status CheckToken(absl::string_view token);

// Unavailable: whom a token is of cannot be found out now. Whether a message is of such a status.
absl::Status TokenUnchecked(absl::string_view why);
bool IsTokenUnchecked(absl::string_view message);

// Whether a token may carry the role: a worker's and a server's keys never leave their machines.
bool MayHaveToken(Role role);

// From a few minutes before `now`, for clocks that are behind, to `hours` behind it. InvalidArgument: the principal or
// its role can have none, or the hours are not 1 to kMaxTokenHours.
absl::StatusOr<std::string> IssueToken(const Authority& authority, const Principal& principal, int hours,
                                       std::time_t now);

// The keys that sign tokens: of each authority among certificates in PEM that is valid `now` and has a P-256 key.
std::vector<KeyPointer> TokenKeys(const std::string& authorities, std::time_t now);

// Whether it says that it is one of ours, rather than another service's.
bool IsOurToken(absl::string_view token);

// Who it is of. Unauthenticated, in words without the token: none of the keys has signed it, it is not valid `now`, or
// it is for another service.
absl::StatusOr<Principal> ReadToken(absl::string_view token, absl::Span<const KeyPointer> keys, std::time_t now);

}  // namespace tacc::identity

#endif  // TACC_IDENTITY_TOKEN_H_
