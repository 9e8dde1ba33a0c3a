#include "coordinator/store/schema.h"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"

namespace tacc::coordinator {
namespace {

// PRAGMA application_id and user_version of our files.
constexpr int64_t kApplicationId = 0x74616363;  // "tacc"

// The first makes the tables in an empty file, each of the others a file of the schema before it to the next: the
// schema of this version is their number. What files in the field have is never changed here, only followed by one
// more.
constexpr const char* kSchemas[] = {
    R"(
CREATE TABLE facts (number INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, fact BLOB NOT NULL);
CREATE TABLE records (cursor INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, kind INTEGER NOT NULL, step INTEGER NOT NULL,
                      attempt INTEGER NOT NULL, skipped INTEGER NOT NULL, payload BLOB NOT NULL);
CREATE INDEX records_by_job ON records (job, cursor);
CREATE UNIQUE INDEX points ON records (job, kind, step, attempt) WHERE kind != 0;
CREATE TABLE sequences (job TEXT NOT NULL, attempt INTEGER NOT NULL, rank INTEGER NOT NULL, sequence INTEGER NOT NULL,
                        PRIMARY KEY (job, attempt, rank)) WITHOUT ROWID;
)",
    // What a job that is forgotten has of facts, and what of its points a start reads, are found without a look at all.
    R"(
CREATE INDEX facts_by_job ON facts (job);
CREATE INDEX evals_by_job ON records (job, cursor) WHERE kind = 2;
CREATE INDEX skipped_by_job ON records (job, cursor) WHERE skipped != 0;
)",
};
constexpr int64_t kSchemaVersion = std::size(kSchemas);

using Database = std::unique_ptr<sqlite3, decltype(&sqlite3_close)>;

absl::Status Failed(sqlite3* db, const std::string& path, const std::string& doing) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": cannot ", doing, ": ", sqlite3_errmsg(db)));
}

absl::StatusOr<Database> OpenDatabase(const std::string& path, int flags) {
  sqlite3* raw = nullptr;
  const int result = sqlite3_open_v2(path.c_str(), &raw, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  Database db(raw, &sqlite3_close);
  if (result != SQLITE_OK) return Failed(raw, path, "open it");
  return db;
}

absl::Status Execute(sqlite3* db, const std::string& path, const std::string& doing, const std::string& sql) {
  return sqlite3_exec(db, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK ? absl::OkStatus()
                                                                               : Failed(db, path, doing);
}

// The first column of a statement's first row, as text.
absl::StatusOr<std::string> First(sqlite3* db, const std::string& path, const char* sql) {
  sqlite3_stmt* raw = nullptr;
  const int prepared = sqlite3_prepare_v2(db, sql, -1, &raw, nullptr);
  const std::unique_ptr<sqlite3_stmt, decltype(&sqlite3_finalize)> statement(raw, &sqlite3_finalize);
  if (prepared != SQLITE_OK || sqlite3_step(raw) != SQLITE_ROW) return Failed(db, path, "read it");
  return reinterpret_cast<const char*>(sqlite3_column_text(raw, 0));
}

absl::Status CheckPages(sqlite3* db, const std::string& path) {
  const absl::StatusOr<std::string> found = First(db, path, "PRAGMA quick_check(1)");
  if (!found.ok()) return found.status();
  if (*found == "ok") return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is damaged: ", *found, "; put a backup in its place (tacc-coordinator backup makes them)"));
}

absl::Status Copy(sqlite3* from, const std::string& from_path, const std::string& to_path) {
  auto to = OpenDatabase(to_path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  if (!to.ok()) return to.status();
  sqlite3_backup* backup = sqlite3_backup_init(to->get(), "main", from, "main");
  if (backup == nullptr) return Failed(to->get(), to_path, "write it");
  // All pages in one step, which reads them as they are at one moment: a writer goes on beside it.
  const int stepped = sqlite3_backup_step(backup, -1);
  const int finished = sqlite3_backup_finish(backup);
  if (stepped != SQLITE_DONE || finished != SQLITE_OK)
    return Failed(to->get(), to_path, absl::StrCat("copy ", from_path, " to it"));
  // One file, without a log beside it.
  if (absl::Status status = Execute(to->get(), to_path, "write it", "PRAGMA journal_mode=DELETE"); !status.ok())
    return status;
  return CheckPages(to->get(), to_path);
}

absl::Status CopyWhole(sqlite3* from, const std::string& from_path, const std::string& to) {
  const std::string part = absl::StrCat(to, ".part-", getpid());
  unlink(part.c_str());
  // A new file, which nobody else reads: what is in it is the coordinator's own.
  const int fd = open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return absl::FailedPreconditionError(absl::StrCat("cannot write ", part, ": ", strerror(errno)));
  close(fd);
  absl::Status status = Copy(from, from_path, part);
  if (status.ok() && rename(part.c_str(), to.c_str()) != 0)
    status = absl::FailedPreconditionError(absl::StrCat("cannot write ", to, ": ", strerror(errno)));
  if (!status.ok()) unlink(part.c_str());
  return status;
}

}  // namespace

absl::Status PrepareSchema(sqlite3* db, const std::string& path) {
  const absl::StatusOr<std::string> application = First(db, path, "PRAGMA application_id");
  if (!application.ok()) return application.status();
  const absl::StatusOr<std::string> written = First(db, path, "PRAGMA user_version");
  if (!written.ok()) return written.status();
  int64_t version = std::atoll(written->c_str());
  const bool is_new = *application == "0" && version == 0;
  if (!is_new && *application != absl::StrCat(kApplicationId))
    return absl::FailedPreconditionError(absl::StrCat(path, " is a database of another program"));
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path, " has schema ", version, ", this coordinator knows schema ",
                                                      kSchemaVersion, "; run the newer version, or put ", path,
                                                      ".schema-", kSchemaVersion, ".backup in its place"));
  }
  if (!is_new) {
    if (absl::Status status = CheckPages(db, path); !status.ok()) return status;
    if (version == kSchemaVersion) return absl::OkStatus();
    const std::string backup = absl::StrCat(path, ".schema-", version, ".backup");
    if (absl::Status status = CopyWhole(db, path, backup); !status.ok()) return status;
    spdlog::info("{}: bringing schema {} to schema {}; {} is what it was", path, version, kSchemaVersion, backup);
  }
  std::string sql = absl::StrCat("BEGIN IMMEDIATE;PRAGMA application_id=", kApplicationId, ";");
  for (; version < kSchemaVersion; ++version) sql += kSchemas[version];
  absl::StrAppend(&sql, "PRAGMA user_version=", kSchemaVersion, ";COMMIT;");
  return Execute(db, path, absl::StrCat("bring it to schema ", kSchemaVersion), sql);
}

absl::Status BackUpDatabase(const std::string& from, const std::string& to) {
  struct stat found {};
  if (lstat(to.c_str(), &found) == 0) return absl::AlreadyExistsError(absl::StrCat(to, " is there already"));
  auto db = OpenDatabase(from, SQLITE_OPEN_READWRITE);
  if (!db.ok()) return db.status();
  const absl::StatusOr<std::string> application = First(db->get(), from, "PRAGMA application_id");
  if (!application.ok()) return application.status();
  if (*application != absl::StrCat(kApplicationId))
    return absl::FailedPreconditionError(absl::StrCat(from, " is no database of a coordinator"));
  return CopyWhole(db->get(), from, to);
}

}  // namespace tacc::coordinator
