// A server stream that is filled page by page from the loop's thread, and follows what is added.
#ifndef TACC_COORDINATOR_SERVICE_PAGE_STREAM_H_
#define TACC_COORDINATOR_SERVICE_PAGE_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "coordinator/service/grpc_status.h"
#include "coordinator/service/loop.h"

namespace tacc::coordinator {

// What reading one page gave.
template <typename Response>
struct StreamPage {
  std::deque<Response> responses;
  // With no responses: nothing will come any more.
  bool complete = false;
  // With no responses: there is more to look through now. What the loop has to do besides comes first.
  bool goes_on = false;
  absl::Status status;
};

// Lives until gRPC has called OnDone and nobody holds it any more.
template <typename Response>
class PageStream : public grpc::ServerWriteReactor<Response>,
                   public Watcher,
                   public std::enable_shared_from_this<PageStream<Response>> {
 public:
  // Runs on the loop's thread; is called again after an incomplete empty page when the job has something new.
  using ReadPage = std::function<StreamPage<Response>(const Loop::View&)>;

  // `ticket` lives as long as the stream. The pointer must be handed to gRPC, which ends its life.
  static std::shared_ptr<PageStream> Make(Loop* loop, ReadPage read, std::shared_ptr<void> ticket) {
    std::shared_ptr<PageStream> stream(new PageStream(loop, std::move(read), std::move(ticket)));
    stream->self_ = stream;
    return stream;
  }

  // `job` is an id.
  void Begin(const std::string& job) {
    loop_->Watch(job, this->shared_from_this());
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ != State::kFinished) PullLocked();
  }

  void Fail(const grpc::Status& status) {
    std::lock_guard<std::mutex> lock(mutex_);
    FinishLocked(status);
  }

  void Wake() override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (state_ == State::kReading) {
      again_ = true;
    } else if (state_ == State::kIdle && !cancelled_) {
      PullLocked();
    }
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    page_.responses.pop_front();
    if (!ok || cancelled_) return FinishLocked(grpc::Status::CANCELLED);
    NextLocked();
  }

  void OnCancel() override {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    if (state_ == State::kIdle) FinishLocked(grpc::Status::CANCELLED);
  }

  void OnDone() override { self_.reset(); }

 private:
  enum class State { kIdle, kReading, kWriting, kFinished };

  PageStream(Loop* loop, ReadPage read, std::shared_ptr<void> ticket)
      : loop_(loop), read_(std::move(read)), ticket_(std::move(ticket)) {}

  void PullLocked() {
    state_ = State::kReading;
    again_ = false;
    loop_->Read([self = this->shared_from_this()](const Loop::View& view) {
      StreamPage<Response> page = self->read_(view);
      std::lock_guard<std::mutex> lock(self->mutex_);
      self->page_ = std::move(page);
      self->state_ = State::kIdle;
      if (self->cancelled_) return self->FinishLocked(grpc::Status::CANCELLED);
      self->NextLocked();
    });
  }
  // Writes the next response of the page, or goes on to the next page.
  void NextLocked() {
    if (!page_.responses.empty()) {
      state_ = State::kWriting;
      this->StartWrite(&page_.responses.front());
    } else if (!page_.status.ok() || page_.complete) {
      FinishLocked(ToGrpc(page_.status));
    } else if (state_ == State::kWriting || again_ || page_.goes_on) {
      PullLocked();
    } else {
      state_ = State::kIdle;
    }
  }
  void FinishLocked(const grpc::Status& status) {
    if (state_ == State::kFinished) return;
    state_ = State::kFinished;
    this->Finish(status);
  }

  Loop* const loop_;
  const ReadPage read_;
  const std::shared_ptr<void> ticket_;
  std::shared_ptr<PageStream> self_;
  std::mutex mutex_;
  State state_ = State::kIdle;
  bool again_ = false;  // Woken while reading.
  bool cancelled_ = false;
  StreamPage<Response> page_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_SERVICE_PAGE_STREAM_H_
