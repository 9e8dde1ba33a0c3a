// Who makes a call: what a certificate or a token of ours says of its holder.
#ifndef TACC_IDENTITY_PRINCIPAL_H_
#define TACC_IDENTITY_PRINCIPAL_H_

#include <ctime>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tacc::identity {

// What a principal may do; access.h has the table.
enum class Role { kAdmin, kUser, kViewer, kWorker, kMetrics, kServer };
inline constexpr Role kRoles[] = {Role::kAdmin,  Role::kUser,    Role::kViewer,
                                  Role::kWorker, Role::kMetrics, Role::kServer};

// As in a certificate: "admin".
absl::string_view RoleName(Role role);
std::optional<Role> FindRole(absl::string_view name);

struct Principal {
  Role role = Role::kViewer;
  std::string name;
  std::string project;  // Of a user; empty: of all others.
};

// "user alice of project vision", "worker host-a".
std::string Describe(const Principal& principal);

// InvalidArgument, unless `name` is at most 63 lower-case letters, digits, dashes and underscores, of which the first
// is a letter or a digit. `what` begins the message.
absl::Status CheckName(absl::string_view what, absl::string_view name);

// InvalidArgument, unless its name is one, and it has a project exactly where it is a user.
absl::Status CheckPrincipal(const Principal& principal);

// Whether it is the worker of that name: a worker NAME is NAME and, of its devices, NAME.ANYTHING.
bool IsWorker(const Principal& principal, absl::string_view worker);

// The URI by which a certificate or a token names its holder: spiffe://tacc/ROLE/NAME.
std::string SpiffeUri(const Principal& principal);
// Of such a URI, without a project. InvalidArgument: it is none.
absl::StatusOr<Principal> ParseSpiffeUri(absl::string_view uri);

// The holder of a certificate (PEM) whose chain and key TLS has verified: exactly one URI among its subject alternative
// names, spiffe://tacc/ROLE/NAME; a user's project is the O of its subject. Unauthenticated: it names nobody, or `now`
// (seconds since the epoch) is not within its validity.
absl::StatusOr<Principal> ReadPrincipal(const std::string& pem, std::time_t now);

// The SHA-256 of a certificate (PEM), as `openssl x509 -fingerprint -sha256` has it, in lower case and without colons.
// Empty: it cannot be read.
std::string Fingerprint(const std::string& pem);

}  // namespace tacc::identity

#endif  // TACC_IDENTITY_PRINCIPAL_H_
