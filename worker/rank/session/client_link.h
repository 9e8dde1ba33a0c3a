// The connection of a rank to the client that drives it: frames of docs/contracts.md over a Unix socket, with the
// batches in memory that both map or in the frames, or over TCP.
#ifndef TACC_WORKER_RANK_SESSION_CLIENT_LINK_H_
#define TACC_WORKER_RANK_SESSION_CLIENT_LINK_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "worker/rank/session/client_command.h"
#include "worker/rank/session/client_inputs.h"
#include "worker/rank/session/client_socket.h"
#include "worker/rank/session/frame.h"
#include "worker/rank/session/outbox.h"
#include "worker/rank/session/ring.h"

namespace tacc::worker {

// Where a rank listens for its client.
struct ClientEndpoint {
  std::string local;  // A Unix socket, for clients of its machine: an abstract name, or a path with a slash in front.
  std::string host;   // Empty: the Unix socket is all.
  int port = 0;
  std::string token;  // That a client must show.
};

// Listens for a client on a thread of its own. One client at a time: another one that shows the token takes the place
// of the one before, whose connection ends. What a client may make the rank hold is bounded: two commands, their
// answers, and two before these. None waits for a client that does not read.
//
// A client sends a command when it has the answer to the one before it, or while that one is carried out. After its
// connection broke it sends those again that it has no answer to: what was carried out is answered from memory.
class ClientLink {
 public:
  // The largest state that a client may give.
  static constexpr int64_t kMaxStateBytes = 64 << 20;
  // So many connections over TCP, and as many over the Unix socket, may be without a token; the oldest goes when there
  // is one more.
  static constexpr size_t kMaxWaiting = 64;

  struct Options {
    std::string advertise;              // The address to listen at, for clients of other machines,
    std::string local_folder;           // or, if that is set, a folder of this user alone, for the one socket.
    std::vector<ClientBucket> buckets;  // At least one. The first is of the micro-batches whose length is not said.
    int64_t num_micro_batches = 1;
    // What a client is told when it comes, beside what the link knows, and bytes with it. Called while no command is
    // carried out, by the link's thread or the rank's.
    std::function<nlohmann::json(std::string* bytes)> welcome;
  };

  // Errors: Unavailable when it cannot listen.
  static absl::StatusOr<std::unique_ptr<ClientLink>> Open(Options options);
  ~ClientLink();
  ClientLink(const ClientLink&) = delete;
  ClientLink& operator=(const ClientLink&) = delete;

  const ClientEndpoint& endpoint() const { return endpoint_; }

  // The methods below are for one thread, the rank's.

  // The oldest command that was not taken; null when none comes in time.
  std::shared_ptr<const ClientCommand> Next(absl::Duration time_out);
  // Carries it out from now on: its client may be gone, or have sent it again.
  void Take(const std::shared_ptr<const ClientCommand>& command);
  // Its answer, of the oldest that was taken. An `error` in it says why nothing was done.
  // Does not wait until the client has it.
  void Answer(nlohmann::json answer, std::string bytes = "");

  // How long there has been no client; zero while there is one.
  absl::Duration WithoutClient();

 private:
  static constexpr uint32_t kMaxHelloBytes = 4096;
  struct Connection {
    int fd = -1;
    bool is_local = false;
    bool is_attached = false;
    absl::Time since;  // When it came.
    std::string client;
    GivenDescriptor memory;  // Until it is mapped.
    std::shared_ptr<const Ring> ring;
    FrameReader reader{kMaxHelloBytes};
    // Under the link's mutex:
    Outbox outbox;
    bool ends = false;  // When it has what is in the outbox.
    ~Connection();
  };
  struct Answered {
    uint64_t serial = 0;
    std::shared_ptr<const Outbox::Message> message;
  };

  explicit ClientLink(Options options) : options_(std::move(options)) {}
  absl::Status Listen();
  absl::Status ListenLocally();
  absl::Status ListenOverTcp();
  void Loop();
  void Accept(int listener, bool is_local);
  void Forget(const std::shared_ptr<Connection>& connection);
  // False: the connection is over.
  bool Read(const std::shared_ptr<Connection>& connection);
  absl::Status Attach(const std::shared_ptr<Connection>& connection);
  absl::Status TakeCommand(const std::shared_ptr<Connection>& connection);
  absl::StatusOr<std::shared_ptr<ClientCommand>> ParseCommand(Connection& connection) const;
  // Fills the buckets of its micro-batches, by their lengths.
  absl::Status FindBuckets(const nlohmann::json& header, ClientCommand& command) const;
  // Puts the inputs that came compressed in the place of what came.
  absl::Status Unpack(const nlohmann::json& packed, ClientCommand& command) const;
  absl::Status PlaceTensors(const nlohmann::json& header, ClientCommand& command) const;
  // Tells the client that waits for it that it is attached, when nothing is carried out.
  void Welcome() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t MaxBytes(const Connection& connection) const;
  bool MayRead(const Connection& connection);
  // What to poll it for.
  int16_t Events(const Connection& connection);
  // Has not shown the token in time, or does not take what it is sent.
  bool IsLate(const Connection& connection);
  // False: the connection is over.
  bool Serve(const std::shared_ptr<Connection>& connection, int events);
  void Post(Connection& connection, std::shared_ptr<const Outbox::Message> message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  ClientEndpoint endpoint_;
  int local_listener_ = -1, listener_ = -1, wake_ = -1;  // -1: there is none.
  std::list<std::shared_ptr<Connection>> connections_;   // Of the thread.
  bool accepts_ = true;                                  // Of the thread: the last connections were no error.
  std::thread thread_;

  absl::Mutex mutex_;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Connection> attached_ ABSL_GUARDED_BY(mutex_);
  bool is_welcome_due_ ABSL_GUARDED_BY(mutex_) = false;
  std::string client_ ABSL_GUARDED_BY(mutex_);  // The one that came last.
  absl::Time left_ ABSL_GUARDED_BY(mutex_);     // When there was a client last.
  std::shared_ptr<ClientCommand> next_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<const ClientCommand>> taken_ ABSL_GUARDED_BY(mutex_);  // And not answered.
  std::deque<Answered> answered_ ABSL_GUARDED_BY(mutex_);                           // Of `client_`, the newest two.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_SESSION_CLIENT_LINK_H_
