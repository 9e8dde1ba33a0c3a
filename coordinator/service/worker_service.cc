#include "coordinator/service/worker_service.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/service/grpc_status.h"
#include "identity/access.h"

namespace tacc::coordinator {
namespace {

constexpr size_t kMaxStreams = 70000;
constexpr size_t kMaxShownBytes = 128;
// A daemon that reads nothing is cut off before it fills our memory.
constexpr size_t kMaxQueuedBytes = size_t{256} << 20;

}  // namespace

// One daemon's stream. Lives until gRPC has called OnDone and nobody holds it any more.
class WorkerStream : public grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>,
                     public std::enable_shared_from_this<WorkerStream> {
 public:
  WorkerStream(WorkerHandlers* handlers, Loop* loop, grpc::CallbackServerContext* context, uint64_t session)
      : handlers_(handlers), loop_(loop), context_(context), session_(session) {}

  void Begin() {
    self_ = shared_from_this();
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      // The daemon is gone or has closed its side.
      loop_->Post(WorkerDetached{session_});
      End(grpc::Status::OK);
      return;
    }
    Input input;
    if (registered_) {
      input = WorkerMessage{session_, std::move(incoming_)};
    } else if (incoming_.has_register_()) {
      if (const absl::Status status = CheckName(incoming_.register_().name()); !status.ok()) return End(ToGrpc(status));
      registered_ = true;
      input = WorkerAttached{session_, std::move(*incoming_.mutable_register_())};
    } else {
      End(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the first message must be Register"));
      return;
    }
    // The next message is read when this one was handled: a daemon cannot fill the loop's queue.
    loop_->Post(std::move(input), [self = shared_from_this()] { self->ReadNext(); });
  }

  void Write(v1::AttachResponse message) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (ending_) return;
    queued_bytes_ += message.ByteSizeLong();
    if (queued_bytes_ > kMaxQueuedBytes) {
      lock.unlock();
      return End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the worker does not read what it is sent"));
    }
    outgoing_.push_back(std::move(message));
    if (outgoing_.size() == 1) StartWrite(&outgoing_.front());
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    queued_bytes_ -= outgoing_.front().ByteSizeLong();
    outgoing_.pop_front();
    if (ending_ || !ok) {
      // A failed write means a dead stream: the read fails as well and ends it.
      if (ending_) FinishLocked();
      return;
    }
    if (!outgoing_.empty()) StartWrite(&outgoing_.front());
  }

  // Ends the stream with `status`; when a write is under way, which may never end, by cancelling it. Later calls do
  // nothing.
  void End(const grpc::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ending_) return;
    ending_ = true;
    status_ = status;
    if (outgoing_.empty()) {
      FinishLocked();
    } else {
      outgoing_.resize(1);
      context_->TryCancel();
    }
  }

  void OnCancel() override { End(grpc::Status::CANCELLED); }

  void OnDone() override {
    handlers_->Remove(session_);
    loop_->Post(WorkerDetached{session_});
    self_.reset();
  }

 private:
  // By TLS a worker is who its certificate says, and nobody else: what it says later is of the ranks placed on it.
  absl::Status CheckName(const std::string& name) const {
    const absl::StatusOr<std::optional<identity::Principal>> peer = identity::PeerOf(*context_);
    if (!peer.ok()) return peer.status();
    if (!peer->has_value() || identity::IsWorker(**peer, name)) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat(identity::Describe(**peer), " cannot be worker ",
                                                    name.substr(0, kMaxShownBytes), "; give it another --name"));
  }

  void ReadNext() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!ending_) StartRead(&incoming_);
  }
  void FinishLocked() {
    if (finished_) return;
    finished_ = true;
    Finish(status_);
  }

  WorkerHandlers* const handlers_;
  Loop* const loop_;
  grpc::CallbackServerContext* const context_;
  const uint64_t session_;
  std::shared_ptr<WorkerStream> self_;
  v1::AttachRequest incoming_;
  bool registered_ = false;
  std::mutex mutex_;
  std::deque<v1::AttachResponse> outgoing_;  // The first is being written.
  size_t queued_bytes_ = 0;
  bool ending_ = false;
  bool finished_ = false;
  grpc::Status status_;
};

grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>* WorkerHandlers::Attach(
    grpc::CallbackServerContext* context) {
  std::shared_ptr<WorkerStream> stream;
  bool full = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stream = std::make_shared<WorkerStream>(this, loop_, context, ++last_session_);
    full = streams_.size() >= kMaxStreams;
    streams_[last_session_] = stream;
  }
  stream->Begin();
  if (full) stream->End(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many workers"));
  return stream.get();
}

std::shared_ptr<WorkerStream> WorkerHandlers::Find(uint64_t session) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto it = streams_.find(session);
  return it == streams_.end() ? nullptr : it->second.lock();
}

void WorkerHandlers::Remove(uint64_t session) {
  std::lock_guard<std::mutex> lock(mutex_);
  streams_.erase(session);
}

void WorkerHandlers::Send(uint64_t session, v1::AttachResponse message) {
  if (auto stream = Find(session)) stream->Write(std::move(message));
}

void WorkerHandlers::Close(uint64_t session, const absl::Status& status) {
  if (auto stream = Find(session)) stream->End(ToGrpc(status));
}

}  // namespace tacc::coordinator
