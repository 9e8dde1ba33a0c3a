// taccctl audit verify: whether a coordinator's audit log is as it was written.
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "audit_log/audit_log.h"
#include "client/taccctl/follow.h"
#include "client/taccctl/session/exit_code.h"
#include "client/taccctl/subcommands.h"
#include "nlohmann/json.hpp"

namespace tacc::client {
namespace {

// `folder`: the log's own or the state directory that it is in.
int Verify(const std::string& folder, const std::string& kept_hash, const GlobalOptions& global, Context& context) {
  std::error_code error;
  const std::string inner = absl::StrCat(folder, "/audit");
  const std::string path = std::filesystem::is_directory(inner, error) ? inner : folder;
  const absl::StatusOr<AuditHead> head = VerifyAuditLog(path, kept_hash);
  if (!head.ok()) return Fail(head.status(), &context);
  if (global.form == OutputForm::kJson) {
    context.out << nlohmann::ordered_json{{"folder", path}, {"entries", head->num_entries}, {"hash", head->hash}}.dump()
                << "\n";
    return kExitOk;
  }
  context.out << path << ": " << head->num_entries << " entries, one chain"
              << (kept_hash.empty() ? "" : ", with --kept") << "\nlast hash: " << head->hash
              << "\nKeep it elsewhere: --kept of a later check then shows also whether the log's end was cut off.\n";
  return kExitOk;
}

}  // namespace

void AddAudit(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* audit = app->add_subcommand("audit", "The coordinator's log of who changed what");
  audit->require_subcommand(1);
  CLI::App* verify = audit->add_subcommand(
      "verify", "Check on the coordinator's machine that no entry was changed, removed or put in");
  auto folder = std::make_shared<std::string>();
  auto kept = std::make_shared<std::string>();
  verify->add_option("FOLDER", *folder, "The coordinator's --state-dir, or a copy of the folder audit in it")
      ->required();
  verify->add_option("--kept", *kept, "The last hash of an earlier check, which must be in the chain")
      ->check([](const std::string& text) {
        const bool is_hash = text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
        return std::string(is_hash ? "" : "give the 64 hex digits that a check printed");
      });
  verify->callback([=] { *action = [=](Context& context) { return Verify(*folder, *kept, *global, context); }; });
}

}  // namespace tacc::client
