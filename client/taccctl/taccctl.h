// The command-line client.
#pragma once

#include <string>
#include <vector>

#include "client/taccctl/context.h"

namespace tacc::client {

// Runs `taccctl ARGUMENTS` (without the program's name) and returns its exit code.
int RunTaccctl(const std::vector<std::string>& arguments, Context& context);

}  // namespace tacc::client
