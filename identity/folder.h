// Certificates and keys on disk. Each principal has a folder of its own, which is all that it needs to take part and
// can be copied to where it is needed:
//   ca.crt   whom it trusts: certificates of authorities
//   tls.pem  its key and its certificate; one file, so that both are replaced at once. Who shows a token has none.
// They lie beside each other, and beside them `ca`, with the authority's ca.crt and ca.key. Folders are 0700, files
// 0600.
#ifndef TACC_IDENTITY_FOLDER_H_
#define TACC_IDENTITY_FOLDER_H_

#include <ctime>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "identity/authority.h"
#include "identity/principal.h"

namespace tacc::identity {

std::string AuthorityPath(const std::string& folder);
std::string IdentityPath(const std::string& folder);

// Who the folder is of. InvalidArgument: a file cannot be read or may be read by everybody, the key is not the
// certificate's, the authority has not signed it, or it is not valid now.
absl::StatusOr<Principal> CheckFolder(const std::string& folder, std::time_t now);

// The certificates in the folder's ca.crt, in PEM. InvalidArgument: it cannot be read, or has none.
absl::StatusOr<std::string> ReadAuthorities(const std::string& folder);

// The bearer token in a file, without the end of its line. InvalidArgument, in words without the token: it cannot be
// read, may be read by everybody, or holds none.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

// Names and addresses of hosts in the folder's certificate; none: it has none, or cannot be read.
std::vector<std::string> HostsOf(const std::string& folder);
// Until when it is valid, in seconds since the epoch; 0: it cannot be read.
std::time_t NotAfterOf(const std::string& folder);

// Makes `out`: an authority that is valid as `validity` says, and a folder for each request, by its name.
// AlreadyExists: `out` is there; nothing is changed. It is there whole, or not at all.
absl::Status MakeFolders(const std::string& out, const Validity& validity,
                         const std::vector<CertificateRequest>& requests);

// Adds a folder to `out`, which MakeFolders has made. AlreadyExists: that name has one.
absl::Status AddFolder(const std::string& out, const CertificateRequest& request);

// Gives the folder of that name in `out` a new key and certificate, for the same principal and hosts. Who it is of.
absl::StatusOr<Principal> RenewFolder(const std::string& out, const std::string& name, const Validity& validity);

// A bearer token of the authority in `out`, which is written nowhere. InvalidArgument: as IssueToken.
absl::StatusOr<std::string> MakeToken(const std::string& out, const Principal& principal, int hours, std::time_t now);

}  // namespace tacc::identity

#endif  // TACC_IDENTITY_FOLDER_H_
