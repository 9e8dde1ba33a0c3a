// Which role may call what: the one table, and the one place where it is looked up, before any handler.
#ifndef TACC_IDENTITY_ACCESS_H_
#define TACC_IDENTITY_ACCESS_H_

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "identity/authenticator.h"
#include "identity/principal.h"

namespace tacc::identity {

// A method of a service, and the roles that may call it. What a user sees and changes is of its project alone.
struct Access {
  absl::string_view method;  // "/tacc.v1.CoordinatorService/Get"
  uint32_t roles = 0;        // A bit for each, by its number.
  bool is_audited = true;    // It changes something: each call is in the audit log.
  absl::string_view what;    // For people.

  bool Allows(Role role) const { return (roles >> static_cast<int>(role) & 1U) != 0; }
};

absl::Span<const Access> AccessTable();
// nullptr: no role may call it.
const Access* FindAccess(absl::string_view method);

// OK, PermissionDenied, or Unimplemented: the table does not have the method.
absl::Status MayCall(const Principal& principal, absl::string_view method);

// Who makes a call, of a server with what is below: its token's holder or, where it has none, that of its connection's
// certificate, as that says now; Unauthenticated where that names nobody. Nothing for a connection without TLS: who may
// open one is the listener's matter, and may do all.
absl::StatusOr<std::optional<Principal>> PeerOf(const grpc::ServerContextBase& call);

// A call that was answered without its handler.
struct Refusal {
  std::optional<Principal> principal;  // Nothing: its certificate or token names nobody.
  std::string certificate;             // Its Fingerprint; gRPC says no address by then.
  std::string method;
  absl::Status status;
};

// What is beside the table. Called on gRPC's threads, and must not block.
struct AccessHooks {
  std::function<absl::Status(const Principal&)> admit;  // Of each call, whether the table allows it or not.
  std::function<void(const Refusal&)> refused;
};

// For the credentials of a server with TLS: lets each call pass that is admitted and that the table allows, and answers
// the others.
std::shared_ptr<grpc::AuthMetadataProcessor> MakeAccessCheck(std::shared_ptr<Authenticator> authenticator,
                                                             AccessHooks hooks);

// The last of such a server's interceptors, which is the first that sees what has come in: it takes the token out of a
// call's metadata and puts its holder there, for PeerOf. What gRPC's AuthContext has would be of all calls of a
// connection.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeTokenInterceptors(
    std::shared_ptr<Authenticator> authenticator);

}  // namespace tacc::identity

#endif  // TACC_IDENTITY_ACCESS_H_
