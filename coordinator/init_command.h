// `tacc-coordinator init`: makes the certificates of a service, and more of them later.
#ifndef TACC_COORDINATOR_INIT_COMMAND_H_
#define TACC_COORDINATOR_INIT_COMMAND_H_

#include <functional>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"

namespace tacc::coordinator {

// If the command line asks for it, `*command` does it and gives the text for standard output.
void AddInitCommand(CLI::App* app, std::function<absl::StatusOr<std::string>()>* command);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_INIT_COMMAND_H_
