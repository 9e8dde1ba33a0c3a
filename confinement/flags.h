// The flags by which a daemon confines a program that it runs for a job.
#ifndef TACC_CONFINEMENT_FLAGS_H_
#define TACC_CONFINEMENT_FLAGS_H_

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "confinement/confine.h"

namespace tacc {

// As ConfinementArguments writes them.
struct ConfinementFlags {
  std::vector<std::string> allow_paths, allow_reads;
  std::string user;

  void AddTo(CLI::App* app) {
    app->add_option("--allow-path", allow_paths,
                    "Folder in which the job's files may be; or several. The program confines itself to them (default: "
                    "wherever its user may read and write)")
        ->allow_extra_args(false);
    app->add_option("--allow-read", allow_reads, "Beside those of --allow-path: folder to read; or several")
        ->allow_extra_args(false);
    app->add_option("--user", user, "User whom the program becomes, if it is root's");
  }

  // NotFound: there is no such user.
  absl::StatusOr<Confinement> Read() const {
    Confinement confinement;
    confinement.paths = AllowedPaths(allow_paths, allow_reads);
    if (user.empty()) return confinement;
    absl::StatusOr<User> found = FindUser(user);
    if (!found.ok()) return found.status();
    confinement.user = *std::move(found);
    return confinement;
  }
};

}  // namespace tacc

#endif  // TACC_CONFINEMENT_FLAGS_H_
