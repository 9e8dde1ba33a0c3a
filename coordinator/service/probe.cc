#include "coordinator/service/probe.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tacc/v1/coordinator.grpc.pb.h"

namespace tacc::coordinator {
namespace {

std::unique_ptr<v1::CoordinatorService::Stub> Connect(const std::string& address, const identity::Tls& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // A new connection, not one that is open already.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return v1::CoordinatorService::NewStub(identity::MakeChannel(address, tls, arguments));
}

void SetDeadline(double timeout_seconds, grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() +
                        std::chrono::milliseconds(static_cast<int64_t>(timeout_seconds * 1000)));
}

absl::Status NoAnswer(const std::string& address, const grpc::Status& status) {
  return absl::UnavailableError(absl::StrCat(address, " does not answer: ", status.error_message()));
}

}  // namespace

absl::Status ProbeAnswers(const std::string& address, const identity::Tls& tls, double timeout_seconds) {
  grpc::ClientContext context;
  SetDeadline(timeout_seconds, &context);
  v1::GetVersionResponse response;
  const grpc::Status status = Connect(address, tls)->GetVersion(&context, v1::GetVersionRequest(), &response);
  return status.ok() ? absl::OkStatus() : NoAnswer(address, status);
}

absl::Status ProbeDecides(const std::string& address, const identity::Tls& tls, double timeout_seconds) {
  grpc::ClientContext context;
  SetDeadline(timeout_seconds, &context);
  v1::GetResponse response;
  // There is no job without a name, and only the loop knows.
  const grpc::Status status = Connect(address, tls)->Get(&context, v1::GetRequest(), &response);
  return status.error_code() == grpc::StatusCode::NOT_FOUND ? absl::OkStatus() : NoAnswer(address, status);
}

absl::Status SharedProbe::Ask() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!found_.has_value() || clock_() - found_at_ > kSeconds) {
    found_ = probe_();
    found_at_ = clock_();
  }
  return *found_;
}

}  // namespace tacc::coordinator
