// The name a person probably meant.
#ifndef TACC_CLIENT_JOBFILE_NEAREST_NAME_H_
#define TACC_CLIENT_JOBFILE_NEAREST_NAME_H_

#include <string>
#include <vector>

namespace tacc::client {

// The entry of `names` nearest to `name` by edits (insert, delete, replace, swap of neighbours; case ignored), or ""
// when none is near: more than a third of the letters, at least one, differ. The first of equals.
std::string NearestName(const std::string& name, const std::vector<std::string>& names);

}  // namespace tacc::client

#endif  // TACC_CLIENT_JOBFILE_NEAREST_NAME_H_
