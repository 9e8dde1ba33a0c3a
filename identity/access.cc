#include "identity/access.h"

#include <grpc/grpc_security_constants.h>

#include <ctime>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace tacc::identity {
namespace {

template <typename... Roles>
constexpr uint32_t Of(Roles... roles) {
  return ((1U << static_cast<int>(roles)) | ...);
}

constexpr uint32_t kAdmins = Of(Role::kAdmin);
constexpr uint32_t kUsers = Of(Role::kAdmin, Role::kUser);
constexpr uint32_t kReaders = Of(Role::kAdmin, Role::kUser, Role::kViewer);
constexpr uint32_t kWorkers = Of(Role::kWorker);
constexpr uint32_t kAll = Of(Role::kAdmin, Role::kUser, Role::kViewer, Role::kWorker, Role::kMetrics, Role::kServer);
// A coordinator looks whether it decides by asking itself for a job.
constexpr uint32_t kReadersAndServer = kReaders | Of(Role::kServer);

constexpr bool kAudited = true, kSilent = false;

constexpr Access kTable[] = {
    {"/tacc.v1.CoordinatorService/Submit", kUsers, kAudited, "submit a job, which belongs to the user's project"},
    {"/tacc.v1.CoordinatorService/Cancel", kUsers, kAudited, "end a job"},
    {"/tacc.v1.CoordinatorService/Get", kReadersAndServer, kSilent, "see a job"},
    {"/tacc.v1.CoordinatorService/List", kReaders, kSilent, "see jobs"},
    {"/tacc.v1.CoordinatorService/Watch", kReaders, kSilent, "follow a job's events and metrics"},
    {"/tacc.v1.CoordinatorService/Logs", kReaders, kSilent, "read a job's logs"},
    {"/tacc.v1.CoordinatorService/GetEndpoints", kUsers, kSilent,
     "get the addresses and the token by which a client drives a job"},
    {"/tacc.v1.CoordinatorService/ReadJob", kReaders, kSilent, "have a job file read and checked"},
    {"/tacc.v1.CoordinatorService/Plan", kUsers, kSilent, "have a job planned, which takes the coordinator's CPUs"},
    {"/tacc.v1.CoordinatorService/ListWorkers", kReaders, kSilent, "see workers"},
    {"/tacc.v1.CoordinatorService/PutFolder", kUsers, kAudited, "upload a folder"},
    {"/tacc.v1.CoordinatorService/PutFile", kUsers, kAudited, "upload a file"},
    {"/tacc.v1.CoordinatorService/GetVersion", kAll, kSilent, "ask for the version, which clients do first"},
    {"/tacc.v1.CoordinatorService/Shutdown", kAdmins, kAudited, "end the coordinator"},
    {"/tacc.v1.WorkerService/Attach", kWorkers, kAudited, "be a worker, by the name in its certificate"},
    {"/tacc.v1.WorkerService/GetUpload", kWorkers, kSilent, "read the list of an uploaded folder"},
    {"/tacc.v1.WorkerService/GetFile", kWorkers, kSilent, "read an uploaded file"},
    {"/grpc.health.v1.Health/Check", kAll, kSilent, "ask whether it serves"},
    {"/grpc.health.v1.Health/Watch", kAll, kSilent, "follow whether it serves"},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", kAdmins, kSilent,
     "ask which services there are"},
    {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", kAdmins, kSilent,
     "ask the same, by the name that newer releases of gRPC have as well"},
};

std::string NamesOf(uint32_t roles) {
  std::string names;
  for (const Role role : kRoles) {
    if ((roles >> static_cast<int>(role) & 1U) != 0) absl::StrAppend(&names, names.empty() ? "" : ", ", RoleName(role));
  }
  return names;
}

constexpr char kNobody[] = "the call has neither a client's certificate nor a token";
constexpr char kAuthorization[] = "authorization";
// Of the metadata that handlers see: "spiffe://tacc/user/alice vision", of a call's token. No header of HTTP/2 has a
// space in its name, and the access check refuses one that had.
constexpr char kHolder[] = "token holder";

absl::string_view View(const grpc::string_ref& text) { return {text.data(), text.size()}; }

bool IsTls(const grpc::AuthContext& connection) {
  const std::vector<grpc::string_ref> transports =
      connection.FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  return transports.size() == 1 &&
         (transports[0] == GRPC_TLS_TRANSPORT_SECURITY_TYPE || transports[0] == GRPC_SSL_TRANSPORT_SECURITY_TYPE);
}

// In PEM; empty: the connection shows none.
std::string CertificateOf(const grpc::AuthContext& connection) {
  const std::vector<grpc::string_ref> certificates = connection.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return certificates.empty() ? "" : std::string(View(certificates[0]));
}

// Whose certificate a connection by TLS has shown; nothing: it has shown none.
absl::StatusOr<std::optional<Principal>> CertificateHolder(const grpc::AuthContext& connection) {
  const std::string certificate = CertificateOf(connection);
  if (certificate.empty()) return std::nullopt;
  absl::StatusOr<Principal> principal = ReadPrincipal(certificate, std::time(nullptr));
  if (!principal.ok()) return principal.status();
  return *std::move(principal);
}

class AccessCheck : public grpc::AuthMetadataProcessor {
 public:
  AccessCheck(std::shared_ptr<Authenticator> authenticator, AccessHooks hooks)
      : authenticator_(std::move(authenticator)), hooks_(std::move(hooks)) {}

  // Otherwise short enough for the thread that has read the call.
  bool IsBlocking() const override { return authenticator_->MayWait(); }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* connection, OutputMetadata*,
                       OutputMetadata*) override {
    const auto path = metadata.find(":path");
    const std::string method = path == metadata.end() ? "" : std::string(View(path->second));
    const absl::StatusOr<Principal> caller = CallerOf(metadata, *connection);
    const absl::Status status = Check(caller, method);
    if (!status.ok()) {
      const std::string certificate = CertificateOf(*connection);
      hooks_.refused({caller.ok() ? std::make_optional(*caller) : std::nullopt,
                      certificate.empty() ? "" : Fingerprint(certificate), method, status});
    }
    return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
  }

 private:
  absl::StatusOr<Principal> CallerOf(const InputMetadata& metadata, const grpc::AuthContext& connection) const {
    if (metadata.count(kHolder) != 0) return absl::UnauthenticatedError("the call names its own holder");
    const absl::StatusOr<std::optional<Principal>> certified = CertificateHolder(connection);
    if (!certified.ok()) return certified.status();
    const auto [first, last] = metadata.equal_range(kAuthorization);
    if (first == last) {
      if (certified->has_value()) return **certified;
      return absl::UnauthenticatedError(kNobody);
    }
    if (std::next(first) != last) return absl::UnauthenticatedError("the call has several authorization headers");
    return authenticator_->Authenticate(View(first->second));
  }

  absl::Status Check(const absl::StatusOr<Principal>& caller, const std::string& method) const {
    if (!caller.ok()) return caller.status();
    if (method.empty()) return absl::UnauthenticatedError("the call names no method");
    if (absl::Status status = hooks_.admit(*caller); !status.ok()) return status;
    return MayCall(*caller, method);
  }

  const std::shared_ptr<Authenticator> authenticator_;
  const AccessHooks hooks_;
};

class TokenInterceptor : public grpc::experimental::Interceptor {
 public:
  explicit TokenInterceptor(std::shared_ptr<Authenticator> authenticator) : authenticator_(std::move(authenticator)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      ReplaceToken(methods->GetRecvInitialMetadata());
    }
    methods->Proceed();
  }

 private:
  void ReplaceToken(std::multimap<grpc::string_ref, grpc::string_ref>* metadata) {
    const auto header = metadata->find(kAuthorization);
    if (header == metadata->end()) return;
    const absl::StatusOr<Principal> holder = authenticator_->Recall(View(header->second));
    // One that has expired since the access check names nobody.
    if (holder.ok()) holder_ = absl::StrCat(SpiffeUri(*holder), " ", holder->project);
    metadata->erase(kAuthorization);
    metadata->emplace(kHolder, holder_);
  }

  const std::shared_ptr<Authenticator> authenticator_;
  std::string holder_;  // As long as the call's metadata, which refers to it.
};

class TokenInterceptors : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit TokenInterceptors(std::shared_ptr<Authenticator> authenticator) : authenticator_(std::move(authenticator)) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo*) override {
    return new TokenInterceptor(authenticator_);
  }

 private:
  const std::shared_ptr<Authenticator> authenticator_;
};

absl::StatusOr<Principal> TokenHolder(absl::string_view text) {
  const size_t space = text.find(' ');
  absl::StatusOr<Principal> principal = ParseSpiffeUri(text.substr(0, space));
  if (!principal.ok()) return absl::UnauthenticatedError("the token has expired; ask for another one");
  principal->project = std::string(text.substr(space + 1));
  return principal;
}

}  // namespace

absl::Span<const Access> AccessTable() { return kTable; }

const Access* FindAccess(absl::string_view method) {
  for (const Access& access : kTable) {
    if (access.method == method) return &access;
  }
  return nullptr;
}

absl::Status MayCall(const Principal& principal, absl::string_view method) {
  const Access* access = FindAccess(method);
  if (access == nullptr)
    return absl::UnimplementedError(absl::StrCat("there is no method ", method.substr(0, 200), " here"));
  if (access->Allows(principal.role)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(Describe(principal), " may not ", access->what, " (",
                                                  method.substr(method.rfind('/') + 1), "): that may only ",
                                                  NamesOf(access->roles)));
}

absl::StatusOr<std::optional<Principal>> PeerOf(const grpc::ServerContextBase& call) {
  const std::shared_ptr<const grpc::AuthContext> connection = call.auth_context();
  if (!IsTls(*connection)) return std::nullopt;
  if (const auto holder = call.client_metadata().find(kHolder); holder != call.client_metadata().end()) {
    absl::StatusOr<Principal> principal = TokenHolder(View(holder->second));
    if (!principal.ok()) return principal.status();
    return *std::move(principal);
  }
  absl::StatusOr<std::optional<Principal>> certified = CertificateHolder(*connection);
  if (certified.ok() && !certified->has_value()) return absl::UnauthenticatedError(kNobody);
  return certified;
}

std::shared_ptr<grpc::AuthMetadataProcessor> MakeAccessCheck(std::shared_ptr<Authenticator> authenticator,
                                                             AccessHooks hooks) {
  return std::make_shared<AccessCheck>(std::move(authenticator), std::move(hooks));
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeTokenInterceptors(
    std::shared_ptr<Authenticator> authenticator) {
  return std::make_unique<TokenInterceptors>(std::move(authenticator));
}

}  // namespace tacc::identity
