// The file that the coordinator's memory is in: its tables, how files of earlier versions become those of this one, and
// copies of it.
#ifndef TACC_COORDINATOR_STORE_SCHEMA_H_
#define TACC_COORDINATOR_STORE_SCHEMA_H_

#include <string>

#include "absl/status/status.h"

struct sqlite3;

namespace tacc::coordinator {

// Makes the tables in a new file, and brings one of an earlier version to this one's; that was copied to
// `PATH.schema-N.backup` before. FailedPrecondition: the file is damaged, another program's, or of a newer version.
absl::Status PrepareSchema(sqlite3* db, const std::string& path);

// Copies a database as it is at one moment, also while another process writes to it, and checks the copy. Nothing is
// at `to` if that fails. FailedPrecondition: there is none at `from`, or it is damaged; AlreadyExists: there is one at
// `to`.
absl::Status BackUpDatabase(const std::string& from, const std::string& to);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_STORE_SCHEMA_H_
