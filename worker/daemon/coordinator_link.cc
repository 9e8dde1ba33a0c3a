#include "worker/daemon/coordinator_link.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "tacc/v1/worker.grpc.pb.h"

namespace tacc::worker {
namespace {

constexpr double kFirstBackoffSeconds = 0.2;
constexpr double kLastBackoffSeconds = 2;
// From dialling to Registered.
constexpr double kHandshakeSeconds = 10;
// Program texts of large models are the longest messages.
constexpr int kMaxMessageBytes = 256 << 20;
// A peer that vanished without a word is noticed after this long without an acknowledgement by its kernel. gRPC sets it
// on the socket when keepalive pings are on; the pings themselves are rarer than the server's default lets pass as
// abuse (five minutes).
constexpr int kSilenceMillis = 10'000;
constexpr int kPingMillis = 600'000;
// The deepest queue of messages that the loop has not taken yet; the stream waits beyond it.
constexpr size_t kMaxUnread = 1024;

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

// One Attach stream. gRPC calls the On... methods from its threads; the loop calls the others.
class AttachStream : public grpc::ClientBidiReactor<v1::AttachRequest, v1::AttachResponse> {
 public:
  AttachStream(v1::WorkerService::Stub* stub, v1::AttachRequest first, std::function<void()> wake)
      : wake_(std::move(wake)), outgoing_(std::move(first)) {
    stub->async()->Attach(&context_, this);
    // Held until Release: the loop starts writes from outside of gRPC's callbacks.
    AddHold();
    StartWrite(&outgoing_);
    StartRead(&incoming_);
    StartCall();
  }

  // What the loop sees of the stream. `received` is taken.
  struct View {
    std::vector<v1::AttachResponse> received;
    bool can_write = false;
    bool is_broken = false;             // Nothing more will be received: call Release.
    absl::optional<absl::Status> done;  // gRPC has let go; the stream can be destroyed.
  };
  View Look() {
    View view;
    bool read_on = false;
    {
      absl::MutexLock lock(&mutex_);
      view.received = std::exchange(received_, {});
      view.can_write = !is_writing_ && !is_broken_;
      view.is_broken = is_broken_;
      view.done = done_;
      read_on = std::exchange(is_paused_, false);
    }
    if (read_on) StartRead(&incoming_);
    return view;
  }

  // Only when can_write.
  void Write(v1::AttachRequest message) {
    {
      absl::MutexLock lock(&mutex_);
      is_writing_ = true;
    }
    outgoing_ = std::move(message);
    StartWrite(&outgoing_);
  }

  void Cancel() { context_.TryCancel(); }

  // The loop will start nothing any more.
  void Release() {
    if (!std::exchange(is_released_, true)) RemoveHold();
  }

  void WaitUntilDone() { done_notification_.WaitForNotification(); }

  void OnReadDone(bool ok) override {
    bool read_on = false;
    {
      absl::MutexLock lock(&mutex_);
      if (ok) {
        received_.push_back(std::move(incoming_));
        incoming_.Clear();
        is_paused_ = received_.size() >= kMaxUnread;
        read_on = !is_paused_;
      } else {
        is_broken_ = true;
      }
    }
    if (read_on) StartRead(&incoming_);
    wake_();
  }

  void OnWriteDone(bool ok) override {
    {
      absl::MutexLock lock(&mutex_);
      // After a failed write the stream is over: the read fails as well and says so.
      is_writing_ = !ok;
    }
    wake_();
  }

  void OnDone(const grpc::Status& status) override {
    {
      absl::MutexLock lock(&mutex_);
      is_broken_ = true;
      done_ = FromGrpc(status);
    }
    wake_();
    done_notification_.Notify();  // The last use of this object.
  }

 private:
  const std::function<void()> wake_;
  grpc::ClientContext context_;
  v1::AttachRequest outgoing_;  // Being written.
  v1::AttachResponse incoming_;
  bool is_released_ = false;  // The loop's.
  absl::Mutex mutex_;
  std::vector<v1::AttachResponse> received_ ABSL_GUARDED_BY(mutex_);
  bool is_writing_ ABSL_GUARDED_BY(mutex_) = true;
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_paused_ ABSL_GUARDED_BY(mutex_) = false;  // No read is under way: too much is unread.
  absl::optional<absl::Status> done_ ABSL_GUARDED_BY(mutex_);
  absl::Notification done_notification_;
};

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const identity::Tls& tls) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, static_cast<int>(kFirstBackoffSeconds * 1000));
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(kLastBackoffSeconds * 1000));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, static_cast<int>(kLastBackoffSeconds * 1000));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMillis);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kSilenceMillis);
  // Loopback and cluster addresses are dialled directly, whatever proxy the environment names for the web.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return identity::MakeChannel(address, tls, std::move(arguments));
}

bool IsFinal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status) || absl::IsPermissionDenied(status);
}

}  // namespace

struct CoordinatorLink::Impl {
  std::function<void()> wake;
  std::unique_ptr<v1::WorkerService::Stub> stub;
  std::unique_ptr<AttachStream> stream;
  bool is_registered = false;
  bool can_write = false;
  bool is_refused = false;
  bool is_cancelled = false;  // By us, for want of an answer.
  double dialled = 0;
  double next_dial = 0;
  double backoff = kFirstBackoffSeconds;
};

CoordinatorLink::CoordinatorLink(const std::string& address, const identity::Tls& tls, std::function<void()> wake)
    : impl_(std::make_unique<Impl>()) {
  impl_->wake = std::move(wake);
  impl_->stub = v1::WorkerService::NewStub(MakeChannel(address, tls));
}

CoordinatorLink::~CoordinatorLink() {
  if (impl_->stream == nullptr) return;
  impl_->stream->Cancel();
  impl_->stream->Release();
  impl_->stream->WaitUntilDone();
}

std::vector<CoordinatorLink::Event> CoordinatorLink::Poll(double now,
                                                          const std::function<v1::Register()>& registration) {
  std::vector<Event> events;
  Impl& impl = *impl_;
  if (impl.stream == nullptr) {
    if (impl.is_refused || now < impl.next_dial) return events;
    v1::AttachRequest first;
    *first.mutable_register_() = registration();
    impl.dialled = now;
    impl.is_registered = impl.can_write = impl.is_cancelled = false;
    impl.stream = std::make_unique<AttachStream>(impl.stub.get(), std::move(first), impl.wake);
    return events;
  }
  AttachStream::View view = impl.stream->Look();
  for (v1::AttachResponse& response : view.received) {
    const bool welcome = response.has_registered();
    if (welcome) {
      impl.is_registered = true;
      impl.backoff = kFirstBackoffSeconds;
    }
    events.push_back(
        {welcome ? Event::Kind::kRegistered : Event::Kind::kMessage, std::move(response), absl::OkStatus()});
  }
  impl.can_write = view.can_write;
  if (!impl.is_registered && !impl.is_cancelled && now >= impl.dialled + kHandshakeSeconds) {
    impl.is_cancelled = true;
    impl.stream->Cancel();
  }
  if (view.is_broken) impl.stream->Release();
  if (!view.done.has_value()) return events;
  impl.stream->WaitUntilDone();
  impl.stream.reset();
  impl.is_registered = impl.can_write = false;
  absl::Status status = *view.done;
  if (status.ok()) status = absl::UnavailableError("the coordinator ended the stream");
  if (impl.is_cancelled) status = absl::DeadlineExceededError("the coordinator did not answer the registration");
  impl.is_refused = IsFinal(status);
  impl.next_dial = now + impl.backoff;
  impl.backoff = std::min(2 * impl.backoff, kLastBackoffSeconds);
  events.push_back({impl.is_refused ? Event::Kind::kRefused : Event::Kind::kDisconnected, {}, std::move(status)});
  return events;
}

bool CoordinatorLink::CanSend() const { return impl_->is_registered && impl_->can_write; }

void CoordinatorLink::Send(v1::AttachRequest message) {
  impl_->can_write = false;
  impl_->stream->Write(std::move(message));
}

bool CoordinatorLink::IsRegistered() const { return impl_->is_registered; }

double CoordinatorLink::NextDue() const {
  if (impl_->stream == nullptr) return impl_->is_refused ? std::numeric_limits<double>::infinity() : impl_->next_dial;
  if (!impl_->is_registered && !impl_->is_cancelled) return impl_->dialled + kHandshakeSeconds;
  return std::numeric_limits<double>::infinity();
}

}  // namespace tacc::worker
