#include "client/taccctl/session/interrupt.h"

#include <chrono>
#include <utility>

namespace tacc::client {

void Interrupt::Raise() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++count_;
  Tell();
}

void Interrupt::Signal(double now) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (now - last_signal_ < kOneWishSeconds) return;
    last_signal_ = now;
  }
  Raise();
}

void Interrupt::Abort(const absl::Status& status) {
  const std::lock_guard<std::mutex> lock(mutex_);
  aborted_.Update(status);
  Tell();
}

void Interrupt::Tell() {
  changed_.notify_all();
  for (const std::function<void()>* hook : hooks_) (*hook)();
}

int Interrupt::count() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return count_;
}

absl::Status Interrupt::aborted() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return aborted_;
}

bool Interrupt::WaitFor(double seconds, int seen) const {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                           [&] { return count_ > seen || !aborted_.ok(); });
}

Interrupt::Hook::Hook(Interrupt* interrupt, int seen, std::function<void()> function)
    : interrupt_(interrupt), function_(std::move(function)) {
  const std::lock_guard<std::mutex> lock(interrupt_->mutex_);
  if (interrupt_->count_ > seen || !interrupt_->aborted_.ok()) function_();
  interrupt_->hooks_.push_back(&function_);
}

Interrupt::Hook::~Hook() {
  const std::lock_guard<std::mutex> lock(interrupt_->mutex_);
  std::erase(interrupt_->hooks_, &function_);
}

}  // namespace tacc::client
