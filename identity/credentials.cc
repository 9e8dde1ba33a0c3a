#include "identity/credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "identity/folder.h"

namespace tacc::identity {
namespace {

// Between looks at the files.
constexpr unsigned kRefreshSeconds = 1;

// gRPC reads the key and the certificate one after the other, and reads again where a file was replaced meanwhile.
std::shared_ptr<grpc::experimental::CertificateProviderInterface> WatchFolder(const std::string& folder) {
  const std::string identity = IdentityPath(folder);
  return std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(identity, identity, AuthorityPath(folder),
                                                                              kRefreshSeconds);
}

// gRPC's words before those of a plugin.
constexpr absl::string_view kPluginFailed = "Getting metadata from plugin failed with error: ";

// Reads the file for each call, so that a new token needs no new channel.
class TokenOfFile : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenOfFile(std::string path) : path_(std::move(path)) {}

  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    const absl::StatusOr<std::string> token = ReadTokenFile(path_);
    if (!token.ok()) return {grpc::StatusCode::UNAVAILABLE, std::string(token.status().message())};
    metadata->emplace("authorization", absl::StrCat("Bearer ", *token));
    return grpc::Status::OK;
  }
  grpc::string DebugString() override { return absl::StrCat("a token in ", path_); }

 private:
  const std::string path_;
};

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const Tls& tls) {
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.watch_root_certs();
  options.set_verify_server_certs(true);
  options.set_certificate_verifier(std::make_shared<grpc::experimental::HostNameCertificateVerifier>());
  if (tls.token_file.empty()) {
    options.set_certificate_provider(WatchFolder(tls.folder));
    options.watch_identity_key_cert_pairs();
    return grpc::experimental::TlsCredentials(options);
  }
  options.set_certificate_provider(
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(AuthorityPath(tls.folder), kRefreshSeconds));
  return grpc::CompositeChannelCredentials(
      grpc::experimental::TlsCredentials(options),
      grpc::MetadataCredentialsFromPlugin(std::make_unique<TokenOfFile>(tls.token_file)));
}

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const std::string& folder,
                                                               std::shared_ptr<Authenticator> authenticator,
                                                               AccessHooks hooks) {
  grpc::experimental::TlsServerCredentialsOptions options(WatchFolder(folder));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  // Clients have no host names; who they are the access check reads.
  options.set_certificate_verifier(std::make_shared<grpc::experimental::NoOpCertificateVerifier>());
  options.set_check_call_host(false);
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::experimental::TlsServerCredentials(options);
  credentials->SetAuthMetadataProcessor(MakeAccessCheck(std::move(authenticator), std::move(hooks)));
  return credentials;
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const Tls& tls,
                                           grpc::ChannelArguments arguments) {
  if (tls.folder.empty()) return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  if (!tls.server_name.empty()) arguments.SetSslTargetNameOverride(tls.server_name);
  return grpc::CreateCustomChannel(address, MakeChannelCredentials(tls), arguments);
}

std::string TokenProblem(absl::string_view message) {
  return absl::ConsumePrefix(&message, kPluginFailed) ? std::string(message) : "";
}

}  // namespace tacc::identity
