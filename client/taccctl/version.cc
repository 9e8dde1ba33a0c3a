// taccctl version: the versions of this client and of the coordinator.
#include "client/taccctl/follow.h"
#include "client/taccctl/session/coordinator_client.h"
#include "client/taccctl/session/exit_code.h"
#include "client/taccctl/show/message_json.h"
#include "client/taccctl/show/table.h"
#include "client/taccctl/subcommands.h"

namespace tacc::client {
namespace {

int Version(const GlobalOptions& global, Context& context) {
  const absl::StatusOr<Endpoint> endpoint = FindCoordinator(global, context);
  if (!endpoint.ok()) return Fail(endpoint.status(), &context);
  CoordinatorClient client(*endpoint, &context.interrupt);
  const absl::StatusOr<v1::GetVersionResponse> coordinator = client.GetVersion();
  if (global.form == OutputForm::kJson) {
    nlohmann::ordered_json json = {{"client", TACC_VERSION}, {"address", endpoint->address}, {"coordinator", nullptr}};
    if (coordinator.ok()) json["coordinator"] = MessageJson(*coordinator);
    context.out << JsonLine(json);
  } else {
    PrintFields({{"taccctl", TACC_VERSION},
                 {"coordinator", coordinator.ok() ? coordinator->version() + " at " + endpoint->address
                                                  : "none at " + endpoint->address},
                 {"metrics", coordinator.ok() ? coordinator->metrics_address() : ""}},
                context.out);
  }
  // The client's version is known without a coordinator.
  return coordinator.ok() || absl::IsUnavailable(coordinator.status()) ? kExitOk : Fail(coordinator.status(), &context);
}

}  // namespace

void AddVersion(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* command = app->add_subcommand("version", "Show the versions of taccctl and of the coordinator");
  command->callback([=] { *action = [=](Context& context) { return Version(*global, context); }; });
}

}  // namespace tacc::client
