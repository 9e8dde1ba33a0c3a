// Another tacc-worker takes this process's place (execve), beside a rank that runs on: a child stays the child of the
// same process. What the next has to know is in memory whose descriptor it inherits.
#ifndef TACC_WORKER_DAEMON_REPLACEMENT_H_
#define TACC_WORKER_DAEMON_REPLACEMENT_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "confinement/cgroup.h"
#include "nlohmann/json_fwd.hpp"
#include "spdlog/fwd.h"
#include "tacc/v1/worker.pb.h"
#include "worker/daemon/host/state_directory.h"

namespace tacc::worker {

// Flags of tacc-worker that it gives itself.
inline constexpr char kTakeOverFlag[] = "--take-over-fd";
inline constexpr char kCheckTakeOverFlag[] = "--check-take-over";
// What a program answers to the latter that can read what this one hands over.
inline constexpr char kTakesOver[] = "takes over from format 1\n";

// How this process is started again: its program and arguments, without the two flags. The program is what lies at the
// path by which it was called, also where that is a link that leads elsewhere by now; called by a name alone, where it
// was found.
std::vector<std::string> OwnCommand(int argc, char** argv);

// Whether that program runs with these arguments, and takes over. FailedPrecondition: what it says instead.
absl::Status CheckReplacement(const std::vector<std::string>& command);

// Runs it in this process's place: with what RunDaemon has handed over, the state directory, the ranks' cgroups (null:
// none) and `parent_fd` (-1: none), and no other descriptors. If it cannot be run, after all, the program that this
// process runs takes its own place. Returns if that cannot be run either.
absl::Status HandOver(std::vector<std::string> command, nlohmann::json daemon, StateDirectory* state, Cgroups* cgroups,
                      int parent_fd, spdlog::logger* logger);

// What was handed over in `fd`, which is closed: {"daemon": ..., "state": ..., "cgroups": ...}, the last null where
// there are none. The inherited descriptors are for no other program. InvalidArgument: it cannot be read.
absl::StatusOr<nlohmann::json> TakeHandedOver(int fd);
// The ranks' cgroups whose "cgroups" that is. InvalidArgument: they cannot be read.
absl::StatusOr<std::unique_ptr<Cgroups>> CgroupsOf(const nlohmann::json& cgroups, const CgroupLimits& limits);
// The device as the daemon has seen it whose "daemon" that is. InvalidArgument: there is none.
absl::StatusOr<v1::DeviceProfile> DeviceOf(const nlohmann::json& daemon);

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_REPLACEMENT_H_
