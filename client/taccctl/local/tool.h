// Programs beside taccctl that it runs to their end.
#ifndef TACC_CLIENT_TACCCTL_LOCAL_TOOL_H_
#define TACC_CLIENT_TACCCTL_LOCAL_TOOL_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/taccctl/session/context.h"

namespace tacc::client {

// What `binary_dir/name ARGUMENTS` printed. Errors: InvalidArgument with its `error:` lines when it exited with 2,
// Internal with its stderr when it ended badly otherwise, DeadlineExceeded after `seconds`, Cancelled when the user
// wants to leave: then, too, it has been killed.
absl::StatusOr<std::string> RunTool(const std::string& name, const std::vector<std::string>& arguments, double seconds,
                                    const Context& context);

// Whether an argument is a path (it has a slash, ends in .yaml or .yml, or exists) rather than the name of a job.
bool LooksLikeFile(const std::string& argument);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_LOCAL_TOOL_H_
