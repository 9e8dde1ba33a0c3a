#include "audit_log/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "machine/clock.h"
#include "nlohmann/json.hpp"
#include "spdlog/spdlog.h"
#include "worker/checkpoint/files/posix_file.h"

namespace tacc {
namespace {

using nlohmann::ordered_json;
using worker::ErrnoStatus;

constexpr size_t kMaxTextBytes = 1000;
// Of a line that Append has written: eight texts, each byte of which may take six as JSON.
constexpr size_t kMaxLineBytes = 64 << 10;
constexpr double kSaySeconds = 10;
constexpr char kRepaired[] = "audit log: an unfinished last line was cut off";

std::string HashOf(const std::string& line) {
  worker::Sha256 sha256;
  sha256.Update(line.data(), line.size());
  return sha256.HexDigest();
}

std::string FileName(int64_t number) { return absl::StrFormat("%06d.jsonl", number); }

// The numbers of the files there, ascending. Other files are none of ours.
absl::StatusOr<std::vector<int64_t>> FileNumbers(const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = worker::ListDirectory(folder);
  if (!names.ok()) return names.status();
  std::vector<int64_t> numbers;
  for (const std::string& name : *names) {
    int64_t number = 0;
    if (absl::SimpleAtoi(absl::StripSuffix(name, ".jsonl"), &number) && name == FileName(number))
      numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

std::string LineOf(const AuditEntry& entry, int64_t number, const std::string& previous) {
  const auto text = [](const std::string& value) { return value.substr(0, kMaxTextBytes); };
  ordered_json line;
  line["number"] = number;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixMicros(static_cast<int64_t>(entry.time * 1e6)),
                                  absl::UTCTimeZone());
  line["method"] = text(entry.method);
  line["principal"] = text(entry.principal);
  line["peer"] = text(entry.peer);
  line["request_id"] = text(entry.request_id);
  line["subject"] = text(entry.subject);
  line["result"] = text(entry.result);
  line["detail"] = text(entry.detail);
  line["previous"] = previous;
  return line.dump(-1, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace);
}

// What a line says of its place in the chain.
struct Place {
  int64_t number = 0;
  std::string previous;
};

absl::StatusOr<Place> PlaceOf(const std::string& line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("number") || !json["number"].is_number_integer() ||
      !json.contains("previous") || !json["previous"].is_string()) {
    return absl::InvalidArgumentError("it is no line of an audit log");
  }
  return Place{json["number"].get<int64_t>(), json["previous"].get<std::string>()};
}

// Reads whole lines. False at the end, or at one that is too long or has no end, which `torn` tells.
bool ReadLine(std::ifstream* in, std::string* line, bool* torn) {
  line->clear();
  *torn = false;
  for (int c = in->get(); c != EOF; c = in->get()) {
    if (c == '\n') return true;
    line->push_back(static_cast<char>(c));
    if (line->size() > kMaxLineBytes) break;
  }
  *torn = !line->empty();
  return false;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(const std::string& folder, Options options) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus(errno, absl::StrCat("making ", folder));
  std::unique_ptr<AuditLog> log(new AuditLog(folder, options));
  if (absl::Status status = log->Continue(); !status.ok()) return status;
  log->thread_ = std::thread([log = log.get()] { log->Run(); });
  return log;
}

AuditLog::~AuditLog() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waits_ = false;
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  if (fd_ >= 0) close(fd_);
}

absl::Status AuditLog::OpenFile(int64_t number) {
  const std::string path = absl::StrCat(folder_, "/", FileName(number));
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
  file_number_ = number;
  struct stat found {};
  if (fstat(fd_, &found) != 0) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  file_bytes_ = found.st_size;
  return worker::SyncDirectory(folder_);
}

absl::Status AuditLog::Continue() {
  next_ = {0, kEmptyAuditHash};
  const absl::StatusOr<std::vector<int64_t>> numbers = FileNumbers(folder_);
  if (!numbers.ok()) return numbers.status();
  bool cut = false;
  // The last whole line: a file may have been begun and have none yet.
  for (size_t i = numbers->size(); i > 0 && next_.num_entries == 0; --i) {
    const std::string path = absl::StrCat(folder_, "/", FileName((*numbers)[i - 1]));
    std::ifstream in(path, std::ios::binary);
    if (!in) return ErrnoStatus(errno, absl::StrCat("opening ", path));
    std::string line, last;
    bool torn = false;
    int64_t whole_bytes = 0;
    while (ReadLine(&in, &line, &torn)) {
      whole_bytes += static_cast<int64_t>(line.size()) + 1;
      last = std::move(line);
    }
    if (torn) {
      if (i != numbers->size() || line.size() > kMaxLineBytes)
        return absl::InvalidArgumentError(absl::StrCat(path, ": a line without an end"));
      if (truncate(path.c_str(), whole_bytes) != 0) return ErrnoStatus(errno, absl::StrCat("cutting ", path));
      cut = true;
    }
    if (last.empty()) continue;
    const absl::StatusOr<Place> place = PlaceOf(last);
    if (!place.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": its last line is not of this log; move the folder away to begin another"));
    }
    next_ = {place->number, HashOf(last)};
  }
  head_ = next_;
  if (absl::Status status = OpenFile(numbers->empty() ? 1 : numbers->back()); !status.ok()) return status;
  if (!cut) return absl::OkStatus();
  AuditEntry repaired;
  repaired.time = WallSeconds();
  repaired.method = kRepaired;
  std::vector<Waiting> batch(1);
  batch[0].entry = std::move(repaired);
  return Write(batch);
}

void AuditLog::Append(AuditEntry entry, std::function<void()> written) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.push_back({std::move(entry), std::move(written)});
  }
  changed_.notify_one();
}

void AuditLog::StopWaiting() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    waits_ = false;
  }
  changed_.notify_all();
}

AuditHead AuditLog::head() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return head_;
}

absl::Status AuditLog::Write(const std::vector<Waiting>& batch) {
  if (file_bytes_ > options_.max_file_bytes) {
    if (absl::Status status = OpenFile(file_number_ + 1); !status.ok()) return status;
  }
  const std::string path = absl::StrCat(folder_, "/", FileName(file_number_));
  // What an attempt before has left of its lines is not of the chain.
  if (ftruncate(fd_, file_bytes_) != 0) return ErrnoStatus(errno, absl::StrCat("writing ", path));
  AuditHead next = next_;
  std::string text;
  for (const Waiting& one : batch) {
    const std::string line = LineOf(one.entry, ++next.num_entries, next.hash);
    next.hash = HashOf(line);
    absl::StrAppend(&text, line, "\n");
  }
  for (size_t done = 0; done < text.size();) {
    const ssize_t size = write(fd_, text.data() + done, text.size() - done);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return ErrnoStatus(size < 0 ? errno : EIO, absl::StrCat("writing ", path));
    done += static_cast<size_t>(size);
  }
  if (fdatasync(fd_) != 0) return ErrnoStatus(errno, absl::StrCat("writing ", path));
  file_bytes_ += static_cast<int64_t>(text.size());
  next_ = next;
  std::lock_guard<std::mutex> lock(mutex_);
  head_ = next_;
  return absl::OkStatus();
}

void AuditLog::KeepWriting(const std::vector<Waiting>& batch) {
  double said = 0;
  for (absl::Status status = Write(batch); !status.ok(); status = Write(batch)) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (said == 0 || SteadySeconds() - said >= kSaySeconds) {
      said = SteadySeconds();
      spdlog::error("the audit log cannot be written, and calls that change something wait: {}",
                    std::string(status.message()));
    }
    if (changed_.wait_for(lock, std::chrono::duration<double>(options_.retry_seconds), [this] { return !waits_; })) {
      for (const Waiting& one : batch) spdlog::error("not in the audit log: {}", LineOf(one.entry, 0, ""));
      return;
    }
  }
}

void AuditLog::Run() {
  while (true) {
    std::vector<Waiting> batch;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      batch.swap(waiting_);
    }
    KeepWriting(batch);
    for (const Waiting& one : batch) one.written();
  }
}

absl::StatusOr<AuditHead> VerifyAuditLog(const std::string& folder, const std::string& kept_hash) {
  const absl::StatusOr<std::vector<int64_t>> numbers = FileNumbers(folder);
  if (!numbers.ok()) return numbers.status();
  if (numbers->empty()) return absl::NotFoundError(absl::StrCat(folder, " holds no audit log"));
  AuditHead head{0, kEmptyAuditHash};
  bool has_kept = kept_hash.empty() || kept_hash == head.hash;
  for (size_t i = 0; i < numbers->size(); ++i) {
    const std::string path = absl::StrCat(folder, "/", FileName((*numbers)[i]));
    if ((*numbers)[i] != static_cast<int64_t>(i) + 1)
      return absl::DataLossError(
          absl::StrCat(folder, ": the file ", FileName(static_cast<int64_t>(i) + 1), " is gone"));
    std::ifstream in(path, std::ios::binary);
    if (!in) return ErrnoStatus(errno, absl::StrCat("opening ", path));
    std::string line;
    bool torn = false;
    int64_t number = 0;
    const auto broken = [&](const std::string& why) {
      return absl::DataLossError(absl::StrCat(path, ":", number, ": ", why));
    };
    while (ReadLine(&in, &line, &torn)) {
      ++number;
      const absl::StatusOr<Place> place = PlaceOf(line);
      if (!place.ok()) return broken(std::string(place.status().message()));
      if (place->number != head.num_entries + 1)
        return broken(absl::StrCat("it is entry ", place->number, ", entry ", head.num_entries + 1, " should be here"));
      if (place->previous != head.hash)
        return broken("the line before it was changed, or is not the one that was there when this one was written");
      head = {place->number, HashOf(line)};
      has_kept = has_kept || head.hash == kept_hash;
    }
    ++number;
    // A log that is in use may be read in the middle of its last write.
    if (torn && (i + 1 < numbers->size() || line.size() > kMaxLineBytes)) return broken("a line without an end");
  }
  if (!has_kept) {
    return absl::DataLossError(absl::StrCat(folder, ": none of its ", head.num_entries, " entries has the hash ",
                                            kept_hash, ": its end was cut off, or it was written anew"));
  }
  return head;
}

}  // namespace tacc
