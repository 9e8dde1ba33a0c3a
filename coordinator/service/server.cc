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
#include <filesystem>
#include <future>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/compile/instructions.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/service/coordinator_service.h"
#include "coordinator/service/job_number.h"
#include "coordinator/service/listener.h"
#include "coordinator/service/loop.h"
#include "coordinator/service/probe.h"
#include "coordinator/service/uploads.h"
#include "coordinator/service/worker_service.h"
#include "metrics/server.h"
#include "spdlog/spdlog.h"

namespace tacc::coordinator {
namespace {

// The largest messages are programs, which only go out, and job specs, which are small.
constexpr int kMaxReceivedBytes = 8 << 20;
constexpr size_t kMaxGrpcMemoryBytes = size_t{2} << 30;
constexpr int kMaxStreamsPerConnection = 256;
constexpr int kKeepaliveMilliseconds = 20000;
constexpr int64_t kMaxLogFileBytes = 16 << 20;
// A connection that says nothing for so long is closed.
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

bool IsLoopback(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  return host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
}

absl::Status CheckAddress(const std::string& flag, const std::string& address, ServerOptions::Exposure exposure) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size() ||
      address.find_first_not_of("0123456789", colon + 1) != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", address, ": give HOST:PORT"));
  }
  if (IsLoopback(address)) return absl::OkStatus();
  if (exposure == ServerOptions::Exposure::kLoopbackOnly) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", address, " can be reached from other machines, and traffic is neither encrypted nor ",
                     "authenticated; add --insecure if the network is trusted"));
  }
  spdlog::warn(
      "{} {} can be reached from other machines: whoever reaches it can run jobs, and traffic is not encrypted "
      "(--insecure)",
      flag, address);
  return absl::OkStatus();
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
  std::unique_ptr<Listener> listener;
  std::string address;  // Set before `ready`, for the probes.
  std::atomic<bool> ready{false};

  // Takes the state directory, and reads what it holds into the core.
  absl::Status OpenState(const ServerOptions& options, Failpoints* failpoints);
  void MakeLoop(std::function<void(const absl::Status&)> stop);
  absl::Status StartMetrics(const ServerOptions& options);
  absl::Status StartGrpc(const ServerOptions& options);
};

Server::Server() : impl_(std::make_unique<Impl>()) {}

Server::~Server() {
  impl_->ready = false;
  if (impl_->loop != nullptr) impl_->loop->Close();
  // civetweb takes up to two seconds to end: meanwhile the rest ends as well.
  std::thread http([this] { impl_->metrics_server.reset(); });
  impl_->listener.reset();
  if (impl_->compiler != nullptr) impl_->compiler->Shutdown();
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
  auto healthy = [this] { return ready ? ProbeAnswers(address, kProbeSeconds) : absl::OkStatus(); };
  auto decides = [this] { return ready ? ProbeDecides(address, kProbeSeconds) : absl::UnavailableError("not ready"); };
  auto metrics = metrics::Server::Start(options.metrics_listen, collect, healthy, decides);
  if (!metrics.ok()) return metrics.status();
  metrics_server = *std::move(metrics);
  return absl::OkStatus();
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
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.SetMaxReceiveMessageSize(kMaxReceivedBytes);
  builder.SetResourceQuota(quota);
  acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
  builder.RegisterService(&worker_handlers);
  builder.RegisterService(handlers.get());
  auto listening = Listener::Listen(options.listen);
  if (!listening.ok()) return listening.status();
  loop->Start();
  grpc = builder.BuildAndStart();
  if (grpc == nullptr) return absl::InternalError("gRPC does not start");
  listener = *std::move(listening);
  listener->Start(options.max_open_files - std::min(options.max_open_files / 4, kMaxOwnDescriptors),
                  [acceptor = acceptor.get()](int listener_fd, int fd) {
                    grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
                    connection.listener_fd = listener_fd;
                    connection.fd = fd;
                    acceptor->HandleNewConnection(&connection);
                  });
  address = listener->address();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, Failpoints* failpoints,
                                                      std::function<void(const absl::Status&)> stop) {
  if (absl::Status status = CheckAddress("--listen", options.listen, options.exposure); !status.ok()) return status;
  if (!options.metrics_listen.empty()) {
    absl::Status status = CheckAddress("--metrics-listen", options.metrics_listen, options.exposure);
    if (!status.ok()) return status;
  }
  std::unique_ptr<Server> server(new Server());
  Impl& impl = *server->impl_;
  if (absl::Status status = impl.OpenState(options, failpoints); !status.ok()) return status;
  impl.MakeLoop(stop);
  if (!options.metrics_listen.empty()) {
    if (absl::Status status = impl.StartMetrics(options); !status.ok()) return status;
    server->metrics_address_ = impl.metrics_server->address();
  }
  impl.handlers = std::make_unique<CoordinatorHandlers>(
      CoordinatorHandlers::Options{options.version, options.state_dir, server->metrics_address_},
      [stop] { stop(absl::OkStatus()); });
  impl.handlers->set_loop(impl.loop.get(), impl.compiler.get(), impl.uploads.get());
  if (absl::Status status = impl.StartGrpc(options); !status.ok()) return status;
  server->address_ = impl.address;
  impl.ready = true;
  return server;
}

}  // namespace tacc::coordinator
