// What ThreadSanitizer has to be told of Abseil's synchronization: the library is Debian's, not instrumented, so that
// without this all that a mutex or a notification guards looks like a race. Linked into programs that are built with
// TACC_SANITIZE=thread (cmake/Sanitize.cmake), before the library: each function here tells what it orders, and calls
// the library's own.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

// Of the runtime (compiler-rt's tsan_interface.h; annotations as Valgrind knows them).
extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

#define TACC_TEXT_OF(name) #name
#define TACC_TEXT(name) TACC_TEXT_OF(name)
// The mangled name of a member of absl::debian3.
#define TACC_SYMBOL(kind, rest) kind "4absl7" TACC_TEXT(ABSL_OPTION_INLINE_NAMESPACE_NAME) rest
static_assert(sizeof(TACC_TEXT(ABSL_OPTION_INLINE_NAMESPACE_NAME)) == 7 + 1, "its length stands in TACC_SYMBOL");

namespace {

template <typename Function>
Function* Real(const char* symbol) {
  void* found = dlsym(RTLD_NEXT, symbol);
  if (found == nullptr) {
    std::fprintf(stderr, "%s is not in Abseil's libraries\n", symbol);
    std::abort();
  }
  return reinterpret_cast<Function*>(found);
}

// Conditions of other waiters are evaluated in whoever unlocks, ordered by the library's own lock.
class IgnoringReads {
 public:
  IgnoringReads() { AnnotateIgnoreReadsBegin(__FILE__, __LINE__); }
  ~IgnoringReads() { AnnotateIgnoreReadsEnd(__FILE__, __LINE__); }
};

// A notification's flag, which HasBeenNotified reads without a lock, stands behind its mutex.
void* FlagOf(const absl::Notification* notification) {
  return reinterpret_cast<char*>(const_cast<absl::Notification*>(notification)) + sizeof(absl::Mutex);
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static auto* const real = Real<void(Mutex*)>(TACC_SYMBOL("_ZN", "5Mutex4LockEv"));
  {
    const IgnoringReads conditions;
    real(this);
  }
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static auto* const real = Real<void(Mutex*)>(TACC_SYMBOL("_ZN", "5Mutex6UnlockEv"));
  __tsan_release(this);
  const IgnoringReads conditions;
  real(this);
}

void Mutex::Await(const Condition& condition) {
  static auto* const real = Real<void(Mutex*, const Condition&)>(TACC_SYMBOL("_ZN", "5Mutex5AwaitERKNS0_9ConditionE"));
  __tsan_release(this);
  {
    const IgnoringReads conditions;
    real(this, condition);
  }
  __tsan_acquire(this);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, absl::Duration timeout) {
  static auto* const real = Real<bool(Mutex*, const Condition&, absl::Duration)>(
      TACC_SYMBOL("_ZN", "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE"));
  __tsan_release(this);
  bool holds = false;
  {
    const IgnoringReads conditions;
    holds = real(this, condition, timeout);
  }
  __tsan_acquire(this);
  return holds;
}

void CondVar::Wait(Mutex* mutex) {
  static auto* const real = Real<void(CondVar*, Mutex*)>(TACC_SYMBOL("_ZN", "7CondVar4WaitEPNS0_5MutexE"));
  __tsan_release(mutex);
  {
    const IgnoringReads conditions;
    real(this, mutex);
  }
  __tsan_acquire(mutex);
}

void Notification::Notify() {
  static auto* const real = Real<void(Notification*)>(TACC_SYMBOL("_ZN", "12Notification6NotifyEv"));
  __tsan_release(FlagOf(this));
  real(this);
}

void Notification::WaitForNotification() const {
  static auto* const real =
      Real<void(const Notification*)>(TACC_SYMBOL("_ZNK", "12Notification19WaitForNotificationEv"));
  real(this);
  __tsan_acquire(FlagOf(this));
}

bool Notification::WaitForNotificationWithTimeout(absl::Duration timeout) const {
  static auto* const real = Real<bool(const Notification*, absl::Duration)>(
      TACC_SYMBOL("_ZNK", "12Notification30WaitForNotificationWithTimeoutENS0_8DurationE"));
  const bool is_notified = real(this, timeout);
  if (is_notified) __tsan_acquire(FlagOf(this));
  return is_notified;
}

ABSL_NAMESPACE_END
}  // namespace absl
