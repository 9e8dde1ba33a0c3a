#include "worker/rank/protocol/folder_claim.h"

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "machine/clock.h"
#include "worker/checkpoint/folder_writer.h"
#include "worker/checkpoint/writer.h"

namespace tacc::worker {

// What the thread shares with the object, which may go before it.
struct FolderClaim::Shared {
  explicit Shared(Options its_options) : options(std::move(its_options)) {}

  // Who writes there. Errors as Check.
  absl::StatusOr<absl::optional<FolderWriter>> Look(bool ends = false) const;
  // Nothing while the folder is away.
  void Renew(bool ends);
  void Loop();

  const Options options;
  // The file has named this attempt; before that an earlier one may stand there still.
  std::atomic<bool> has_begun = false;
  absl::Mutex mutex;
  // Guarded by it:
  bool is_ending = false;
  bool has_ended = false;  // The folder is anybody's then.
  bool is_done = false;
};

absl::StatusOr<absl::optional<FolderWriter>> FolderClaim::Shared::Look(bool ends) const {
  absl::StatusOr<absl::optional<FolderWriter>> writer = ReadFolderWriter(options.dir);
  if (!writer.ok() || !writer->has_value()) return writer;
  const FolderWriter& its = **writer;
  const bool is_ours = its.service == options.service && its.job == options.job;
  if (is_ours && (its.attempt == options.attempt || (!has_begun && its.attempt < options.attempt))) return writer;
  const std::string who =
      is_ours ? absl::StrCat("checkpoint.dir ", options.dir, " is used by a later attempt of job ", options.job)
              : FolderUser(options.dir, its, options.service);
  const absl::Status lost = absl::FailedPreconditionError(
      absl::StrCat(who, ", which has taken it over from attempt ", options.attempt, " of job ", options.job,
                   ": this attempt ends, and saves nothing more there"));
  // Who has come to its end has lost nothing.
  if (options.on_lost && !ends) options.on_lost(lost);
  return lost;
}

void FolderClaim::Shared::Renew(bool ends) {
  // What a lost mount has left is not touched.
  if (!CheckClaimed(options.dir).ok()) return;
  const auto before = Look(ends);
  if (!before.ok()) return;
  FolderWriter writer = before->value_or(FolderWriter());
  if (writer.service.empty()) writer.since = WallSeconds();
  writer.service = options.service;
  writer.job = options.job;
  writer.attempt = options.attempt;
  writer.has_ended = ends;
  // Tried again the next time.
  if (WriteFolderWriter(options.dir, std::move(writer)).ok()) has_begun = true;
}

void FolderClaim::Shared::Loop() {
  absl::MutexLock lock(&mutex);
  for (bool is_last = false; !is_last;) {
    is_last = mutex.AwaitWithTimeout(absl::Condition(&is_ending), absl::Seconds(options.renew_seconds));
    const bool ends = has_ended;
    if (is_last && !ends) break;
    mutex.Unlock();
    Renew(ends);
    mutex.Lock();
  }
  is_done = true;
}

FolderClaim::FolderClaim(Options options) : shared_(std::make_shared<Shared>(std::move(options))) {
  shared_->Renew(/*ends=*/false);
  thread_ = std::thread([shared = shared_] { shared->Loop(); });
}

FolderClaim::~FolderClaim() { Stop(/*has_ended=*/false); }

absl::Status FolderClaim::Check() { return shared_->Look().status(); }

void FolderClaim::End() { Stop(/*has_ended=*/true); }

void FolderClaim::Stop(bool has_ended) {
  if (!thread_.joinable()) return;
  bool is_done = false;
  {
    absl::MutexLock lock(&shared_->mutex);
    shared_->is_ending = true;
    shared_->has_ended = has_ended;
    is_done = shared_->mutex.AwaitWithTimeout(absl::Condition(&shared_->is_done),
                                              absl::Seconds(shared_->options.end_seconds));
  }
  if (is_done) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

}  // namespace tacc::worker
