#include "coordinator/service/audit.h"

#include <grpcpp/server_context.h>
#include <grpcpp/support/interceptor.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "machine/clock.h"
#include "tacc/v1/coordinator.pb.h"
#include "tacc/v1/worker.pb.h"

namespace tacc::coordinator {
namespace {

using grpc::experimental::InterceptionHookPoints;

constexpr absl::string_view kSubmit = "/tacc.v1.CoordinatorService/Submit";
constexpr absl::string_view kCancel = "/tacc.v1.CoordinatorService/Cancel";
constexpr absl::string_view kPutFolder = "/tacc.v1.CoordinatorService/PutFolder";
constexpr absl::string_view kPutFile = "/tacc.v1.CoordinatorService/PutFile";
constexpr absl::string_view kAttach = "/tacc.v1.WorkerService/Attach";
// Of calls that are refused before a handler so many are written at once, and then so many a second.
constexpr double kMaxRefusalsAtOnce = 100;
constexpr double kRefusalsPerSecond = 1;
constexpr double kRefusalsOfStrangersPerSecond = 1.0 / 60;

// What a message says of what the call is about. `message` is of the method's type.
void Note(absl::string_view method, const void* message, AuditEntry* entry) {
  if (method == kSubmit) {
    const auto& request = *static_cast<const v1::SubmitRequest*>(message);
    entry->request_id = request.request_id();
    entry->subject = request.spec().name();
  } else if (method == kCancel) {
    entry->subject = static_cast<const v1::CancelRequest*>(message)->job();
  } else if (method == kAttach) {
    const auto& request = *static_cast<const v1::AttachRequest*>(message);
    if (request.has_register_()) entry->subject = request.register_().name();
  } else if (method == kPutFile) {
    entry->subject = static_cast<const v1::PutFileRequest*>(message)->sha256();
  }
}

// The same of an answer, which knows better.
void NoteAnswer(absl::string_view method, const void* message, AuditEntry* entry) {
  if (method == kSubmit) {
    entry->subject = static_cast<const v1::SubmitResponse*>(message)->job().id();
  } else if (method == kPutFolder) {
    entry->subject = static_cast<const v1::PutFolderResponse*>(message)->id();
  }
}

// "user alice of project vision"; of who came without TLS, empty.
std::string PrincipalName(const grpc::ServerContextBase& context) {
  const auto principal = identity::PeerOf(context);
  if (!principal.ok()) return std::string(principal.status().message());
  return principal->has_value() ? identity::Describe(**principal) : "";
}

class Auditor : public grpc::experimental::Interceptor {
 public:
  Auditor(AuditLog* log, grpc::experimental::ServerRpcInfo* info) : log_(log), info_(info) {
    entry_.method = info->method();
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    // By the end of a long call its certificate may have expired.
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA))
      entry_.principal = PrincipalName(*info_->server_context());
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_MESSAGE) && !noted_) {
      noted_ = true;
      const void* message = methods->GetRecvMessage();
      if (message != nullptr) Note(entry_.method, message, &entry_);
      if (message != nullptr && entry_.method == kAttach) return Write("BEGUN", "", methods);
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE) &&
        methods->GetSendMessage() != nullptr) {
      NoteAnswer(entry_.method, methods->GetSendMessage(), &entry_);
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      const auto code = static_cast<absl::StatusCode>(status.error_code());
      return Write(absl::StatusCodeToString(code), status.error_message(), methods);
    }
    methods->Proceed();
  }

 private:
  // The call goes on when it is on disk.
  void Write(std::string result, std::string detail, grpc::experimental::InterceptorBatchMethods* methods) {
    AuditEntry entry = entry_;
    entry.time = WallSeconds();
    entry.peer = info_->server_context()->peer();
    entry.result = std::move(result);
    entry.detail = std::move(detail);
    log_->Append(std::move(entry), [methods] { methods->Proceed(); });
  }

  AuditLog* const log_;
  grpc::experimental::ServerRpcInfo* const info_;
  AuditEntry entry_;
  bool noted_ = false;
};

}  // namespace

bool IsAudited(absl::string_view method) {
  const identity::Access* access = identity::FindAccess(method);
  return access == nullptr ? absl::StartsWith(method, "/tacc.") : access->is_audited;
}

RefusalLog::RefusalLog(AuditLog* log, std::function<double()> clock)
    : log_(log),
      clock_(std::move(clock)),
      known_{{kRefusalsPerSecond, kMaxRefusalsAtOnce}},
      strangers_{{kRefusalsOfStrangersPerSecond, kMaxRefusalsAtOnce}} {}

void RefusalLog::Write(const identity::Refusal& refusal) {
  Share& share = refusal.principal.has_value() || !refusal.certificate.empty() ? known_ : strangers_;
  int64_t num_left_out = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!share.bucket.Take(clock_())) {
      ++share.num_left_out;
      return;
    }
    num_left_out = std::exchange(share.num_left_out, 0);
  }
  AuditEntry entry;
  entry.time = WallSeconds();
  entry.method = refusal.method;
  entry.principal = refusal.principal.has_value() ? identity::Describe(*refusal.principal) : "";
  if (!refusal.certificate.empty()) entry.peer = absl::StrCat("certificate ", refusal.certificate);
  entry.result = absl::StatusCodeToString(refusal.status.code());
  if (num_left_out > 0) entry.detail = absl::StrCat("(and ", num_left_out, " more refused calls before this one) ");
  absl::StrAppend(&entry.detail, refusal.status.message());
  log_->Append(std::move(entry), [] {});
}

grpc::experimental::Interceptor* AuditInterceptors::CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) {
  return IsAudited(info->method()) ? new Auditor(log_, info) : nullptr;
}

}  // namespace tacc::coordinator
