#include "identity/roles_page.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "identity/access.h"

namespace tacc::identity {

std::string WithTable(const std::string& page) {
  std::string out;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    if (absl::StartsWith(line, "| `/")) continue;
    absl::StrAppend(&out, out.empty() ? "" : "\n", line);
    if (!absl::StartsWith(line, "| --- | --- | ---")) continue;
    for (const Access& access : AccessTable()) {
      absl::StrAppend(&out, "\n| `", access.method, "` | ", access.what, access.is_audited ? " | yes |" : " | |");
      for (const Role role : kRoles) absl::StrAppend(&out, access.Allows(role) ? " yes |" : " |");
    }
  }
  return out;
}

}  // namespace tacc::identity
