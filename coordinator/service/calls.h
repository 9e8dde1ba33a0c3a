// Calls that have come to a handler, from there to their end: a connection that makes one is known from then on, and
// those that are open are counted, for the connection and for who made them.
#ifndef TACC_COORDINATOR_SERVICE_CALLS_H_
#define TACC_COORDINATOR_SERVICE_CALLS_H_

#include <grpcpp/support/server_interceptor.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "coordinator/service/newcomers.h"
#include "identity/call_limits.h"
#include "identity/principal.h"
#include "machine/token_bucket.h"

namespace tacc::coordinator {

// What each connection by which a call has come does, and how many of them each principal has: nobody may keep the
// others out. Thread-safe.
//
// HTTP/2 bounds the calls that a client still waits for; what comes beyond were cancelled, and cost memory until their
// handlers have ended: with too many of them a connection is ended. That may happen to an honest one, whose calls time
// out while the coordinator waits for its disk. What a connection sends some time after its last call are frames that
// gRPC answers by itself, such as pings: with too many of them it is ended as well, and with `shut_out`, which then
// keeps its principal out for a while, so are all others of that principal.
//
// Cost: a call, a look-up at its begin and at its end; a connection without calls, a question to the kernel 4 times a
// second.
class Connections {
 public:
  struct Limits {
    int max_unfinished = 512;        // Calls of one; more are too many.
    size_t of_client = 1000;         // That one principal has; one more is ended.
    size_t of_worker = 10000;        // One certificate may be that of many machines.
    int64_t idle_bytes = 256 << 10;  // That one may send in a quarter of a second without a call,
    double calm_seconds = 2;         // so long after the last: what was on the way then has come.
  };
  using ShutOut = std::function<void(const identity::Principal&, const std::string& did)>;
  explicit Connections(Limits limits, ShutOut shut_out = nullptr);
  ~Connections();

  // A call by `peer`, gRPC's name of the connection's other end, whose descriptor is `fd`; -1: that was said before.
  // Without certificates there are no principals.
  void Begin(const std::string& peer, int fd, const std::optional<identity::Principal>& principal);
  void End(const std::string& peer);
  // Does that with all connections of a principal.
  void ShutOutAll(const identity::Principal& principal, const std::string& did);

 private:
  struct Connection {
    int fd = -1;  // gRPC's, which may have closed it: it is looked at anew before anything is done to it.
    std::string address;
    std::optional<identity::Principal> principal;  // Of tokens of several the last call's.
    std::string holder;                            // As Describe says; empty: there is none.
    int num_open = 0;
    double called = 0;  // When a call last began or ended, in steady seconds.
    int64_t bytes = 0;  // As of the last look.
  };
  using Peers = absl::flat_hash_set<std::string>;
  // What is to be ended, and why.
  struct Verdict {
    std::vector<std::pair<int, std::string>> connections;  // Descriptors, with their addresses.
    std::optional<identity::Principal> shut_out;
    std::string did;
  };
  // With the lock held. SetHolder says whether it is another one than before.
  bool SetHolder(const std::string& peer, Connection* connection, const std::optional<identity::Principal>& principal);
  void Forget(const std::string& peer);
  bool IsOneTooMany(const std::string& peer, const Connection& connection);
  Verdict Condemn(const Connection& connection, std::string did);
  Verdict AgainstAllOf(const identity::Principal& principal, std::string did);
  // Without it.
  void Execute(const Verdict& verdict);
  void Run();

  const Limits limits_;
  const ShutOut shut_out_;
  std::mutex mutex_;
  std::condition_variable changed_;
  absl::flat_hash_map<std::string, Connection> connections_;  // By peer. Some may be closed.
  absl::flat_hash_map<std::string, Peers> peers_of_;          // Of each holder.
  TokenBucket warnings_{0.1, 1}, shut_outs_{0.1, 1};
  bool ending_ = false;
  std::thread thread_;
};

// How many streams that follow jobs each caller has open: each costs a look whenever a job has something new, and
// nobody may keep the others out. Thread-safe.
class OpenStreams {
 public:
  struct Limits {
    int of_one = 1000;
    int of_all = 10000;
  };
  explicit OpenStreams(Limits limits) : limits_(limits) {}
  // One more of that caller, for as long as the ticket lives. ResourceExhausted: there are as many as there may be.
  absl::StatusOr<std::shared_ptr<void>> Open(const std::string& caller);

 private:
  void Close(const std::string& caller);

  const Limits limits_;
  std::mutex mutex_;
  int num_open_ = 0;
  absl::flat_hash_map<std::string, int> num_open_of_;
};

class CallInterceptors : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  // They outlive the server. Without certificates there are no principals: null.
  struct Parts {
    Newcomers* newcomers = nullptr;
    Connections* connections = nullptr;
    identity::CallLimits* principals = nullptr;
  };
  explicit CallInterceptors(Parts parts) : parts_(parts) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override;

 private:
  const Parts parts_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_SERVICE_CALLS_H_
