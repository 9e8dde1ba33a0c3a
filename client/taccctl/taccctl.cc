#include "client/taccctl/taccctl.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "client/taccctl/session/exit_code.h"
#include "client/taccctl/subcommands.h"
#include "text/nearest_name.h"

namespace tacc::client {
namespace {

constexpr char kExitCodes[] =
    "Exit codes: 0 ok, 2 bad usage or job (also one that does not fit), 3 not found, 5 coordinator unreachable, "
    "6 conflict, 7 timed out, 100 job failed, 101 job cancelled, 1 else (docs/taccctl.md).";

struct Example {
  const char* command;
  const char* line;
};

// Of each command, for its help.
constexpr Example kExamples[] = {
    {"submit", "submit --local --follow job.yaml"},
    {"submit", "submit job.yaml --set train.max_steps=200 --set name=longer"},
    {"submit", "submit --follow -o json - < job.yaml"},
    {"get", "get NAME"},
    {"get", "get NAME-3 -o json"},
    {"list", "list --limit 10"},
    {"watch", "watch NAME"},
    {"watch", "watch NAME -o json | jq .loss"},
    {"events", "events NAME"},
    {"logs", "logs NAME --tail 50"},
    {"logs", "logs NAME --follow --rank 1"},
    {"cancel", "cancel NAME"},
    {"cancel", "cancel NAME --now"},
    {"workers", "workers"},
    {"plan", "plan job.yaml"},
    {"plan", "plan job.yaml --gpus 128 --html report.html"},
    {"plan", "plan job.yaml --local --explain model.embed_tokens.weight"},
    {"export", "export NAME --out my-model"},
    {"export", "export runs/NAME/step-00000200.a1 --out exported"},
    {"data", "data show NAME --step 3"},
    {"audit", "audit verify /var/lib/tacc/coordinator"},
    {"up", "up"},
    {"up", "up --workers 4 --threads 2 --memory 4GiB"},
    {"down", "down"},
    {"version", "version"},
};

// The first word that is no option, when it is none of `names`; "" otherwise.
std::string UnknownSubcommand(const std::vector<std::string>& names, const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--address" || arguments[i] == "--tls-dir" || arguments[i] == "--tls-server-name" ||
        arguments[i] == "--token-file" || arguments[i] == "-o" || arguments[i] == "--output") {
      ++i;
    } else if (!arguments[i].empty() && arguments[i][0] != '-') {
      return std::find(names.begin(), names.end(), arguments[i]) == names.end() ? arguments[i] : "";
    }
  }
  return "";
}

// Newer ones of CLI11 set a footer as a paragraph, without its indents.
template <typename Formatter>
void KeepFooter(Formatter& formatter) {
  if constexpr (requires { formatter.enable_footer_formatting(false); }) formatter.enable_footer_formatting(false);
}

}  // namespace

int RunTaccctl(const std::vector<std::string>& arguments, Context& context) {
  CLI::App app("Trains models with tacc.", "taccctl");
  GlobalOptions global;
  Action action;
  std::string form = "table";
  app.set_version_flag("--version", "taccctl " TACC_VERSION);
  app.add_option("--address", global.address,
                 "HOST:PORT or unix:/PATH of the coordinator (default: TACC_ADDRESS, else that of `taccctl up`, else "
                 "127.0.0.1:7070)");
  app.add_option("--tls-dir", global.tls_dir,
                 "Folder of your certificate, for a coordinator with TLS (default: TACC_TLS_DIR)");
  app.add_option("--token-file", global.token_file,
                 "File with a bearer token, in place of a certificate; --tls-dir then needs ca.crt alone (default: "
                 "TACC_TOKEN_FILE)");
  app.add_option("--tls-server-name", global.tls_server_name,
                 "Name in the coordinator's certificate, where that has not the host of its address (default: "
                 "TACC_TLS_SERVER_NAME)");
  app.add_option("-o,--output", form, "table (for people) or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->type_name("FORM");
  app.require_subcommand(1);
  // Global options may stand after the subcommand.
  app.fallthrough();
  KeepFooter(*app.get_formatter());
  app.footer(std::string("`taccctl help COMMAND` says what a command takes, with examples.\n\n") + kExitCodes);
  AddSubmit(&app, &global, &action);
  AddGet(&app, &global, &action);
  AddList(&app, &global, &action);
  AddWatch(&app, &global, &action);
  AddEvents(&app, &global, &action);
  AddLogs(&app, &global, &action);
  AddCancel(&app, &global, &action);
  AddWorkers(&app, &global, &action);
  AddPlan(&app, &global, &action);
  AddExport(&app, &global, &action);
  AddData(&app, &global, &action);
  AddAudit(&app, &global, &action);
  AddUp(&app, &global, &action);
  AddDown(&app, &global, &action);
  AddVersion(&app, &global, &action);
  for (CLI::App* command : app.get_subcommands(nullptr)) {
    std::string footer = "Examples:\n";
    for (const Example& example : kExamples) {
      if (command->get_name() == example.command) footer += std::string("  taccctl ") + example.line + "\n";
    }
    footer +=
        "\nOptions of every command:\n  --address HOST:PORT         The coordinator (default: TACC_ADDRESS, else that "
        "of "
        "`taccctl up`, else 127.0.0.1:7070)\n  --tls-dir FOLDER            Of your certificate (default: "
        "TACC_TLS_DIR)\n"
        "  --token-file FILE           In place of a certificate (default: TACC_TOKEN_FILE)\n"
        "  --tls-server-name NAME      In the coordinator's certificate (default: TACC_TLS_SERVER_NAME)\n"
        "  -o,--output FORM            table (for people) or json\n\n";
    command->footer(footer + kExitCodes);
  }
  std::vector<std::string> words = arguments;
  // `taccctl help COMMAND` is `taccctl COMMAND --help`.
  if (!words.empty() && words[0] == "help") {
    words.erase(words.begin());
    words.push_back("--help");
  }
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
    if (const std::string unknown = UnknownSubcommand(names, words); !unknown.empty()) {
      const std::string nearest = NearestSlip(unknown, names);
      context.err << "unknown subcommand \"" << unknown << "\"; "
                  << (nearest.empty() ? "see taccctl --help" : "did you mean \"" + nearest + "\"?") << std::endl;
      return kExitBadInput;
    }
    return app.exit(error, context.out, context.err) == 0 ? kExitOk : kExitBadInput;
  }
  global.form = form == "json" ? OutputForm::kJson : OutputForm::kTable;
  return action(context);
}

}  // namespace tacc::client
