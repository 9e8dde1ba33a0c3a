// The command-line client.
#ifndef TACC_CLIENT_TACCCTL_TACCCTL_H_
#define TACC_CLIENT_TACCCTL_TACCCTL_H_

#include <string>
#include <vector>

#include "client/taccctl/session/context.h"

namespace tacc::client {

// Runs `taccctl ARGUMENTS` (without the program's name) and returns its exit code.
int RunTaccctl(const std::vector<std::string>& arguments, Context& context);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_TACCCTL_H_
