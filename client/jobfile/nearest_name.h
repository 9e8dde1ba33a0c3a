// The name a person probably meant.
#pragma once

#include <string>
#include <vector>

namespace tacc::client {

// The entry of `names` nearest to `name` by edits (insert, delete, replace, swap of neighbours; case ignored), or ""
// when none is near: more than a third of the letters, at least one, differ. The first of equals.
std::string NearestName(const std::string& name, const std::vector<std::string>& names);

}  // namespace tacc::client
