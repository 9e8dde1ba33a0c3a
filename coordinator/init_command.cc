#include "coordinator/init_command.h"

#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "identity/folder.h"
#include "identity/token.h"
#include "machine/tacc_python.h"

namespace tacc::coordinator {
namespace {

constexpr int kAuthorityDays = 3650;
constexpr int kCertificateDays = 365;
constexpr int kMaxDays = 3650;

struct InitOptions {
  std::string out;
  std::vector<std::string> hosts;
  int days = kCertificateDays;
  int hours = 1;
  std::string role, name, project;
};

// This machine's own names and addresses, by which clients on it reach a coordinator.
std::vector<std::string> OwnHosts() {
  std::vector<std::string> hosts = {"localhost", "127.0.0.1", "::1"};
  char name[256] = "";
  if (gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0') hosts.emplace_back(name);
  return hosts;
}

std::string Day(std::time_t time) { return absl::FormatTime("%Y-%m-%d", absl::FromTimeT(time), absl::UTCTimeZone()); }

// Programs beside this one, as they can be pasted.
std::string Program(const char* name) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? name : ShellWord((self.parent_path() / name).string());
}

// How a principal's program is started, to be pasted; `host` is the coordinator's.
std::string Usage(const identity::Principal& principal, const std::string& out, const std::string& host) {
  const std::string folder = ShellWord(absl::StrCat(out, "/", principal.name));
  const bool is_ipv6 = absl::StrContains(host, ':');
  const std::string address = ShellWord(absl::StrCat(is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "", ":7070"));
  switch (principal.role) {
    case identity::Role::kServer:
      return absl::StrCat(Program("tacc-coordinator"), " --tls-dir ", folder, " --listen ", address);
    case identity::Role::kWorker:
      return absl::StrCat(Program("tacc-worker"), " --tls-dir ", folder, " --coordinator ", address,
                          host == "127.0.0.1" ? "" : " --insecure");
    case identity::Role::kMetrics:
      return absl::StrCat(Program("taccctl"), " --tls-dir ", folder, " --address ", address, " version");
    case identity::Role::kAdmin:
    case identity::Role::kUser:
    case identity::Role::kViewer:
      break;
  }
  return absl::StrCat(Program("taccctl"), " --tls-dir ", folder, " --address ", address, " list");
}

absl::StatusOr<std::string> Init(const InitOptions& options) {
  std::vector<std::string> hosts = OwnHosts();
  hosts.insert(hosts.end(), options.hosts.begin(), options.hosts.end());
  const std::time_t now = std::time(nullptr);
  const identity::Validity validity = identity::ValidFor(options.days, now);
  const identity::Principal server = {identity::Role::kServer, "server", ""};
  const identity::Principal worker = {identity::Role::kWorker, "worker", ""};
  const identity::Principal admin = {identity::Role::kAdmin, "admin", ""};
  const identity::Principal user = {identity::Role::kUser, "user", "default"};
  const absl::Status status = identity::MakeFolders(
      options.out, identity::ValidFor(kAuthorityDays, now),
      {{server, hosts, validity}, {worker, {}, validity}, {admin, {}, validity}, {user, {}, validity}});
  if (!status.ok()) return status;
  const std::string host = options.hosts.empty() ? "127.0.0.1" : options.hosts.front();
  const std::string& out = options.out;
  return absl::StrCat("made ", out, ": an authority (", out, "/ca, until ", Day(now + kAuthorityDays * 86400L),
                      ") and the folders server, worker, admin and user, each with a certificate until ",
                      Day(validity.not_after), "\n\nWho has ", out,
                      "/ca can be anybody: keep it where only you can read it. Each other folder is all that its ",
                      "holder needs; copy it to the holder's machine.\n\nThe coordinator answers to ",
                      absl::StrJoin(hosts, ", "), ". Start it, a worker, and ask it:\n  ", Usage(server, out, host),
                      "\n  ", Usage(worker, out, host), "\n  ", Usage(admin, out, host),
                      "\n\nMore certificates, and new ones in place of old ones:\n  ", Program("tacc-coordinator"),
                      " init certificate --out ", ShellWord(out), " --role user --name alice --project vision\n  ",
                      Program("tacc-coordinator"), " init renew --out ", ShellWord(out), " --name worker\n");
}

absl::StatusOr<identity::Principal> PrincipalOf(const InitOptions& options) {
  const std::optional<identity::Role> role = identity::FindRole(options.role);
  if (!role.has_value()) return absl::InvalidArgumentError(absl::StrCat("--role ", options.role, ": there is none"));
  const bool is_of_default = *role == identity::Role::kUser && options.project.empty();
  return identity::Principal{*role, options.name, is_of_default ? "default" : options.project};
}

absl::StatusOr<std::string> MakeCertificate(const InitOptions& options) {
  const absl::StatusOr<identity::Principal> principal = PrincipalOf(options);
  if (!principal.ok()) return principal.status();
  identity::CertificateRequest request;
  request.principal = *principal;
  request.hosts = options.hosts;
  request.validity = identity::ValidFor(options.days, std::time(nullptr));
  if (absl::Status status = identity::AddFolder(options.out, request); !status.ok()) return status;
  const std::string folder = absl::StrCat(options.out, "/", options.name);
  return absl::StrCat("made ", folder, " for ", identity::Describe(request.principal), ", until ",
                      Day(identity::NotAfterOf(folder)), "; of a coordinator on this machine its holder uses it by\n  ",
                      Usage(request.principal, options.out, "127.0.0.1"), "\n");
}

absl::StatusOr<std::string> Renew(const InitOptions& options) {
  const absl::StatusOr<identity::Principal> principal =
      identity::RenewFolder(options.out, options.name, identity::ValidFor(options.days, std::time(nullptr)));
  if (!principal.ok()) return principal.status();
  const std::string folder = absl::StrCat(options.out, "/", options.name);
  return absl::StrCat("wrote a new key and certificate for ", identity::Describe(*principal), " to ", folder,
                      "/tls.pem, until ", Day(identity::NotAfterOf(folder)),
                      "; programs that use this file take it within seconds, without a restart\n");
}

absl::StatusOr<std::string> MakeToken(const InitOptions& options) {
  const absl::StatusOr<identity::Principal> principal = PrincipalOf(options);
  if (!principal.ok()) return principal.status();
  const absl::StatusOr<std::string> token =
      identity::MakeToken(options.out, *principal, options.hours, std::time(nullptr));
  if (!token.ok()) return token.status();
  return absl::StrCat(*token, "\n");
}

}  // namespace

void AddInitCommand(CLI::App* app, std::function<absl::StatusOr<std::string>()>* command) {
  const auto options = std::make_shared<InitOptions>();
  CLI::App* init = app->add_subcommand(
      "init", "Make an authority and the certificates by which coordinator, workers and clients know each other");
  // What several take. `--out` is one option for each: the subcommands do not look at their parent's.
  const auto add_out = [options](CLI::App* to) {
    to->add_option("--out", options->out, "Folder that `init` has made")->required();
  };
  const auto add_days = [options](CLI::App* to) {
    to->add_option("--days", options->days, "For how long the certificates are valid")
        ->capture_default_str()
        ->check(CLI::Range(1, kMaxDays));
  };
  const auto add_holder = [options](CLI::App* to, const std::vector<std::string>& roles) {
    to->add_option("--role", options->role, "What its holder may do (docs/roles.md)")
        ->required()
        ->check(CLI::IsMember(roles));
    to->add_option("--name", options->name, "Its holder")->required();
    to->add_option("--project", options->project, "Of a user: whose jobs it sees and changes (default: default)");
  };
  CLI::Option* out = init->add_option("--out", options->out, "Folder to make, which is not there yet");
  add_days(init);
  init->add_option("--host", options->hosts,
                   "Name or IP address by which clients reach the coordinator, beside this machine's own; may be given "
                   "several times");
  init->require_subcommand(0, 1);

  CLI::App* certificate = init->add_subcommand("certificate", "Make the folder of one more holder");
  add_out(certificate);
  add_days(certificate);
  add_holder(certificate, {"admin", "user", "viewer", "worker", "metrics", "server"});
  certificate->add_option("--host", options->hosts, "Of a server: as of init");

  CLI::App* renew = init->add_subcommand("renew", "Replace a folder's key and certificate, for the same holder");
  add_out(renew);
  add_days(renew);
  renew->add_option("--name", options->name, "Folder in it")->required();

  CLI::App* token = init->add_subcommand(
      "token", "Print a bearer token, which stands for a certificate in calls to this service (aud: tacc-coordinator)");
  add_out(token);
  add_holder(token, {"admin", "user", "viewer", "metrics"});
  token->add_option("--hours", options->hours, "For how long the token is valid")
      ->capture_default_str()
      ->check(CLI::Range(1, identity::kMaxTokenHours));

  init->callback([=] {
    absl::StatusOr<std::string> (*run)(const InitOptions&) = Init;
    if (certificate->parsed()) run = MakeCertificate;
    if (renew->parsed()) run = Renew;
    if (token->parsed()) run = MakeToken;
    if (run == Init && out->empty()) throw CLI::RequiredError("--out");
    *command = [options, run] {
      while (options->out.size() > 1 && options->out.back() == '/') options->out.pop_back();
      return run(*options);
    };
  });
}

}  // namespace tacc::coordinator
