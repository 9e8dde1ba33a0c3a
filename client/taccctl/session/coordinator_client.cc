#include "client/taccctl/session/coordinator_client.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/taccctl/session/up_state.h"
#include "grpcpp/grpcpp.h"
#include "identity/folder.h"
#include "identity/token.h"
#include "machine/loopback.h"
#include "machine/tacc_python.h"
#include "machine/unix_socket.h"
#include "tacc/v1/coordinator.grpc.pb.h"

namespace tacc::client {
namespace {

constexpr char kDefaultAddress[] = "127.0.0.1:7070";
constexpr double kCallSeconds = 10;
// Plans and submits may read a model's headers.
constexpr double kLongCallSeconds = 120;
constexpr double kSubmitRetrySeconds = 10;
constexpr int kMaxMessageBytes = 64 << 20;

absl::Status ToStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

// What listens at an address without being a coordinator's service, of gRPC's words for it; empty: it may be nothing.
std::string WhatListens(const std::string& message) {
  constexpr char kCloses[] =
      "closed the connection, as a coordinator does that has as many as it may have (try again), or that has TLS and "
      "does not know your certificate (--tls-dir)";
  const std::pair<const char*, const char*> kReasons[] = {
      {"before receiving SETTINGS frame", "does not answer"},
      {"http1.x server", "answers as a web server, as a coordinator's metrics do"},
      {"Socket closed", kCloses},
      {"Connection reset", kCloses},
      {"Broken pipe", kCloses},
  };
  for (const auto& [part, reason] : kReasons) {
    if (absl::StrContains(message, part)) return reason;
  }
  return "";
}

// Why there is no connection, of gRPC's words for it.
std::string WhyAway(const std::string& message) {
  const std::pair<const char*, const char*> kReasons[] = {
      {"Connection refused", "nothing listens there"},
      {"No such file or directory", "nothing listens there"},
      {"Permission denied", "it is another user's"},
      {"Hostname Verification", "its certificate has not that host; give a name that it has as --tls-server-name"},
      {"certificate verify failed", "no authority in your ca.crt has signed its certificate"},
      {"wrong version number", "it is without TLS"},
      {"before receiving SETTINGS frame", "it does not answer"},
      {"DNS resolution failed", "its host is not known"},
      {"Name or service not known", "its host is not known"},
      {"No route to host", "its host cannot be reached"},
      {"Network is unreachable", "its host cannot be reached"},
      {"imed out", "its host does not answer"},
      {"imeout", "its host does not answer"},
      {"Socket closed", "the connection broke"},
      {"Connection reset", "the connection broke"},
      {"Broken pipe", "the connection broke"},
      {"GOAWAY", "it is stopping"},
  };
  for (const auto& [part, reason] : kReasons) {
    if (absl::StrContains(message, part)) return reason;
  }
  return message;
}

std::chrono::system_clock::time_point After(double seconds) {
  return std::chrono::system_clock::now() +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(std::chrono::duration<double>(seconds));
}

std::shared_ptr<grpc::Channel> MakeChannel(const Endpoint& endpoint) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  // By this name gRPC means how long one attempt to connect may take: a loaded machine needs more than the pause
  // between two attempts.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  // A coordinator is reached directly, whatever http_proxy says.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  return identity::MakeChannel(endpoint.address, endpoint.tls, std::move(arguments));
}

}  // namespace

struct CoordinatorClient::Connection {
  Connection(const Endpoint& endpoint, Interrupt* interrupt)
      : endpoint(endpoint),
        interrupt(interrupt),
        channel(MakeChannel(endpoint)),
        stub(v1::CoordinatorService::NewStub(channel)) {}

  const Endpoint endpoint;
  Interrupt* const interrupt;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::CoordinatorService::Stub> stub;
  bool was_connected = false;

  absl::Status Explain(const grpc::Status& status) {
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE) {
      was_connected = true;
      if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED && status.error_message() == "Deadline Exceeded") {
        return absl::DeadlineExceededError(
            absl::StrCat("no answer in time from the coordinator at ", endpoint.address));
      }
      return ToStatus(status);
    }
    if (const std::string problem = identity::TokenProblem(status.error_message()); !problem.empty())
      return absl::InvalidArgumentError(problem);
    if (identity::IsTokenUnchecked(status.error_message())) return absl::UnavailableError(status.error_message());
    if (was_connected)
      return absl::UnavailableError(
          absl::StrCat("lost the coordinator at ", endpoint.address, ": ", WhyAway(status.error_message())));
    if (const std::string what = WhatListens(status.error_message()); !what.empty()) {
      return absl::UnavailableError(absl::StrCat("something listens at ", endpoint.address, ", but ", what,
                                                 "; if it is no coordinator, say where one is with --address or ",
                                                 "TACC_ADDRESS"));
    }
    return absl::UnavailableError(absl::StrCat(
        "no coordinator at ", endpoint.address, ": ", WhyAway(status.error_message()),
        "; start one on this machine with `taccctl up`, or say where it is with --address or TACC_ADDRESS"));
  }

  // Cancelled when an interrupt comes while it waits; what came before is the caller's to look at. What the command was
  // aborted with, if it was.
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (v1::CoordinatorService::Stub::*method)(grpc::ClientContext*,
                                                                                     const Request&, Response*),
                                const Request& request, double seconds) {
    grpc::ClientContext context;
    context.set_deadline(After(seconds));
    Response response;
    const int seen = interrupt->count();
    grpc::Status status;
    {
      const Interrupt::Hook hook(interrupt, seen, [&context] { context.TryCancel(); });
      status = (*stub.*method)(&context, request, &response);
    }
    if (!status.ok() && !interrupt->aborted().ok()) return interrupt->aborted();
    if (!status.ok() && interrupt->count() > seen) return absl::CancelledError("interrupted");
    // A coordinator that stops ends its calls so.
    if (status.error_code() == grpc::StatusCode::CANCELLED)
      return Explain(grpc::Status(grpc::StatusCode::UNAVAILABLE, status.error_message()));
    if (!status.ok()) return Explain(status);
    was_connected = true;
    return response;
  }

  template <typename Response>
  absl::Status Read(grpc::ClientContext* context, grpc::ClientReader<Response>* reader, int* seen,
                    const std::function<void(const Response&)>& take) {
    grpc::Status status;
    {
      const Interrupt::Hook hook(interrupt, *seen, [context] { context->TryCancel(); });
      Response response;
      while (reader->Read(&response)) {
        was_connected = true;
        take(response);
      }
      status = reader->Finish();
    }
    if (!status.ok() && (interrupt->count() > *seen || !interrupt->aborted().ok())) {
      *seen = interrupt->count();
      return absl::CancelledError("interrupted");
    }
    if (status.ok()) return absl::OkStatus();
    // A server that goes away while it streams is reported in several ways.
    if (status.error_code() == grpc::StatusCode::CANCELLED || status.error_code() == grpc::StatusCode::UNKNOWN) {
      status = grpc::Status(grpc::StatusCode::UNAVAILABLE, status.error_message());
    }
    return Explain(status);
  }
};

CoordinatorClient::CoordinatorClient(const Endpoint& endpoint, Interrupt* interrupt)
    : interrupts_seen_(interrupt->count()), connection_(std::make_unique<Connection>(endpoint, interrupt)) {}

CoordinatorClient::~CoordinatorClient() = default;

const Endpoint& CoordinatorClient::endpoint() const { return connection_->endpoint; }

absl::StatusOr<v1::SubmitResponse> CoordinatorClient::Submit(const v1::JobSpec& spec, const std::string& request_id) {
  v1::SubmitRequest request;
  *request.mutable_spec() = spec;
  request.set_request_id(request_id);
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::duration<double>(kSubmitRetrySeconds);
  // A coordinator that was never there is not waited for.
  const absl::StatusOr<v1::GetVersionResponse> there = GetVersion();
  if (absl::IsCancelled(there.status())) return absl::CancelledError("interrupted: the job was not submitted");
  if (absl::IsUnavailable(there.status())) return there.status();
  Backoff backoff;
  while (true) {
    auto response = connection_->Call(&v1::CoordinatorService::Stub::Submit, request, kLongCallSeconds);
    if (absl::IsCancelled(response.status()))
      return absl::CancelledError("interrupted: the job may be submitted, `taccctl list` shows it then");
    if (!absl::IsUnavailable(response.status()) || std::chrono::steady_clock::now() > give_up) return response;
    if (WaitToReconnect(backoff.Next(), connection_->interrupt->count())) return response;
  }
}

absl::StatusOr<v1::Job> CoordinatorClient::Get(const std::string& job) {
  v1::GetRequest request;
  request.set_job(job);
  auto response = connection_->Call(&v1::CoordinatorService::Stub::Get, request, kCallSeconds);
  if (!response.ok()) return response.status();
  return response->job();
}

absl::StatusOr<std::vector<v1::Job>> CoordinatorClient::List(int limit) {
  v1::ListRequest request;
  request.set_limit(limit);
  auto response = connection_->Call(&v1::CoordinatorService::Stub::List, request, kCallSeconds);
  if (!response.ok()) return response.status();
  return std::vector<v1::Job>(response->jobs().begin(), response->jobs().end());
}

absl::StatusOr<v1::Job> CoordinatorClient::Cancel(const std::string& job, v1::CancelMode mode) {
  v1::CancelRequest request;
  request.set_job(job);
  request.set_mode(mode);
  auto response = connection_->Call(&v1::CoordinatorService::Stub::Cancel, request, kCallSeconds);
  if (!response.ok()) return response.status();
  return response->job();
}

absl::StatusOr<v1::PlanResponse> CoordinatorClient::Plan(const v1::JobSpec& spec) {
  v1::PlanRequest request;
  *request.mutable_spec() = spec;
  return connection_->Call(&v1::CoordinatorService::Stub::Plan, request, kLongCallSeconds);
}

absl::StatusOr<std::vector<v1::WorkerView>> CoordinatorClient::ListWorkers() {
  auto response = connection_->Call(&v1::CoordinatorService::Stub::ListWorkers, v1::ListWorkersRequest(), kCallSeconds);
  if (!response.ok()) return response.status();
  return std::vector<v1::WorkerView>(response->workers().begin(), response->workers().end());
}

absl::StatusOr<v1::GetVersionResponse> CoordinatorClient::GetVersion() {
  return connection_->Call(&v1::CoordinatorService::Stub::GetVersion, v1::GetVersionRequest(), kCallSeconds);
}

absl::Status CoordinatorClient::Shutdown() {
  return connection_->Call(&v1::CoordinatorService::Stub::Shutdown, v1::ShutdownRequest(), kCallSeconds).status();
}

absl::Status CoordinatorClient::Watch(const v1::WatchRequest& request, double deadline_seconds,
                                      const std::function<void(const v1::WatchResponse&)>& take) {
  grpc::ClientContext context;
  if (deadline_seconds > 0) context.set_deadline(After(deadline_seconds));
  const auto reader = connection_->stub->Watch(&context, request);
  return connection_->Read<v1::WatchResponse>(&context, reader.get(), &interrupts_seen_, take);
}

absl::Status CoordinatorClient::Logs(const v1::LogsRequest& request,
                                     const std::function<void(const v1::LogsResponse&)>& take) {
  grpc::ClientContext context;
  const auto reader = connection_->stub->Logs(&context, request);
  return connection_->Read<v1::LogsResponse>(&context, reader.get(), &interrupts_seen_, take);
}

bool CoordinatorClient::WaitToReconnect(double seconds, int seen) {
  constexpr double kLookSeconds = 0.1;
  Interrupt* const interrupt = connection_->interrupt;
  const auto end = After(seconds);
  if (connection_->channel->GetState(true) == GRPC_CHANNEL_READY) return interrupt->WaitFor(seconds, seen);
  while (std::chrono::system_clock::now() < end) {
    if (interrupt->WaitFor(0, seen)) return true;
    if (connection_->channel->WaitForConnected(std::min(end, After(kLookSeconds)))) return false;
  }
  return interrupt->WaitFor(0, seen);
}

double Backoff::Next() {
  seconds_ = seconds_ == 0 ? 0.2 : std::min(2.0, seconds_ * 2);
  return seconds_;
}

void Backoff::Reset() { seconds_ = 0; }

namespace {

// A text that an option says, else a variable.
struct Setting {
  Setting(const char* option, std::string given, const char* variable, const Context& context)
      : source(given.empty() ? variable : option),
        text(given.empty() ? context.Variable(variable) : std::move(given)) {}
  const char* source;
  std::string text;
};

absl::StatusOr<identity::Tls> FindTls(const GlobalOptions& options, const Context& context) {
  const Setting folder("--tls-dir", options.tls_dir, "TACC_TLS_DIR", context);
  const Setting name("--tls-server-name", options.tls_server_name, "TACC_TLS_SERVER_NAME", context);
  const Setting token("--token-file", options.token_file, "TACC_TOKEN_FILE", context);
  if (folder.text.empty() && token.text.empty()) return identity::Tls();
  if (folder.text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        token.source, ": a token goes over TLS alone; give --tls-dir, a folder with the coordinator's ca.crt"));
  }
  const absl::Status trusted = token.text.empty() ? identity::CheckFolder(folder.text, std::time(nullptr)).status()
                                                  : identity::ReadAuthorities(folder.text).status();
  if (!trusted.ok()) return absl::InvalidArgumentError(absl::StrCat(folder.source, ": ", trusted.message()));
  if (!token.text.empty()) {
    const absl::Status readable = identity::ReadTokenFile(token.text).status();
    if (!readable.ok()) return absl::InvalidArgumentError(absl::StrCat(token.source, ": ", readable.message()));
  }
  return identity::Tls{folder.text, name.text, token.text};
}

}  // namespace

absl::StatusOr<Endpoint> FindCoordinator(const GlobalOptions& options, const Context& context) {
  std::string address = options.address, source = "--address";
  if (address.empty()) {
    address = context.Variable("TACC_ADDRESS");
    source = "TACC_ADDRESS";
  }
  if (address.empty() && options.tls_dir.empty() && options.token_file.empty()) {
    const std::string directory = UpDirectory(context);
    const absl::StatusOr<UpState> up = ReadUpState(directory);
    for (const std::string& name : up.ok() ? EndedProcesses(*up) : std::vector<std::string>()) {
      context.err << "warning: " << name << ", which `taccctl up` started, has ended (its log is " << directory << "/"
                  << name << ".log); `taccctl up` starts it again" << std::endl;
    }
    if (up.ok()) return Endpoint{up->address, {}};
  }
  if (address.empty()) address = kDefaultAddress;
  if (IsUnixAddress(address)) {
    const absl::Status status = UnixSocketPath(address).status();
    if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat(source, ": ", status.message()));
    return Endpoint{address, {}};  // Its user is all that it asks for.
  }
  const size_t colon = address.rfind(':');
  int port = 0;
  const bool has_host = colon != std::string::npos && colon > 0 && (address[0] == '[' || address.find(':') == colon);
  if (!has_host || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, " = \"", address, "\" is not HOST:PORT, as 127.0.0.1:7070 or [::1]:7070, nor unix:/PATH"));
  }
  absl::StatusOr<identity::Tls> tls = FindTls(options, context);
  if (!tls.ok()) return tls.status();
  const std::string host = std::string(absl::StripSuffix(absl::StripPrefix(address.substr(0, colon), "["), "]"));
  if (tls->folder.empty() && !IsLoopback(host)) {
    context.err << "warning: " << address
                << " is reached without TLS: the network can read and change what goes there, "
                << "and whoever has that address may answer; give --tls-dir (TACC_TLS_DIR), a folder that "
                << "`tacc-coordinator init` makes" << std::endl;
  }
  return Endpoint{address, *std::move(tls)};
}

std::string CommandStart(const GlobalOptions& options, const Context& context) {
  std::string command = ShellWord(context.program);
  for (const auto& [option, value] :
       {std::pair("--address", options.address), std::pair("--tls-dir", options.tls_dir),
        std::pair("--tls-server-name", options.tls_server_name), std::pair("--token-file", options.token_file)}) {
    if (!value.empty()) absl::StrAppend(&command, " ", option, " ", ShellWord(value));
  }
  return command;
}

std::string NewRequestId() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, absl::Hex(random(), absl::kZeroPad8));
  return id;
}

}  // namespace tacc::client
