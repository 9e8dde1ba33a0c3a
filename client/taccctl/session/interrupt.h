// Ctrl-C and other reasons to leave what is being waited for.
#ifndef TACC_CLIENT_TACCCTL_SESSION_INTERRUPT_H_
#define TACC_CLIENT_TACCCTL_SESSION_INTERRUPT_H_

#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "absl/status/status.h"

namespace tacc::client {

// What asks a running command to stop waiting. Thread-safe; main raises it from the thread that takes signals, never
// from a signal handler.
class Interrupt {
 public:
  // The user wants to leave (SIGINT, SIGTERM): counted, and the hooks are called.
  void Raise();
  // The same for a signal that came at `now` (steady seconds). Signals within kOneWishSeconds of one that counted are
  // the same wish: who is asked to end in front of this process may send on what its whole group has got already.
  void Signal(double now);
  static constexpr double kOneWishSeconds = 1;
  // The command cannot go on, because of `status` (not OK); the first one stays. The hooks are called.
  void Abort(const absl::Status& status);

  // How often Raise was called.
  int count() const;
  // What Abort was given, OK before.
  absl::Status aborted() const;

  // Sleeps; returns early with true when Raise was called more than `seen` times, or Abort.
  bool WaitFor(double seconds, int seen) const;

  // While it lives, `function` is called by Raise and Abort, on their thread and under a lock: it must be short and
  // call no method of Interrupt. Called at once when Raise was called more than `seen` times before, or Abort. Hooks
  // nest: all that live are called.
  class Hook {
   public:
    Hook(Interrupt* interrupt, int seen, std::function<void()> function);
    ~Hook();
    Hook(const Hook&) = delete;
    Hook& operator=(const Hook&) = delete;

   private:
    Interrupt* const interrupt_;
    const std::function<void()> function_;
  };

 private:
  // Under the lock.
  void Tell();

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  int count_ = 0;
  double last_signal_ = -kOneWishSeconds;  // That counted.
  absl::Status aborted_;
  std::vector<const std::function<void()>*> hooks_;
};

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_SESSION_INTERRUPT_H_
