#include "coordinator/store/store.h"

#include <sqlite3.h>

#include "absl/strings/str_cat.h"
#include "coordinator/store/schema.h"

namespace tacc::coordinator {
namespace {

// Kinds of records.
constexpr int kEvent = 0;
constexpr int kStep = 1;
constexpr int kEval = 2;

}  // namespace

// One run of a prepared statement; resets it at the end. Parameters are bound in order.
class Store::Statement {
 public:
  Statement(Store* store, const char* sql) : store_(store) { status_ = store->Prepare(sql, &statement_); }
  ~Statement() {
    if (statement_ == nullptr) return;
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  }
  Statement& Bind(int64_t value) {
    if (status_.ok()) sqlite3_bind_int64(statement_, ++index_, value);
    return *this;
  }
  Statement& Bind(const std::string& text) {
    if (status_.ok())
      sqlite3_bind_text(statement_, ++index_, text.data(), static_cast<int>(text.size()), SQLITE_TRANSIENT);
    return *this;
  }
  Statement& BindBlob(const std::string& bytes) {
    if (status_.ok())
      sqlite3_bind_blob(statement_, ++index_, bytes.data(), static_cast<int>(bytes.size()), SQLITE_TRANSIENT);
    return *this;
  }
  // True: a row is there to read.
  absl::StatusOr<bool> Step() {
    if (!status_.ok()) return status_;
    const int result = sqlite3_step(statement_);
    if (result == SQLITE_ROW) return true;
    if (result == SQLITE_DONE) return false;
    return store_->Error("statement");
  }
  absl::Status Run() { return Step().status(); }
  int64_t Int(int column) const { return sqlite3_column_int64(statement_, column); }
  std::string Bytes(int column) const {
    const void* data = sqlite3_column_blob(statement_, column);
    const int size = sqlite3_column_bytes(statement_, column);
    return data == nullptr ? std::string() : std::string(static_cast<const char*>(data), static_cast<size_t>(size));
  }

 private:
  Store* const store_;
  sqlite3_stmt* statement_ = nullptr;
  absl::Status status_;
  int index_ = 0;
};

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const std::string& path, Options options, Failpoints* failpoints) {
  sqlite3* db = nullptr;
  const int result =
      sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<Store> store(new Store(db, options, failpoints));
  if (result != SQLITE_OK) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": cannot open: ", db == nullptr ? "no memory" : sqlite3_errmsg(db)));
  }
  for (const char* sql : {"PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "PRAGMA foreign_keys=ON"}) {
    if (absl::Status status = store->Execute(sql); !status.ok()) {
      return absl::FailedPreconditionError(absl::StrCat(path, ": ", std::string(status.message())));
    }
  }
  if (absl::Status status = PrepareSchema(db, path); !status.ok()) return status;
  return store;
}

Store::~Store() {
  for (auto& [sql, statement] : prepared_) sqlite3_finalize(statement);
  sqlite3_close(db_);
}

absl::Status Store::Error(const std::string& doing) {
  const std::string message = absl::StrCat("database: ", doing, ": ", sqlite3_errmsg(db_));
  const int code = sqlite3_errcode(db_) & 0xff;
  if (code == SQLITE_FULL || code == SQLITE_IOERR || code == SQLITE_BUSY) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

absl::Status Store::Execute(const char* sql) {
  if (sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) return Error(sql);
  return absl::OkStatus();
}

absl::Status Store::Prepare(const char* sql, sqlite3_stmt** out) {
  auto [it, inserted] = prepared_.try_emplace(sql, nullptr);
  if (inserted && sqlite3_prepare_v3(db_, sql, -1, SQLITE_PREPARE_PERSISTENT, &it->second, nullptr) != SQLITE_OK) {
    prepared_.erase(it);
    return Error(sql);
  }
  *out = it->second;
  return absl::OkStatus();
}

absl::Status Store::Load(Core* core) {
  Statement facts(this, "SELECT number, fact FROM facts ORDER BY number");
  while (true) {
    auto row = facts.Step();
    if (!row.ok()) return row.status();
    if (!*row) break;
    v1::Fact fact;
    if (!fact.ParseFromString(facts.Bytes(1))) {
      return absl::DataLossError(absl::StrCat("the log's entry ", facts.Int(0), " does not parse"));
    }
    if (absl::Status status = core->Replay(fact); !status.ok()) {
      return absl::DataLossError(absl::StrCat("entry ", facts.Int(0), ": ", std::string(status.message())));
    }
  }
  Statement sequences(this, "SELECT job, attempt, rank, sequence FROM sequences");
  while (true) {
    auto row = sequences.Step();
    if (!row.ok()) return row.status();
    if (!*row) break;
    core->ReplaySequence(
        IdOf(sequences.Bytes(0), static_cast<int>(sequences.Int(1)), static_cast<int>(sequences.Int(2))),
        static_cast<uint64_t>(sequences.Int(3)));
  }
  for (const auto& [id, job] : core->jobs()) {
    if (absl::Status status = LoadPoints(id, core); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Store::LoadPoints(const std::string& job, Core* core) {
  // All skipped steps, which are counted, and the newest point of each kind; each by an index of its own.
  for (const char* sql :
       {"SELECT kind, payload FROM records INDEXED BY skipped_by_job WHERE job = ? AND skipped != 0 ORDER BY cursor",
        "SELECT kind, payload FROM (SELECT kind, payload, skipped FROM records INDEXED BY records_by_job WHERE job = ? "
        "AND "
        "kind = 1 ORDER BY cursor DESC LIMIT 1) WHERE skipped = 0",
        "SELECT kind, payload FROM records INDEXED BY evals_by_job WHERE job = ? AND kind = 2 ORDER BY cursor DESC "
        "LIMIT 1"}) {
    Statement points(this, sql);
    points.Bind(job);
    while (true) {
      auto row = points.Step();
      if (!row.ok()) return row.status();
      if (!*row) break;
      v1::StepMetrics step;
      v1::EvalMetrics eval;
      if (points.Int(0) == kStep && step.ParseFromString(points.Bytes(1))) core->ReplayStep(job, step);
      if (points.Int(0) == kEval && eval.ParseFromString(points.Bytes(1))) core->ReplayEval(job, eval);
    }
  }
  return absl::OkStatus();
}

int64_t Store::scanned_rows() const {
  int64_t rows = 0;
  for (const auto& [sql, statement] : prepared_)
    rows += sqlite3_stmt_status(statement, SQLITE_STMTSTATUS_FULLSCAN_STEP, /*resetFlg=*/0);
  return rows;
}

absl::Status Store::Commit(const Decisions& decisions) {
  if (absl::Status status = Execute("BEGIN IMMEDIATE"); !status.ok()) return status;
  bool has_fact = false;
  absl::Status status = WriteAll(decisions, &has_fact);
  if (status.ok() && has_fact) status = failpoints_->Hit("before_log_commit");
  if (status.ok()) status = Execute("COMMIT");
  if (!status.ok()) {
    (void)sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
    return status;
  }
  return has_fact ? failpoints_->Hit("after_log_commit") : absl::OkStatus();
}

absl::Status Store::WriteAll(const Decisions& decisions, bool* has_fact) {
  for (const Decision& decision : decisions) {
    absl::Status status;
    if (const auto* log = std::get_if<LogFact>(&decision)) {
      *has_fact = true;
      status = Statement(this, "INSERT INTO facts (job, fact) VALUES (?, ?)")
                   .Bind(log->fact.job())
                   .BindBlob(log->fact.SerializeAsString())
                   .Run();
      if (status.ok() && log->fact.has_job_ended()) {
        status = Statement(this, "DELETE FROM sequences WHERE job = ?").Bind(log->fact.job()).Run();
      }
    } else if (const auto* event = std::get_if<StoreEvent>(&decision)) {
      status = WriteRecord(event->job, kEvent, event->event.step(), event->event.attempt(), 0,
                           event->event.SerializeAsString());
    } else if (const auto* step = std::get_if<StoreStep>(&decision)) {
      status = WriteRecord(step->job, kStep, step->step.step(), step->step.attempt(), step->step.skipped(),
                           step->step.SerializeAsString());
    } else if (const auto* eval = std::get_if<StoreEval>(&decision)) {
      status =
          WriteRecord(eval->job, kEval, eval->eval.step(), eval->eval.attempt(), 0, eval->eval.SerializeAsString());
    } else if (const auto* sequence = std::get_if<StoreSequence>(&decision)) {
      status = Statement(this,
                         "INSERT INTO sequences (job, attempt, rank, sequence) VALUES (?, ?, ?, ?) "
                         "ON CONFLICT (job, attempt, rank) DO UPDATE SET sequence = excluded.sequence")
                   .Bind(sequence->id.job())
                   .Bind(sequence->id.attempt())
                   .Bind(sequence->id.rank())
                   .Bind(static_cast<int64_t>(sequence->sequence))
                   .Run();
    } else if (const auto* forget = std::get_if<ForgetJob>(&decision)) {
      for (const char* sql : {"DELETE FROM facts WHERE job = ?", "DELETE FROM records WHERE job = ?",
                              "DELETE FROM sequences WHERE job = ?"}) {
        if (status.ok()) status = Statement(this, sql).Bind(forget->job).Run();
      }
      for (const int kind : {kEvent, kStep}) counts_.erase({forget->job, kind});
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Store::WriteRecord(const std::string& job, int kind, int64_t step, int attempt, int skipped,
                                const std::string& payload) {
  absl::Status status = Statement(this,
                                  "INSERT OR IGNORE INTO records (job, kind, step, attempt, skipped, payload) "
                                  "VALUES (?, ?, ?, ?, ?, ?)")
                            .Bind(job)
                            .Bind(kind)
                            .Bind(step)
                            .Bind(attempt)
                            .Bind(skipped)
                            .BindBlob(payload)
                            .Run();
  return status.ok() ? CountUp(job, kind) : status;
}

absl::Status Store::CountUp(const std::string& job, int kind) {
  if (kind == kEval) return absl::OkStatus();
  auto [it, inserted] = counts_.try_emplace({job, kind}, 0);
  if (inserted) {
    Statement count(this, "SELECT count(*) FROM records WHERE job = ? AND kind = ?");
    auto row = count.Bind(job).Bind(kind).Step();
    if (!row.ok()) return row.status();
    it->second = count.Int(0);
  } else {
    ++it->second;
  }
  if (kind == kEvent && it->second > options_.max_events) {
    // A tenth at a time, so that the price is paid seldom.
    const int64_t excess = it->second - options_.max_events + options_.max_events / 10;
    it->second -= excess;
    return Statement(this,
                     "DELETE FROM records WHERE cursor IN "
                     "(SELECT cursor FROM records WHERE job = ? AND kind = 0 ORDER BY cursor LIMIT ?)")
        .Bind(job)
        .Bind(excess)
        .Run();
  }
  if (kind == kStep && it->second > options_.max_points) return Thin(job);
  return absl::OkStatus();
}

absl::Status Store::Thin(const std::string& job) {
  int64_t& count = counts_[{job, kStep}];
  int64_t newest = 0;
  {
    Statement last(this, "SELECT max(step) FROM records WHERE job = ? AND kind = 1");
    auto row = last.Bind(job).Step();
    if (!row.ok()) return row.status();
    newest = last.Int(0);
  }
  // Doubling the stride keeps what an earlier thinning kept: points stay evenly spread.
  for (int64_t stride = 2; count > options_.max_points * 3 / 4 && stride < (int64_t{1} << 40); stride *= 2) {
    absl::Status status =
        Statement(this, "DELETE FROM records WHERE job = ? AND kind = 1 AND skipped = 0 AND step < ? AND step % ? != 0")
            .Bind(job)
            .Bind(newest - options_.max_points / 10)
            .Bind(stride)
            .Run();
    if (!status.ok()) return status;
    count -= sqlite3_changes64(db_);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::WatchResponse>> Store::Read(const Selection& selection) {
  const char* sql = "SELECT cursor, kind, payload FROM records WHERE job = ? AND cursor > ? ORDER BY cursor LIMIT ?";
  if (selection.kinds == Selection::Kinds::kEvents) {
    sql = "SELECT cursor, kind, payload FROM records WHERE job = ? AND cursor > ? AND kind = 0 ORDER BY cursor LIMIT ?";
  } else if (selection.kinds == Selection::Kinds::kMetrics) {
    sql =
        "SELECT cursor, kind, payload FROM records WHERE job = ? AND cursor > ? AND kind != 0 ORDER BY cursor LIMIT ?";
  }
  std::vector<v1::WatchResponse> records;
  Statement select(this, sql);
  select.Bind(selection.job).Bind(static_cast<int64_t>(selection.after)).Bind(selection.limit);
  while (true) {
    auto row = select.Step();
    if (!row.ok()) return row.status();
    if (!*row) return records;
    v1::WatchResponse record;
    record.set_cursor(static_cast<uint64_t>(select.Int(0)));
    const std::string payload = select.Bytes(2);
    bool parsed = false;
    switch (select.Int(1)) {
      case kEvent:
        parsed = record.mutable_event()->ParseFromString(payload);
        break;
      case kStep:
        parsed = record.mutable_step()->ParseFromString(payload);
        break;
      case kEval:
        parsed = record.mutable_eval()->ParseFromString(payload);
        break;
    }
    if (!parsed) return absl::DataLossError(absl::StrCat("record ", record.cursor(), " does not parse"));
    records.push_back(std::move(record));
  }
}

absl::StatusOr<uint64_t> Store::LastCursor(const std::string& job) {
  Statement last(this, "SELECT max(cursor) FROM records WHERE job = ?");
  auto row = last.Bind(job).Step();
  if (!row.ok()) return row.status();
  return *row ? static_cast<uint64_t>(last.Int(0)) : 0;
}

}  // namespace tacc::coordinator
