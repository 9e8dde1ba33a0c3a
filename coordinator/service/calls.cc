#include "coordinator/service/calls.h"

#include <fcntl.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/interceptor.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "identity/access.h"
#include "machine/clock.h"
#include "machine/descriptor.h"
#include "spdlog/spdlog.h"

namespace tacc::coordinator {
namespace {

constexpr auto kLookPeriod = std::chrono::milliseconds(250);

// Ends the connection, if that descriptor is still its. gRPC may close it meanwhile: a duplicate stays what it is.
void EndConnectionOf(int fd, const std::string& address) {
  const Descriptor same(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (same.is_open() && AddressOfOtherEnd(same.get()) == address) EndConnection(same.get());
}

class CallInterceptor : public grpc::experimental::Interceptor {
 public:
  CallInterceptor(CallInterceptors::Parts parts, grpc::experimental::ServerRpcInfo* info)
      : parts_(parts), info_(info) {}

  // The call has ended, and its handler is done with it.
  ~CallInterceptor() override {
    if (!peer_.empty()) parts_.connections->End(peer_);
    if (principal_.has_value()) parts_.principals->End(*principal_);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::POST_RECV_INITIAL_METADATA))
      Begin();
    methods->Proceed();
  }

 private:
  void Begin() {
    const grpc::ServerContextBase& context = *info_->server_context();
    peer_ = context.peer();
    const int fd = parts_.newcomers->Greet(peer_);
    if (parts_.principals != nullptr) {
      // None: what named it has expired since it was admitted.
      if (const auto principal = identity::PeerOf(context); principal.ok()) principal_ = *principal;
    }
    if (principal_.has_value()) parts_.principals->Begin(*principal_);
    if (!peer_.empty()) parts_.connections->Begin(peer_, fd, principal_);
  }

  const CallInterceptors::Parts parts_;
  grpc::experimental::ServerRpcInfo* const info_;
  std::string peer_;
  std::optional<identity::Principal> principal_;
};

}  // namespace

Connections::Connections(Limits limits, ShutOut shut_out)
    : limits_(limits), shut_out_(std::move(shut_out)), thread_([this] { Run(); }) {}

Connections::~Connections() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Connections::Begin(const std::string& peer, int fd, const std::optional<identity::Principal>& principal) {
  Verdict verdict;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto [found, is_new] = connections_.try_emplace(peer);
    Connection& connection = found->second;
    if (is_new) {
      connection.address = AddressOfPeer(peer);
      if (connections_.size() == 1) changed_.notify_one();
    }
    if (fd >= 0) {  // Another one may have had that port before.
      connection.fd = fd;
      connection.bytes = BytesReceived(fd);
    }
    connection.called = SteadySeconds();
    ++connection.num_open;
    const bool is_another = SetHolder(peer, &connection, principal);
    if (connection.num_open > limits_.max_unfinished) {
      verdict.connections = {{connection.fd, connection.address}};
      verdict.did = absl::StrCat("had more than ", limits_.max_unfinished, " unfinished calls");
    } else if (is_another && IsOneTooMany(peer, connection)) {
      verdict.connections = {{connection.fd, connection.address}};
      verdict.did = absl::StrCat("is of ", connection.holder, ", which may have no more");
      SetHolder(peer, &connection, std::nullopt);
    }
  }
  Execute(verdict);
}

void Connections::End(const std::string& peer) {
  std::lock_guard<std::mutex> lock(mutex_);
  Connection& connection = connections_.find(peer)->second;
  --connection.num_open;
  connection.called = SteadySeconds();
}

void Connections::ShutOutAll(const identity::Principal& principal, const std::string& did) {
  Verdict verdict;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    verdict = AgainstAllOf(principal, did);
  }
  Execute(verdict);
}

bool Connections::SetHolder(const std::string& peer, Connection* connection,
                            const std::optional<identity::Principal>& principal) {
  std::string holder = principal.has_value() ? identity::Describe(*principal) : "";
  if (holder == connection->holder) return false;
  if (const auto before = peers_of_.find(connection->holder); before != peers_of_.end()) before->second.erase(peer);
  connection->principal = principal;
  connection->holder = std::move(holder);
  if (principal.has_value()) peers_of_[connection->holder].insert(peer);
  return true;
}

void Connections::Forget(const std::string& peer) {
  const auto found = connections_.find(peer);
  if (const auto of_holder = peers_of_.find(found->second.holder); of_holder != peers_of_.end()) {
    of_holder->second.erase(peer);
    if (of_holder->second.empty()) peers_of_.erase(of_holder);
  }
  connections_.erase(found);
}

bool Connections::IsOneTooMany(const std::string& peer, const Connection& connection) {
  if (!connection.principal.has_value()) return false;
  const size_t most = connection.principal->role == identity::Role::kWorker ? limits_.of_worker : limits_.of_client;
  if (peers_of_[connection.holder].size() <= most) return false;
  // Those that are closed count no more.
  std::vector<std::string> closed;
  for (const std::string& one : peers_of_[connection.holder]) {
    const Connection& other = connections_.at(one);
    if (one != peer && other.num_open == 0 && AddressOfOtherEnd(other.fd) != other.address) closed.push_back(one);
  }
  for (const std::string& one : closed) Forget(one);
  return peers_of_[connection.holder].size() > most;
}

Connections::Verdict Connections::Condemn(const Connection& connection, std::string did) {
  Verdict verdict;
  // A worker's certificate may be that of many machines.
  if (shut_out_ == nullptr || !connection.principal.has_value() ||
      connection.principal->role == identity::Role::kWorker) {
    verdict.connections = {{connection.fd, connection.address}};
    verdict.did = std::move(did);
    return verdict;
  }
  return AgainstAllOf(*connection.principal, absl::StrCat("made a connection that ", did));
}

Connections::Verdict Connections::AgainstAllOf(const identity::Principal& principal, std::string did) {
  Verdict verdict;
  verdict.shut_out = principal;
  verdict.did = std::move(did);
  const auto peers = peers_of_.find(identity::Describe(principal));
  if (peers == peers_of_.end()) return verdict;
  for (const std::string& peer : peers->second) {
    const Connection& connection = connections_.at(peer);
    verdict.connections.emplace_back(connection.fd, connection.address);
  }
  return verdict;
}

void Connections::Execute(const Verdict& verdict) {
  if (verdict.connections.empty() && !verdict.shut_out.has_value()) return;
  if (verdict.shut_out.has_value()) shut_out_(*verdict.shut_out, verdict.did);
  for (const auto& [fd, address] : verdict.connections) EndConnectionOf(fd, address);
  bool warns = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    warns = (verdict.shut_out.has_value() ? shut_outs_ : warnings_).Take(SteadySeconds());
  }
  if (!warns) return;
  if (verdict.shut_out.has_value()) {
    spdlog::warn("shut out {}, and closed {} of its connections: it {}", identity::Describe(*verdict.shut_out),
                 verdict.connections.size(), verdict.did);
  } else {
    spdlog::warn("closed the connection from {}, which {}", verdict.connections.front().second, verdict.did);
  }
}

void Connections::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ending_) {
    changed_.wait(lock, [this] { return ending_ || !connections_.empty(); });
    changed_.wait_for(lock, kLookPeriod, [this] { return ending_; });
    std::vector<std::string> closed;
    std::vector<Verdict> verdicts;
    const double now = SteadySeconds();
    for (auto& [peer, connection] : connections_) {
      if (connection.num_open > 0) continue;
      const int64_t before = connection.bytes;
      connection.bytes = BytesReceived(connection.fd);
      if (now - connection.called < limits_.calm_seconds) continue;
      const int64_t sent = connection.bytes - before;
      if (connection.bytes >= 0 && sent >= 0 && sent <= limits_.idle_bytes) continue;
      if (AddressOfOtherEnd(connection.fd) != connection.address) {
        closed.push_back(peer);
      } else if (sent > limits_.idle_bytes) {
        verdicts.push_back(Condemn(connection, absl::StrCat("sent ", sent, " bytes without a call")));
      }
    }
    for (const std::string& peer : closed) Forget(peer);
    if (verdicts.empty()) continue;
    lock.unlock();
    for (const Verdict& verdict : verdicts) Execute(verdict);
    lock.lock();
  }
}

absl::StatusOr<std::shared_ptr<void>> OpenStreams::Open(const std::string& caller) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = num_open_of_.find(caller);
  const int num_own = found == num_open_of_.end() ? 0 : found->second;
  if (num_own >= limits_.of_one || num_open_ >= limits_.of_all) {
    return absl::ResourceExhaustedError(
        num_own < limits_.of_one
            ? absl::StrCat("there are ", num_open_, " streams of Watch and Logs open, as many as there may be; try ",
                           "again when one has ended")
            : absl::StrCat(caller.empty() ? "the callers" : caller, " may have ", limits_.of_one,
                           " streams of Watch and Logs open; try again when one has ended"));
  }
  ++num_open_;
  ++num_open_of_[caller];
  return std::shared_ptr<void>(this, [this, caller](void*) { Close(caller); });
}

void OpenStreams::Close(const std::string& caller) {
  std::lock_guard<std::mutex> lock(mutex_);
  --num_open_;
  const auto found = num_open_of_.find(caller);
  if (--found->second == 0) num_open_of_.erase(found);
}

grpc::experimental::Interceptor* CallInterceptors::CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) {
  return new CallInterceptor(parts_, info);
}

}  // namespace tacc::coordinator
