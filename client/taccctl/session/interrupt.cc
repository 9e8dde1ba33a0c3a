#include "client/taccctl/session/interrupt.h"

#include <chrono>
#include <utility>

namespace tacc::client {

void Interrupt::Raise() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++count_;
  changed_.notify_all();
  if (hook_) hook_();
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
  changed_.notify_all();
  if (hook_) hook_();
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

Interrupt::Hook::Hook(Interrupt* interrupt, int seen, std::function<void()> function) : interrupt_(interrupt) {
  const std::lock_guard<std::mutex> lock(interrupt_->mutex_);
  if (interrupt_->count_ > seen || !interrupt_->aborted_.ok()) function();
  interrupt_->hook_ = std::move(function);
}

Interrupt::Hook::~Hook() {
  const std::lock_guard<std::mutex> lock(interrupt_->mutex_);
  interrupt_->hook_ = nullptr;
}

}  // namespace tacc::client
