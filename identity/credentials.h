// TLS for gRPC, from a folder (folder.h): 1.2 or newer, the server with a certificate, the client with one or with a
// token in each call. Files that are replaced hold for connections from a second or two later on, without a restart; a
// token for the next call.
#ifndef TACC_IDENTITY_CREDENTIALS_H_
#define TACC_IDENTITY_CREDENTIALS_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "identity/access.h"
#include "identity/authenticator.h"

namespace tacc::identity {

// How a client connects.
struct Tls {
  std::string folder;       // Empty: without TLS.
  std::string server_name;  // That the server's certificate must have; empty: the address's host.
  std::string token_file;   // Whose token each call shows; of the folder only ca.crt is used then. Empty: none.
};

// For a server that checks each call by the table of access.h. The folder must pass CheckFolder. A client need not show
// a certificate; one that it shows is of an authority in ca.crt, or it is not talked to.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const std::string& folder,
                                                               std::shared_ptr<Authenticator> authenticator,
                                                               AccessHooks hooks);

// A channel to HOST:PORT. It never talks to a server that shows no certificate of an authority in the folder's ca.crt.
// Calls fail with Unavailable where the token's file is of no use; TokenProblem has the reason of their message.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const Tls& tls,
                                           grpc::ChannelArguments arguments);

// Why a call of MakeChannel found no token, of gRPC's message for it; empty: it failed for another reason.
std::string TokenProblem(absl::string_view message);

}  // namespace tacc::identity

#endif  // TACC_IDENTITY_CREDENTIALS_H_
