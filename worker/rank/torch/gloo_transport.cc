#include "worker/rank/torch/gloo_transport.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#define USE_C10D_GLOO
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <map>
#include <set>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "graph/ir/status_macros.h"
#include "machine/secret.h"
#include "machine/tcp_peers.h"
#include "machine/unix_socket.h"

namespace tacc::worker {
namespace {

// How soon a rank sees that the last of the others is there.
constexpr absl::Duration kPollInterval = absl::Milliseconds(20);

std::chrono::milliseconds Milliseconds(absl::Duration duration) {
  return std::chrono::milliseconds(absl::ToInt64Milliseconds(duration));
}

// What LibTorch and Gloo throw, first line only: the rest is a stack of their own.
absl::Status Failure(const std::string& what, const std::exception& error) {
  const std::string text = error.what();
  return absl::UnavailableError(absl::StrCat(what, ": ", text.substr(0, text.find('\n'))));
}

// While it lives, threads that this thread makes preempt nobody when they wake up (SCHED_BATCH), if this thread is an
// ordinary one.
//
// Gloo's thread is woken by each message, at times by a send of the very thread that it would preempt. That one holds
// the lock of the connection, for which Gloo's thread does not sleep: it asks epoll again and again, and keeps the
// sender from the processor for a whole slice of time. Where ranks have no processor to spare, a step of many small
// collectives then takes many times as long (docs/design/collectives.md).
class ScopedBatchPolicy {
 public:
  ScopedBatchPolicy() : is_ordinary_(sched_getscheduler(0) == SCHED_OTHER) { Set(SCHED_BATCH); }
  ~ScopedBatchPolicy() { Set(SCHED_OTHER); }
  ScopedBatchPolicy(const ScopedBatchPolicy&) = delete;
  ScopedBatchPolicy& operator=(const ScopedBatchPolicy&) = delete;

 private:
  // A sandbox may refuse it: then it is as before.
  void Set(int policy) const {
    const sched_param none = {};
    if (is_ordinary_) (void)sched_setscheduler(0, policy, &none);
  }

  const bool is_ordinary_;
};

// A socket that listens on a free port of `address` and nowhere else: TCPStore by itself takes all interfaces.
absl::StatusOr<std::pair<int, int>> Listen(const std::string& address) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (getaddrinfo(address.c_str(), "0", &hints, &found) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", address, "\" is not an IP address; give the worker one with --advertise"));
  }
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_storage bound = {};
  socklen_t length = sizeof(bound);
  const bool ok = fd >= 0 && bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0 &&
                  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &length) == 0;
  const int error = errno;
  freeaddrinfo(found);
  if (!ok) {
    if (fd >= 0) close(fd);
    return absl::InternalError(absl::StrCat("cannot listen on ", address, ": ", std::strerror(error)));
  }
  const uint16_t port = bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                    : reinterpret_cast<sockaddr_in*>(&bound)->sin_port;
  return std::pair<int, int>(fd, ntohs(port));
}

class TcpStoreServer : public RendezvousServer {
 public:
  TcpStoreServer(Endpoint endpoint, c10::intrusive_ptr<c10d::TCPStore> store)
      : RendezvousServer(std::move(endpoint)), store_(std::move(store)) {}

 private:
  c10::intrusive_ptr<c10d::TCPStore> store_;
};

// Nothing serves a file: each rank locks it to read or write.
class FileStoreOwner : public RendezvousServer {
 public:
  explicit FileStoreOwner(Endpoint endpoint) : RendezvousServer(std::move(endpoint)) {}
  ~FileStoreOwner() override { unlink(endpoint().file.c_str()); }
};

absl::StatusOr<std::unique_ptr<RendezvousServer>> MakeFile(const std::string& folder, std::string secret) {
  Endpoint endpoint;
  endpoint.file = absl::StrCat(folder, "/rendezvous-", secret);
  endpoint.secret = std::move(secret);
  // Before LibTorch opens it, which would let others read it.
  const int fd = open(endpoint.file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return absl::InternalError(absl::StrCat("cannot make ", endpoint.file, ": ", std::strerror(errno)));
  close(fd);
  return std::make_unique<FileStoreOwner>(std::move(endpoint));
}

absl::StatusOr<std::unique_ptr<RendezvousServer>> ServeOverTcp(const RendezvousServer::Options& rendezvous,
                                                               std::string secret) {
  TACC_ASSIGN_OR_RETURN(const auto fd_port, Listen(rendezvous.advertise));
  const Endpoint endpoint = {rendezvous.advertise, fd_port.second, "", std::move(secret)};
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(endpoint.port);
  options.isServer = true;
  options.numWorkers = static_cast<std::size_t>(rendezvous.world);
  options.waitWorkers = false;
  options.timeout = Milliseconds(rendezvous.timeout);
  options.masterListenFd = fd_port.first;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(endpoint.host, options);
    return std::make_unique<TcpStoreServer>(endpoint, std::move(store));
  } catch (const std::exception& error) {
    return Failure(absl::StrCat("cannot start the rendezvous store on ", endpoint.host, ":", endpoint.port), error);
  }
}

// What an error says of where it is.
std::string PlaceOf(const Endpoint& store) {
  return store.file.empty() ? absl::StrCat(store.host, ":", store.port) : store.file;
}

// Under names of this attempt's ranks alone. A TCPStore lists them to whoever connects; a file is its user's.
c10::intrusive_ptr<c10d::Store> OpenStore(const GlooOptions& options) {
  c10::intrusive_ptr<c10d::Store> store;
  if (!options.store.file.empty()) {
    constexpr int kKeepFile = -1;  // It is not LibTorch's to remove.
    store = c10::make_intrusive<c10d::FileStore>(options.store.file, kKeepFile);
    store->setTimeout(Milliseconds(options.timeout));
  } else {
    c10d::TCPStoreOptions tcp;
    tcp.port = static_cast<std::uint16_t>(options.store.port);
    tcp.isServer = false;
    tcp.waitWorkers = false;
    tcp.timeout = Milliseconds(options.timeout);
    store = c10::make_intrusive<c10d::TCPStore>(options.store.host, tcp);
  }
  return c10::make_intrusive<c10d::PrefixStore>(absl::StrCat("attempt", options.attempt, "-", options.store.secret),
                                                std::move(store));
}

// Returns when all ranks have called it with this name. Throws what the store does when rank 0 has gone.
void WaitForAllAt(c10d::Store& store, const GlooOptions& options, const std::string& name) {
  std::vector<std::string> here;
  for (int rank = 0; rank < options.world; ++rank) here.push_back(absl::StrCat(name, "/", rank));
  store.set(here[options.rank], std::vector<uint8_t>{1});
  while (!store.check(here)) absl::SleepFor(kPollInterval);
}

std::string AddressKey(int rank) { return absl::StrCat("address/", rank); }

// Of each rank, by the address that it advertises: a machine's ranks share one. All have set theirs.
std::vector<int> MachinesOf(c10d::Store& store, int world) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < world; ++rank) keys.push_back(AddressKey(rank));
  std::map<std::vector<uint8_t>, int> numbers;
  std::vector<int> machines;
  for (const std::vector<uint8_t>& address : store.multiGet(keys))
    machines.push_back(numbers.try_emplace(address, static_cast<int>(numbers.size())).first->second);
  return machines;
}

// Of ranks that are all of one user of this machine, once they are connected: that nobody else has come to a port of
// theirs meanwhile, and may have taken a rank's place.
absl::Status CheckPeers(int rank) {
  TACC_ASSIGN_OR_RETURN(const std::set<uid_t> users, TcpPeerUsers());
  for (const uid_t user : users) {
    if (IsOwnUser(user)) continue;
    return absl::UnavailableError(absl::StrCat(
        "user ", user, " has connected to a port of rank ", rank, " while the ranks connected to one another; nothing ",
        "was sent; keep that user away, or train in a network namespace of your own"));
  }
  return absl::OkStatus();
}

class GlooMessage : public Message {
 public:
  GlooMessage(c10::intrusive_ptr<c10d::Work> work, int peer, absl::Duration timeout)
      : work_(std::move(work)), peer_(peer), timeout_(timeout) {}

  absl::Status Wait() override {
    try {
      work_->wait(Milliseconds(timeout_));
      return absl::OkStatus();
    } catch (const std::exception& error) {
      return Failure(absl::StrCat("rank ", peer_, " did not answer"), error);
    }
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  int peer_;
  absl::Duration timeout_;
};

class GlooTransport : public Transport {
 public:
  // `machines`: of each rank.
  GlooTransport(const GlooOptions& options, std::vector<int> machines, c10::intrusive_ptr<c10d::Store> store,
                c10::intrusive_ptr<c10d::ProcessGroupGloo> group)
      : options_(options), machines_(std::move(machines)), store_(std::move(store)), group_(std::move(group)) {}

  int rank() const override { return options_.rank; }
  int world() const override { return options_.world; }
  int machine_of(int rank) const override { return machines_[rank]; }

  absl::StatusOr<std::unique_ptr<Message>> Send(int peer, uint32_t tag, const void* data, size_t num_bytes) override {
    try {
      std::vector<at::Tensor> tensors = {Wrap(const_cast<void*>(data), num_bytes)};
      return std::make_unique<GlooMessage>(group_->send(tensors, peer, static_cast<int>(tag)), peer, options_.timeout);
    } catch (const std::exception& error) {
      return Failure(absl::StrCat("cannot send to rank ", peer), error);
    }
  }

  absl::StatusOr<std::unique_ptr<Message>> Receive(int peer, uint32_t tag, void* data, size_t num_bytes) override {
    try {
      std::vector<at::Tensor> tensors = {Wrap(data, num_bytes)};
      return std::make_unique<GlooMessage>(group_->recv(tensors, peer, static_cast<int>(tag)), peer, options_.timeout);
    } catch (const std::exception& error) {
      return Failure(absl::StrCat("cannot receive from rank ", peer), error);
    }
  }

  absl::Status WaitForAll() override {
    try {
      WaitForAllAt(*store_, options_, absl::StrCat("wait/", ++num_waits_));
      return absl::OkStatus();
    } catch (const std::exception& error) {
      return Failure("rank 0 did not answer", error);
    }
  }

 private:
  static at::Tensor Wrap(void* data, size_t num_bytes) {
    return at::from_blob(data, {static_cast<int64_t>(num_bytes)}, c10::TensorOptions(c10::kByte));
  }

  GlooOptions options_;
  std::vector<int> machines_;
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  int64_t num_waits_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RendezvousServer>> RendezvousServer::Start(const Options& options) {
  TACC_ASSIGN_OR_RETURN(std::string secret, NewSecret());
  return options.local_folder.empty() ? ServeOverTcp(options, std::move(secret))
                                      : MakeFile(options.local_folder, std::move(secret));
}

absl::StatusOr<std::unique_ptr<Transport>> ConnectGloo(const GlooOptions& options) {
  try {
    const c10::intrusive_ptr<c10d::Store> store = OpenStore(options);
    store->set(AddressKey(options.rank), std::vector<uint8_t>(options.advertise.begin(), options.advertise.end()));
    WaitForAllAt(*store, options, "connect");
    auto gloo_options = c10d::ProcessGroupGloo::Options::create(Milliseconds(options.timeout));
    {
      const ScopedBatchPolicy policy;
      gloo_options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(options.advertise)};
    }
    gloo_options->threads = 1;
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(store, options.rank, options.world, gloo_options);
    if (!options.store.file.empty()) TACC_RETURN_IF_ERROR(CheckPeers(options.rank));
    std::vector<int> machines = MachinesOf(*store, options.world);
    return std::make_unique<GlooTransport>(options, std::move(machines), store, std::move(group));
  } catch (const std::exception& error) {
    return Failure(absl::StrCat("rank ", options.rank, " cannot connect to the ranks of attempt ", options.attempt,
                                " by the store at ", PlaceOf(options.store)),
                   error);
  }
}

}  // namespace tacc::worker
