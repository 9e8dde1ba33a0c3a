// Who changed what, in files that show when they were changed afterwards. Each line is a JSON object and carries the
// SHA-256 of the line before it, so a line cannot be changed, removed or put in without changing all that follow. Who
// may write the folder can still write all of it anew, or cut its end off: the hash of the last line, kept elsewhere,
// shows that too.
//
// In its folder: 000001.jsonl, 000002.jsonl and so on, one chain. None is ever removed or changed by the log.
#ifndef TACC_AUDIT_LOG_AUDIT_LOG_H_
#define TACC_AUDIT_LOG_AUDIT_LOG_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tacc {

struct AuditEntry {
  double time = 0;  // Seconds since the epoch.
  std::string method;
  std::string principal;  // Empty: of a connection without a certificate.
  std::string peer;       // Address.
  std::string request_id;
  std::string subject;  // The job, worker or folder that it is about, where it names one.
  std::string result;   // OK, or the code of the error.
  std::string detail;   // Of an error, its message.
};

// Of a chain, or of its first lines.
struct AuditHead {
  int64_t num_entries = 0;
  std::string hash;  // Of the last line, 64 hex digits; of an empty log kEmptyHash.
};

inline constexpr char kEmptyAuditHash[] = "0000000000000000000000000000000000000000000000000000000000000000";

class AuditLog {
 public:
  struct Options {
    int64_t max_file_bytes = 64 << 20;  // A file that is larger is followed by another.
    double retry_seconds = 1;           // After a write that failed.
  };
  // Goes on with the log in `folder`, which is made (0700) when missing. An end of the last file that is no whole line,
  // as a loss of power leaves it, is cut off, and an entry says so. InvalidArgument: the
  // last line there is none of a log. Else: the folder cannot be used.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::string& folder, Options options);
  // Writes what waits; entries that cannot be written now are lost, and the process's log has them.
  ~AuditLog();

  // Calls `written` on another thread once the entry is on disk. As long as a disk is full that waits, and the log of
  // the process says so. Entries that wait together cost one fsync. Of texts longer than 1,000 bytes the beginning is
  // kept.
  void Append(AuditEntry entry, std::function<void()> written);

  // From now on an entry that cannot be written at once is lost, and does not wait: before whoever waits for its end is
  // to end.
  void StopWaiting();

  // Of what is on disk.
  AuditHead head() const;

 private:
  struct Waiting {
    AuditEntry entry;
    std::function<void()> written;
  };
  AuditLog(std::string folder, Options options) : folder_(std::move(folder)), options_(options) {}
  absl::Status Continue();
  absl::Status OpenFile(int64_t number);
  absl::Status Write(const std::vector<Waiting>& batch);
  // Until they are written, or the log waits no longer.
  void KeepWriting(const std::vector<Waiting>& batch);
  void Run();

  const std::string folder_;
  const Options options_;
  // Of Open and then of the thread.
  int fd_ = -1;
  int64_t file_number_ = 0;
  int64_t file_bytes_ = 0;
  AuditHead next_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Waiting> waiting_;
  AuditHead head_;
  bool waits_ = true;
  bool ending_ = false;
  std::thread thread_;
};

// Reads the whole chain in `folder`, which may be in use. `kept_hash`, unless empty, is that of a head of before, which
// must be in it. DataLoss: the file and the line where it breaks, or that it lacks what was kept. NotFound: there is no
// log.
absl::StatusOr<AuditHead> VerifyAuditLog(const std::string& folder, const std::string& kept_hash);

}  // namespace tacc

#endif  // TACC_AUDIT_LOG_AUDIT_LOG_H_
