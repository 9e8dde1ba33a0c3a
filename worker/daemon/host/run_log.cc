#include "worker/daemon/host/run_log.h"

#include <sys/stat.h>

#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "machine/clock.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/writer.h"
#include "worker/daemon/host/rotating_log.h"

namespace tacc::worker {
namespace {

constexpr char kAttemptPrefix[] = "attempt-";

std::string LogsFolder(const RunLog::Place& place) { return absl::StrCat(place.checkpoint_dir, "/logs"); }

// Removes the folders of old attempts. What cannot be removed now is tried again in the next attempt.
void Prune(const RunLog::Place& place, int32_t num_attempts) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(LogsFolder(place));
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    absl::string_view number = name;
    int32_t attempt = 0;
    if (!absl::ConsumePrefix(&number, kAttemptPrefix) || !absl::SimpleAtoi(number, &attempt)) continue;
    if (attempt <= place.attempt - num_attempts) (void)RemoveTree(absl::StrCat(LogsFolder(place), "/", name));
  }
}

// In a folder that others may write to: one would lead the logs elsewhere, and old ones there would be removed.
absl::Status CheckNoLinks(const RunLog::Place& place) {
  for (const std::string& path : {LogsFolder(place), place.Folder()}) {
    struct stat info = {};
    if (lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode))
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is a symbolic link, through which nothing is written; ", "remove it"));
  }
  return absl::OkStatus();
}

absl::Status AppendToFile(const RunLog::Place& place, const RunLog::Limits& limits, const AllowedPaths& paths,
                          std::string* text) {
  if (place.checkpoint_dir.empty()) {
    text->clear();
    return absl::OkStatus();
  }
  if (absl::Status status = paths.Check(place.checkpoint_dir, AllowedPaths::Use::kWrite); !status.ok()) return status;
  if (absl::Status status = CheckNoLinks(place); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<RotatingLog>> log = RotatingLog::Open(place.Path(), limits.file_bytes);
  if (absl::IsNotFound(log.status())) {
    // Not into what a lost mount has left.
    absl::Status status = place.is_claimed ? CheckClaimed(place.checkpoint_dir) : absl::OkStatus();
    if (status.ok()) status = MakeDirectory(LogsFolder(place));
    if (status.ok()) status = MakeDirectory(place.Folder());
    if (!status.ok()) return status;
    log = RotatingLog::Open(place.Path(), limits.file_bytes);
  }
  return log.ok() ? (*log)->Append(text) : log.status();
}

// Appends to files, and removes those of old attempts when rank 0 of an attempt writes for the first time.
RunLog::Append AppendToFiles(const RunLog::Limits& limits, const Confinement& confinement) {
  std::string pruned;  // For whose attempt.
  return [limits, confinement, pruned](const RunLog::Place& place, std::string* text) mutable {
    absl::Status appended;
    absl::Status confined = RunConfined(confinement, [&] {
      appended = AppendToFile(place, limits, confinement.paths, text);
      if (!appended.ok() || place.rank != 0 || pruned == place.Folder()) return;
      Prune(place, limits.num_attempts);
      pruned = place.Folder();
    });
    return confined.ok() ? appended : confined;
  };
}

}  // namespace

std::string RunLog::Place::Folder() const { return absl::StrCat(LogsFolder(*this), "/", kAttemptPrefix, attempt); }
std::string RunLog::Place::Path() const { return absl::StrFormat("%s/rank-%05d.log", Folder(), rank); }

// What the thread shares with the object, which may go before it.
struct RunLog::Shared {
  struct Entry {
    std::shared_ptr<const Place> place;
    std::string text;
  };
  Shared(const Limits& its_limits, Append its_append) : limits(its_limits), append(std::move(its_append)) {}

  bool HasWork() const { return is_ending || !entries.empty(); }

  // Takes the oldest entries, those that are of one place.
  Entry TakeBatch() {
    Entry batch = {entries.front().place, ""};
    if (num_dropped > 0) batch.text = absl::StrCat("--- ", std::exchange(num_dropped, 0), " lines are missing here\n");
    for (; !entries.empty() && entries.front().place == batch.place; entries.pop_front()) {
      num_bytes -= static_cast<int64_t>(entries.front().text.size());
      batch.text += entries.front().text;
    }
    return batch;
  }

  const Limits limits;
  const Append append;
  absl::Mutex mutex;
  // All guarded by it:
  std::shared_ptr<const Place> place;  // Of lines to come.
  std::deque<Entry> entries;           // Wait to be written.
  int64_t num_bytes = 0;               // In them.
  int64_t num_dropped = 0;
  absl::optional<double> writing_since;  // As SteadySeconds().
  std::shared_ptr<const Place> writing;  // Whose lines.
  absl::Status trouble;                  // Of `told`.
  std::shared_ptr<const Place> told;     // Of whose trouble it was said.
  bool is_ending = false;
  bool has_ended = false;
};

RunLog::RunLog(const Limits& limits, const Confinement& confinement)
    : RunLog(limits, AppendToFiles(limits, confinement)) {}

RunLog::RunLog(const Limits& limits, Append append)
    : shared_(std::make_shared<Shared>(limits, std::move(append))), thread_([shared = shared_] { Loop(shared); }) {}

RunLog::~RunLog() {
  bool has_ended = false;
  {
    absl::MutexLock lock(&shared_->mutex);
    shared_->is_ending = true;
    has_ended = shared_->mutex.AwaitWithTimeout(absl::Condition(&shared_->has_ended),
                                                absl::Seconds(shared_->limits.end_seconds));
  }
  if (has_ended) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void RunLog::Begin(Place place) {
  absl::MutexLock lock(&shared_->mutex);
  shared_->place = std::make_shared<const Place>(std::move(place));
}

void RunLog::Line(const std::string& line, double now) {
  const std::string time =
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::UnixEpoch() + absl::Seconds(now), absl::UTCTimeZone());
  absl::MutexLock lock(&shared_->mutex);
  if (shared_->place == nullptr) return;
  shared_->entries.push_back({shared_->place, absl::StrCat(time, " ", line, "\n")});
  shared_->num_bytes += static_cast<int64_t>(shared_->entries.back().text.size());
  while (shared_->num_bytes > shared_->limits.waiting_bytes) {
    shared_->num_bytes -= static_cast<int64_t>(shared_->entries.front().text.size());
    shared_->entries.pop_front();
    ++shared_->num_dropped;
  }
}

RunLog::Trouble RunLog::TakeTrouble() {
  absl::MutexLock lock(&shared_->mutex);
  if (shared_->trouble.ok() && shared_->writing_since.has_value() && shared_->told != shared_->writing &&
      SteadySeconds() - *shared_->writing_since > shared_->limits.slow_seconds) {
    shared_->told = shared_->writing;
    shared_->trouble =
        absl::DeadlineExceededError(absl::StrCat(shared_->writing->Path(), ": its file system does not answer"));
  }
  if (shared_->trouble.ok()) return {};
  return {*shared_->told, std::exchange(shared_->trouble, absl::OkStatus())};
}

void RunLog::Loop(const std::shared_ptr<Shared>& shared) {
  Shared& its = *shared;
  Shared::Entry batch;
  absl::MutexLock lock(&its.mutex);
  while (true) {
    if (batch.text.empty()) {
      its.mutex.Await(absl::Condition(&its, &Shared::HasWork));
      if (its.entries.empty()) break;
      batch = its.TakeBatch();
    }
    its.writing = batch.place;
    its.writing_since = SteadySeconds();
    its.mutex.Unlock();
    const absl::Status status = its.append(*batch.place, &batch.text);
    its.mutex.Lock();
    its.writing_since.reset();
    if (!status.ok()) {
      if (its.told != batch.place) its.trouble = status;
      its.told = batch.place;
      if (its.is_ending) break;
      // The next rank's folder may be another one.
      if (batch.place != its.place) batch.text.clear();
    }
    const double pause = status.ok() ? its.limits.write_seconds : its.limits.retry_seconds;
    its.mutex.AwaitWithTimeout(absl::Condition(&its.is_ending), absl::Seconds(pause));
  }
  its.has_ended = true;
}

}  // namespace tacc::worker
