#include "coordinator/service/server.h"

#include <fcntl.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <future>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "audit_log/audit_log.h"
#include "coordinator/compile/instructions.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/service/audit.h"
#include "coordinator/service/calls.h"
#include "coordinator/service/coordinator_service.h"
#include "coordinator/service/listener.h"
#include "coordinator/service/loop.h"
#include "coordinator/service/newcomers.h"
#include "coordinator/service/probe.h"
#include "coordinator/service/uploads.h"
#include "coordinator/service/worker_service.h"
#include "coordinator/store/job_number.h"
#include "identity/access.h"
#include "identity/call_limits.h"
#include "identity/credentials.h"
#include "identity/folder.h"
#include "machine/clock.h"
#include "machine/loopback.h"
#include "machine/unix_socket.h"
#include "metrics/server.h"
#include "spdlog/spdlog.h"

namespace tacc::coordinator {
namespace {

// The largest messages are programs, which only go out, and job specs, which are small.
constexpr int kMaxReceivedBytes = 8 << 20;
constexpr size_t kMaxGrpcMemoryBytes = size_t{2} << 30;
constexpr int kMaxStreamsPerConnection = 256;
// That a connection may have until it is shut: handlers may end some time after their calls.
constexpr int kMaxUnfinishedCallsPerConnection = 2 * kMaxStreamsPerConnection;
// At most, of the holder of one certificate or token that is no worker's; where there are few, a quarter of all.
constexpr size_t kMaxConnectionsOfAClient = 1000;
constexpr int kKeepaliveMilliseconds = 20000;
constexpr int64_t kMaxLogFileBytes = 16 << 20;
// From a connection's first byte to the end of HTTP/2's handshake.
constexpr int kHandshakeMilliseconds = 10000;
// Descriptors that are left for files, pipes and the metrics: a quarter of all, at most so many.
constexpr int kMaxOwnDescriptors = 256;
constexpr double kProbeSeconds = 2;
constexpr auto kShutdownGrace = std::chrono::milliseconds(200);

double Seconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

Time Now() { return {Seconds(CLOCK_MONOTONIC), Seconds(CLOCK_REALTIME)}; }

// Without the brackets of IPv6.
std::string HostOf(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  return absl::StartsWith(host, "[") && absl::EndsWith(host, "]") ? host.substr(1, host.size() - 2) : host;
}

enum class Traffic { kTls, kClear, kMetrics };

// Who may listen where: the one place that says so.
absl::Status CheckAddress(const std::string& flag, const std::string& address, Traffic traffic,
                          ServerOptions::Exposure exposure) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size() ||
      address.find_first_not_of("0123456789", colon + 1) != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", address, ": give HOST:PORT"));
  }
  if (traffic == Traffic::kTls || (traffic == Traffic::kMetrics && IsLoopback(HostOf(address))))
    return absl::OkStatus();
  const char* danger = traffic == Traffic::kMetrics
                           ? "other machines can reach it, and metrics are not encrypted"
                           : "whoever reaches this port, on loopback every user of the machine, can run jobs as this "
                             "user, and nothing is encrypted";
  if (exposure == ServerOptions::Exposure::kInsecure) {
    spdlog::warn("{} {}: {} (--insecure)", flag, address, danger);
    return absl::OkStatus();
  }
  const char* instead = traffic == Traffic::kMetrics
                            ? "give an address of loopback"
                            : "`taccctl up` starts a service that only you can reach; for others give --tls-dir, which "
                              "`tacc-coordinator init` makes";
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", address, ": ", danger, "; ", instead,
                                                 "; or add --insecure if you trust all who reach it"));
}

// Where other machines reach the coordinator without TLS; empty: nowhere.
std::string ClearAddress(const std::string& listen, Traffic traffic) {
  const bool is_clear = traffic == Traffic::kClear && !IsUnixAddress(listen) && !IsLoopback(HostOf(listen));
  return is_clear ? listen : "";
}

// The coordinator's own certificate: of a server, with a name by which clients reach it.
absl::Status CheckTls(const std::string& folder) {
  const absl::StatusOr<identity::Principal> self = identity::CheckFolder(folder, std::time(nullptr));
  if (!self.ok()) return absl::InvalidArgumentError(absl::StrCat("--tls-dir ", folder, ": ", self.status().message()));
  if (self->role != identity::Role::kServer) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-dir ", folder, " is of ", identity::Describe(*self), "; a coordinator takes a server's"));
  }
  if (identity::HostsOf(folder).empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tls-dir ", folder, ": its certificate has no name of a host, by which clients would know the coordinator"));
  }
  return absl::OkStatus();
}

// For calls to itself.
identity::Tls TlsToItself(const std::string& folder) {
  if (folder.empty()) return {};
  const std::vector<std::string> hosts = identity::HostsOf(folder);
  return {folder, hosts.empty() ? "" : hosts.front()};
}

// A lock on the state directory, held while the descriptor is open. Its file holds what names the service.
class DirectoryLock {
 public:
  ~DirectoryLock() {
    if (fd_ >= 0) close(fd_);
  }
  absl::Status Take(const std::string& dir) {
    std::error_code error;
    std::filesystem::create_directories(dir, error);
    if (error)
      return absl::FailedPreconditionError(
          absl::StrCat("state directory ", dir, ": cannot make it: ", error.message()));
    chmod(dir.c_str(), 0700);
    const std::string path = absl::StrCat(dir, "/lock");
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd_ < 0)
      return absl::FailedPreconditionError(absl::StrCat("state directory: cannot write ", path, ": ", strerror(errno)));
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "state directory ", dir, " is in use by another coordinator; stop it, or give another ", "--state-dir"));
    }
    char text[64];
    const ssize_t size = pread(fd_, text, sizeof(text), 0);
    service_.assign(text, size > 0 ? static_cast<size_t>(size) : 0);
    if (!service_.empty()) return absl::OkStatus();
    std::random_device random;
    for (int i = 0; i < 4; ++i) absl::StrAppend(&service_, absl::Hex(random(), absl::kZeroPad8));
    if (pwrite(fd_, service_.data(), service_.size(), 0) == static_cast<ssize_t>(service_.size()) && fsync(fd_) == 0)
      return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("state directory: cannot write ", path, ": ", strerror(errno)));
  }
  // No other state directory has it.
  const std::string& service() const { return service_; }

 private:
  std::string service_;
  int fd_ = -1;
};

// What a coordinator that was killed left behind: folders of forgotten jobs and of plans.
void RemoveStrayFolders(const std::string& jobs_dir, const Core& core) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(jobs_dir, ignored)) {
    if (core.jobs().count(entry.path().filename().string()) == 0) std::filesystem::remove_all(entry.path(), ignored);
  }
}

}  // namespace

// Members end in reverse order.
struct Server::Impl {
  DirectoryLock lock;
  std::unique_ptr<AuditLog> audit;
  std::unique_ptr<RefusalLog> refusals;
  std::unique_ptr<identity::CallLimits> call_limits;
  std::unique_ptr<Connections> connections;
  std::unique_ptr<Store> store;
  std::unique_ptr<LogFiles> logs;
  std::unique_ptr<JobNumberFile> job_number;
  std::unique_ptr<Compiler> compiler;
  std::unique_ptr<Core> core;
  WorkerHandlers worker_handlers;
  std::unique_ptr<CoordinatorHandlers> handlers;
  std::unique_ptr<ContentStore> content;
  std::unique_ptr<Loop> loop;
  std::unique_ptr<Uploads> uploads;
  std::unique_ptr<metrics::Server> metrics_server;
  std::unique_ptr<grpc::Server> grpc;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<Newcomers> newcomers;
  std::unique_ptr<Listener> listener;
  std::string address;  // Set before `ready`, for the probes.
  std::atomic<bool> ready{false};

  // Takes the state directory, and reads what it holds into the core.
  absl::Status OpenState(const ServerOptions& options, Failpoints* failpoints);
  absl::Status OpenAudit(const ServerOptions& options);
  void MakeLoop(std::function<void(const absl::Status&)> stop);
  absl::Status StartMetrics(const ServerOptions& options);
  absl::Status StartGrpc(const ServerOptions& options);
  identity::AccessHooks Hooks();
};

Server::Server() : impl_(std::make_unique<Impl>()) {}

Server::~Server() {
  impl_->ready = false;
  if (impl_->loop != nullptr) impl_->loop->Close();
  // civetweb takes up to two seconds to end: meanwhile the rest ends as well.
  std::thread http([this] { impl_->metrics_server.reset(); });
  impl_->listener.reset();
  if (impl_->compiler != nullptr) impl_->compiler->Shutdown();
  if (impl_->audit != nullptr) impl_->audit->StopWaiting();
  if (impl_->grpc != nullptr) impl_->grpc->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  http.join();
  if (impl_->loop != nullptr) impl_->loop->Stop();
}

absl::Status Server::Impl::OpenState(const ServerOptions& options, Failpoints* failpoints) {
  if (absl::Status status = lock.Take(options.state_dir); !status.ok()) return status;
  const std::string jobs_dir = absl::StrCat(options.state_dir, "/jobs");
  std::error_code error;
  std::filesystem::create_directories(jobs_dir, error);
  if (error) return absl::FailedPreconditionError(absl::StrCat("cannot make ", jobs_dir, ": ", error.message()));

  auto opened = Store::Open(absl::StrCat(options.state_dir, "/tacc.db"), Store::Options(), failpoints);
  if (!opened.ok()) return opened.status();
  store = *std::move(opened);
  ContentStore::Limits limits;
  limits.max_bytes = options.max_upload_bytes;
  auto uploaded = ContentStore::Open(absl::StrCat(options.state_dir, "/uploads"), limits);
  if (!uploaded.ok()) return absl::FailedPreconditionError(uploaded.status().message());
  content = *std::move(uploaded);
  logs = std::make_unique<LogFiles>(jobs_dir, kMaxLogFileBytes);
  Compiler::Options compiler_options{options.plan_binary, options.data_binary, jobs_dir};
  compiler_options.upload_path = [content = content.get()](const std::string& id) { return content->FolderPath(id); };
  compiler_options.paths = AllowedPaths(options.allow_paths, {absl::StrCat(options.state_dir, "/uploads")});
  compiler_options.limits.seconds = options.compile_seconds;
  compiler = std::make_unique<Compiler>(std::move(compiler_options));
  auto number = JobNumberFile::Open(options.job_number_file.empty() ? absl::StrCat(options.state_dir, "/job-number")
                                                                    : options.job_number_file);
  if (!number.ok()) return number.status();
  job_number = *std::move(number);
  Core::Options core_options;
  core_options.last_id_number = job_number->number();
  core_options.version = options.version;
  core_options.service = lock.service();
  core_options.lease_seconds = options.lease_seconds;
  core_options.collective_timeout_seconds = options.collective_timeout_seconds;
  core_options.max_ended_jobs = static_cast<size_t>(options.max_ended_jobs);
  core = std::make_unique<Core>(
      core_options, [compiler = compiler.get()](const JobState& job, int rank, int call, int node) {
        absl::StatusOr<std::string> program = compiler->ReadProgram(job.id, job.compile, job.summary.StageOf(rank));
        return DescribeNode(program.ok() ? *program : std::string(), call, node);
      });
  if (absl::Status status = store->Load(core.get()); !status.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("state directory ", options.state_dir, ": ", std::string(status.message())));
  }
  RemoveStrayFolders(jobs_dir, *core);
  // One that was stored last before a kill, or could not be kept, is kept now.
  int64_t last_id_number = 0;
  for (const auto& [id, job] : core->jobs()) last_id_number = std::max(last_id_number, IdNumber(id));
  if (absl::Status status = job_number->Raise(last_id_number); !status.ok())
    spdlog::warn("ids of jobs may come back with another state directory: {}", std::string(status.message()));
  return absl::OkStatus();
}

absl::Status Server::Impl::OpenAudit(const ServerOptions& options) {
  auto opened = AuditLog::Open(absl::StrCat(options.state_dir, "/audit"), AuditLog::Options());
  if (!opened.ok()) return absl::FailedPreconditionError(absl::StrCat("audit log: ", opened.status().message()));
  audit = *std::move(opened);
  refusals = std::make_unique<RefusalLog>(audit.get(), SteadySeconds);
  const AuditHead head = audit->head();
  spdlog::info("the audit log has {} entries, the hash of the last is {}", head.num_entries, head.hash);
  return absl::OkStatus();
}

void Server::Impl::MakeLoop(std::function<void(const absl::Status&)> stop) {
  Loop::Parts parts;
  parts.core = core.get();
  parts.store = store.get();
  parts.compiler = compiler.get();
  parts.logs = logs.get();
  parts.job_number = job_number.get();
  parts.workers = &worker_handlers;
  parts.clock = Now;
  parts.fatal = std::move(stop);
  loop = std::make_unique<Loop>(std::move(parts));
  uploads = std::make_unique<Uploads>(content.get(), loop.get());
  worker_handlers.set_loop(loop.get(), uploads.get());
}

absl::Status Server::Impl::StartMetrics(const ServerOptions& options) {
  auto collect = [loop = loop.get(), uploads = uploads.get(), version = options.version] {
    auto promise = std::make_shared<std::promise<std::vector<prometheus::MetricFamily>>>();
    auto future = promise->get_future();
    loop->Read([promise, uploads, version](const Loop::View& view) {
      promise->set_value(
          CollectMetrics(view.core, {version, view.now, static_cast<double>(view.stats.commits),
                                     view.stats.commit_seconds, static_cast<double>(uploads->traffic().received_bytes),
                                     static_cast<double>(uploads->traffic().sent_bytes)}));
    });
    if (future.wait_for(std::chrono::seconds(5)) != std::future_status::ready)
      return std::vector<prometheus::MetricFamily>();
    return future.get();
  };
  const auto probe = [this, folder = options.tls_dir](auto ask) {
    auto shared = std::make_shared<SharedProbe>(
        [this, folder, ask] { return ask(address, TlsToItself(folder), kProbeSeconds); }, SteadySeconds);
    return [shared] { return shared->Ask(); };
  };
  auto healthy = [this, ask = probe(ProbeAnswers)] { return ready ? ask() : absl::OkStatus(); };
  auto decides = [this, ask = probe(ProbeDecides)] { return ready ? ask() : absl::UnavailableError("not ready"); };
  auto metrics = metrics::Server::Start(options.metrics_listen, collect, healthy, decides);
  if (!metrics.ok()) return metrics.status();
  metrics_server = *std::move(metrics);
  return absl::OkStatus();
}

identity::AccessHooks Server::Impl::Hooks() {
  identity::AccessHooks hooks;
  hooks.admit = [this](const identity::Principal& principal) { return call_limits->Admit(principal); };
  hooks.refused = [this](const identity::Refusal& refusal) { refusals->Write(refusal); };
  return hooks;
}

absl::Status Server::Impl::StartGrpc(const ServerOptions& options) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ResourceQuota quota("tacc-coordinator");
  quota.Resize(kMaxGrpcMemoryBytes);
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMilliseconds);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMilliseconds);
  // No end for pings: for each that it has read behind the one that was too many, gRPC 1.51 keeps an error, and copies
  // those before. Newcomers and Connections end a connection for its bytes.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.SetMaxReceiveMessageSize(kMaxReceivedBytes);
  builder.SetResourceQuota(quota);
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  std::shared_ptr<identity::Authenticator> authenticator;
  if (!options.tls_dir.empty()) {
    call_limits = std::make_unique<identity::CallLimits>(
        options.call_limits, SteadySeconds, [this](const identity::Principal& principal, const std::string& did) {
          if (connections != nullptr) connections->ShutOutAll(principal, did);
        });
    authenticator = std::make_shared<identity::Authenticator>(options.tls_dir, options.token_reviewer);
    credentials = identity::MakeServerCredentials(options.tls_dir, authenticator, Hooks());
  }
  acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
  const auto give = [acceptor = acceptor.get()](int listener_fd, int fd) {
    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
    connection.listener_fd = listener_fd;
    connection.fd = fd;
    acceptor->HandleNewConnection(&connection);
  };
  // A Unix socket has no strangers.
  const int max_descriptor = options.max_open_files - std::min(options.max_open_files / 4, kMaxOwnDescriptors);
  if (!IsUnixAddress(options.listen)) {
    newcomers = std::make_unique<Newcomers>(Newcomers::Limits(), give);
    const auto max_connections = static_cast<size_t>(max_descriptor);
    Connections::Limits limits;
    limits.max_unfinished = kMaxUnfinishedCallsPerConnection;
    limits.of_client = std::clamp<size_t>(max_connections / 4, 1, kMaxConnectionsOfAClient);
    limits.of_worker = std::max<size_t>(max_connections / 2, 1);
    connections =
        std::make_unique<Connections>(limits, [this](const identity::Principal& principal, const std::string& did) {
          if (call_limits != nullptr) call_limits->ShutOut(principal, did);
        });
    interceptors.push_back(std::make_unique<CallInterceptors>(
        CallInterceptors::Parts{newcomers.get(), connections.get(), call_limits.get()}));
  }
  interceptors.push_back(std::make_unique<AuditInterceptors>(audit.get()));
  // gRPC shows what has come in to the last one first.
  if (authenticator != nullptr) interceptors.push_back(identity::MakeTokenInterceptors(authenticator));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  builder.RegisterService(&worker_handlers);
  builder.RegisterService(handlers.get());
  auto listening = Listener::Listen(options.listen);
  if (!listening.ok()) return listening.status();
  loop->Start();
  grpc = builder.BuildAndStart();
  if (grpc == nullptr) return absl::InternalError("gRPC does not start");
  listener = *std::move(listening);
  if (newcomers == nullptr) {
    listener->Start(max_descriptor, give);
  } else {
    listener->Start(
        max_descriptor, [newcomers = newcomers.get()](int listener_fd, int fd) { newcomers->Arrive(listener_fd, fd); },
        [newcomers = newcomers.get()] { return newcomers->MakeRoom(); });
  }
  address = listener->address();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, Failpoints* failpoints,
                                                      std::function<void(const absl::Status&)> stop) {
  const Traffic traffic = options.tls_dir.empty() ? Traffic::kClear : Traffic::kTls;
  if (IsUnixAddress(options.listen)) {
    if (traffic == Traffic::kTls)
      return absl::InvalidArgumentError("--tls-dir: a Unix socket asks its clients for their user; give a port");
  } else if (absl::Status status = CheckAddress("--listen", options.listen, traffic, options.exposure); !status.ok()) {
    return status;
  }
  if (!IsUnixAddress(options.listen) && options.allow_paths.empty()) {
    spdlog::warn(
        "--listen {}: without --allow-path the models, graphs and data of jobs may be wherever this process's user may "
        "read; give --allow-path DIR for each folder that has them, or --allow-path / if that is meant",
        options.listen);
  }
  if (traffic == Traffic::kTls) {
    if (absl::Status status = CheckTls(options.tls_dir); !status.ok()) return status;
  }
  if (!options.metrics_listen.empty()) {
    absl::Status status = CheckAddress("--metrics-listen", options.metrics_listen, Traffic::kMetrics, options.exposure);
    if (!status.ok()) return status;
  }
  std::unique_ptr<Server> server(new Server());
  Impl& impl = *server->impl_;
  if (absl::Status status = impl.OpenState(options, failpoints); !status.ok()) return status;
  if (absl::Status status = impl.OpenAudit(options); !status.ok()) return status;
  impl.MakeLoop(stop);
  if (!options.metrics_listen.empty()) {
    if (absl::Status status = impl.StartMetrics(options); !status.ok()) return status;
    server->metrics_address_ = impl.metrics_server->address();
  }
  impl.handlers = std::make_unique<CoordinatorHandlers>(
      CoordinatorHandlers::Options{options.version, options.state_dir, server->metrics_address_,
                                   ClearAddress(options.listen, traffic)},
      [stop] { stop(absl::OkStatus()); });
  impl.handlers->set_loop(impl.loop.get(), impl.compiler.get(), impl.uploads.get());
  if (absl::Status status = impl.StartGrpc(options); !status.ok()) return status;
  server->address_ = impl.address;
  impl.ready = true;
  return server;
}

}  // namespace tacc::coordinator
