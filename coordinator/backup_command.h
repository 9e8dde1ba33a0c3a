// `tacc-coordinator backup`: copies the coordinator's memory, also while it runs.
#ifndef TACC_COORDINATOR_BACKUP_COMMAND_H_
#define TACC_COORDINATOR_BACKUP_COMMAND_H_

#include <functional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"

namespace tacc::coordinator {

// If the command line asks for it, `*command` does it and gives the text for standard output. `state_dir`: of the
// application's own --state-dir, which may stand before the subcommand or behind it; read when the command runs.
void AddBackupCommand(const std::string* state_dir, CLI::App* app,
                      std::function<absl::StatusOr<std::string>()>* command);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_BACKUP_COMMAND_H_
