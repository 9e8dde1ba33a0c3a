// The coordinator's memory: a SQLite file (WAL, synchronous=FULL) with the log of decided facts, and beside it events,
// metric points and the sequence numbers up to which workers' reports were acted upon.
//
// One batch of decisions is one transaction: a metric point, the fact that came of it and the sequence number of its
// report are stored all or none, so that what a worker sends again after a crash is neither lost nor doubled. Not
// thread-safe.
#ifndef TACC_COORDINATOR_STORE_STORE_H_
#define TACC_COORDINATOR_STORE_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/core/core.h"
#include "coordinator/core/types.h"
#include "failpoint/failpoint.h"
#include "tacc/v1/coordinator.pb.h"

struct sqlite3;
struct sqlite3_stmt;

namespace tacc::coordinator {

class Store {
 public:
  struct Options {
    // Step points kept of a job. Above it older ones are thinned out evenly; the newest tenth and skipped steps are
    // never thinned.
    int64_t max_points = 20000;
    // Events kept of a job: the newest.
    int64_t max_events = 10000;
  };

  // Opens or makes the file. FailedPrecondition: as PrepareSchema. `failpoints` outlives the store.
  static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& path, Options options, Failpoints* failpoints);
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  // Gives `core` everything that was stored, in order.
  absl::Status Load(Core* core);

  // Stores what is to be stored of `decisions`, in one transaction. On error nothing of it is stored;
  // ResourceExhausted: the disk is full or fails, which may pass. Failpoints before_log_commit and after_log_commit,
  // when there is a fact among them.
  absl::Status Commit(const Decisions& decisions);

  struct Selection {
    std::string job;
    uint64_t after = 0;  // Cursor.
    int limit = 256;
    enum class Kinds { kAll, kEvents, kMetrics } kinds = Kinds::kAll;
  };
  // Events and metrics in stored order.
  absl::StatusOr<std::vector<v1::WatchResponse>> Read(const Selection& selection);
  // Of the newest event or metric of the job; 0: none.
  absl::StatusOr<uint64_t> LastCursor(const std::string& job);

  // Rows that statements looked at one after the other, as no index led to them.
  int64_t scanned_rows() const;

 private:
  class Statement;
  Store(sqlite3* db, Options options, Failpoints* failpoints) : db_(db), options_(options), failpoints_(failpoints) {}

  absl::Status Execute(const char* sql);
  absl::Status Prepare(const char* sql, sqlite3_stmt** out);
  absl::Status LoadPoints(const std::string& job, Core* core);
  absl::Status WriteAll(const Decisions& decisions, bool* has_fact);
  absl::Status WriteRecord(const std::string& job, int kind, int64_t step, int attempt, int skipped,
                           const std::string& payload);
  absl::Status CountUp(const std::string& job, int kind);
  absl::Status Thin(const std::string& job);
  absl::Status Error(const std::string& doing);

  sqlite3* const db_;
  const Options options_;
  Failpoints* const failpoints_;
  std::map<std::string, sqlite3_stmt*> prepared_;  // By SQL text.
  // Records by job and kind (events, steps), counted when first needed. Rough after a failed transaction, which only
  // thins a bit early.
  std::map<std::pair<std::string, int>, int64_t> counts_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_STORE_STORE_H_
