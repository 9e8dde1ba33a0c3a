#include "coordinator/backup_command.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "coordinator/store/schema.h"

namespace tacc::coordinator {

void AddBackupCommand(const std::string* state_dir, CLI::App* app,
                      std::function<absl::StatusOr<std::string>()>* command) {
  auto out = std::make_shared<std::string>();
  CLI::App* backup = app->add_subcommand(
      "backup",
      "Copy jobs, events and metrics of the coordinator of --state-dir as they are at one moment, also while it runs");
  backup->fallthrough();
  backup->add_option("--out", *out, "File to write, which is not there yet")->required();
  backup->callback([state_dir, out, command] {
    *command = [state_dir, out]() -> absl::StatusOr<std::string> {
      const absl::Status status = BackUpDatabase(absl::StrCat(*state_dir, "/tacc.db"), *out);
      if (!status.ok()) return status;
      return absl::StrCat("wrote ", *out, "; to use it, end the coordinator, remove ", *state_dir,
                          "/tacc.db, tacc.db-wal and tacc.db-shm, and put it there as tacc.db\n");
    };
  });
}

}  // namespace tacc::coordinator
