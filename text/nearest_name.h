// The name that a person probably meant, for error messages.
#ifndef TACC_TEXT_NEAREST_NAME_H_
#define TACC_TEXT_NEAREST_NAME_H_

#include <string>
#include <vector>

namespace tacc {

// The entry of `names` nearest to `name` by edits (insert, delete, replace, swap of neighbours; case ignored): the
// first of equals; "" when `names` is empty.
std::string NearestName(const std::string& name, const std::vector<std::string>& names);

// The same where `name` is a slip of it: at most a third of its letters, or one, differ. "" where it is none.
std::string NearestSlip(const std::string& name, const std::vector<std::string>& names);

}  // namespace tacc

#endif  // TACC_TEXT_NEAREST_NAME_H_
