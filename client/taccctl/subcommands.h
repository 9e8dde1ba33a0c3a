// The subcommands, one file each. Each function adds one to `app` with its options and help; when it is the one given,
// parsing sets `*action`.
#ifndef TACC_CLIENT_TACCCTL_SUBCOMMANDS_H_
#define TACC_CLIENT_TACCCTL_SUBCOMMANDS_H_

#include <functional>

#include "CLI/CLI.hpp"
#include "client/taccctl/session/context.h"

namespace tacc::client {

// Runs the command; returns the exit code.
using Action = std::function<int(Context&)>;

void AddSubmit(CLI::App* app, const GlobalOptions* global, Action* action);
void AddGet(CLI::App* app, const GlobalOptions* global, Action* action);
void AddList(CLI::App* app, const GlobalOptions* global, Action* action);
void AddWorkers(CLI::App* app, const GlobalOptions* global, Action* action);
void AddEvents(CLI::App* app, const GlobalOptions* global, Action* action);
void AddWatch(CLI::App* app, const GlobalOptions* global, Action* action);
void AddLogs(CLI::App* app, const GlobalOptions* global, Action* action);
void AddCancel(CLI::App* app, const GlobalOptions* global, Action* action);
void AddPlan(CLI::App* app, const GlobalOptions* global, Action* action);
void AddExport(CLI::App* app, const GlobalOptions* global, Action* action);
void AddAudit(CLI::App* app, const GlobalOptions* global, Action* action);
void AddData(CLI::App* app, const GlobalOptions* global, Action* action);
void AddUp(CLI::App* app, const GlobalOptions* global, Action* action);
void AddDown(CLI::App* app, const GlobalOptions* global, Action* action);
void AddVersion(CLI::App* app, const GlobalOptions* global, Action* action);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_SUBCOMMANDS_H_
