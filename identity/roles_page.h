// docs/roles.md from the table of access.h.
#ifndef TACC_IDENTITY_ROLES_PAGE_H_
#define TACC_IDENTITY_ROLES_PAGE_H_

#include <string>

namespace tacc::identity {

// The page with its table written anew.
std::string WithTable(const std::string& page);

}  // namespace tacc::identity

#endif  // TACC_IDENTITY_ROLES_PAGE_H_
