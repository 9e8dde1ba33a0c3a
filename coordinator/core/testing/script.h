// Scripts of the core: each block is a command, `----`, and all decisions that the core takes on it; blocks end at an
// empty line, and lines with # stay as they are.
//
// Commands (RANK is JOB/ATTEMPT/RANK; reports are numbered by themselves, `RANK@N` sends number N again):
//   submit NAME [workers=N] [max_steps=N] [epochs=N] [max_seconds=N] [max_restarts=N] [limit=N] [dir=D]
//     [request=R] [resume=auto|never|PATH] [model=PATH] [project=P]
//   cancel JOB now|checkpoint
//   compiled JOB [world=N] [pp=N] [need=BYTES] [note=WORD] [max_steps=N] [eps=E] [precision=P] [residual=P]
//   compile_failed JOB bad_input|bug MESSAGE
//   unread|lost RANK MESSAGE: the rank's program cannot be read
//   attach W [instance=I] [version=V] [protocol=N] [advertise=HOST] [kind=K] [threads=N] [cpus=N] [memory=N] [peak=F]
//     [bf16=SPEEDUP] [trouble=TEXT] [running=RANK] [held=RANK]
//   detach W
//   paths W [max_attempt=N] [exported=NAME] [owner=TEXT] [export_problem=TEXT] [missing|denied|unavailable|wrong=TEXT]
//     [NAME:step=N:attempt=N[:seed=N][:weights=W][:eps=E][:damaged][:unread][:denied][:gone] ...]
//     answers the last check_paths to W
//   asked W: the last check_paths to W
//   event RANK JSON
//   step RANK N
//   checkpoint RANK N
//   ready RANK [STEP]
//   exit RANK CODE|signal=N|killed|start=TEXT [log=LINE]
//   beat W [RANK collective|outside|client step=N call=N node=N still=S]
//   deleted W [NAME ...] [asked=W2]: as the answer to what W2 was asked last
//   reported W [PATH|error=TEXT] [asked=W2]: the last write_report to W
//   device W [TROUBLE] [memory=N]: what W says of its device
//   tick SECONDS [alive=W,W]
//   stall SECONDS: the coordinator does not run for so long, and its tick comes before what workers sent meanwhile
//   restart [keep=N] [last_id=N] [version=V]: a coordinator with nothing but what was logged, which keeps N ended jobs
//   job JOB
//   workers
#ifndef TACC_COORDINATOR_CORE_TESTING_SCRIPT_H_
#define TACC_COORDINATOR_CORE_TESTING_SCRIPT_H_

#include <string>

namespace tacc::coordinator {

// Returns the script with what a new core decides on its commands in place of the decisions that it holds. A command
// that is not known decides "no such command"; an argument that is missing or no number throws.
std::string RunScript(const std::string& script);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_CORE_TESTING_SCRIPT_H_
