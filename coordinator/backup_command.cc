#include "coordinator/backup_command.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "coordinator/store/schema.h"

namespace tacc::coordinator {

void AddBackupCommand(const std::string& state_dir, CLI::App* app,
                      std::function<absl::StatusOr<std::string>()>* command) {
  struct Options {
    std::string state_dir, out;
  };
  auto options = std::make_shared<Options>();
  options->state_dir = state_dir;
  CLI::App* backup = app->add_subcommand(
      "backup", "Copy the coordinator's jobs, events and metrics as they are at one moment, also while it runs");
  backup->add_option("--state-dir", options->state_dir, "The coordinator's")->capture_default_str();
  backup->add_option("--out", options->out, "File to write, which is not there yet")->required();
  backup->callback([options, command] {
    *command = [options]() -> absl::StatusOr<std::string> {
      const absl::Status status = BackUpDatabase(absl::StrCat(options->state_dir, "/tacc.db"), options->out);
      if (!status.ok()) return status;
      return absl::StrCat("wrote ", options->out, "; to use it, end the coordinator, remove ", options->state_dir,
                          "/tacc.db, tacc.db-wal and tacc.db-shm, and put it there as tacc.db\n");
    };
  });
}

}  // namespace tacc::coordinator
