// What tacc-plan is asked for a job (docs/contracts.md): without a coordinator.
#ifndef TACC_CLIENT_TACCCTL_PLAN_REQUEST_H_
#define TACC_CLIENT_TACCCTL_PLAN_REQUEST_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/taccctl/session/context.h"
#include "jobfile/cluster_file.h"
#include "tacc/v1/job.pb.h"

namespace tacc::client {

// For this machine: its probe (of a GPU where there are enough, else of the CPU, shared out between the job's workers),
// and the facts of the data.
absl::StatusOr<nlohmann::json> RequestForThisMachine(const v1::JobSpec& spec, Context& context);

// For a cluster that need not exist: no probe, no weights; no data either, where the job gives data.seq_len.
// resources.workers is left out: the cluster says how many there are.
absl::StatusOr<nlohmann::json> RequestForCluster(const v1::JobSpec& spec, const nlohmann::json& cluster,
                                                 Context& context);

// What is wrong with the job's data, model and layout, in the words of `tacc-data check` and `tacc-plan check`:
// InvalidArgument, a line for each problem. Only folders that are seen from here are looked at, and what cannot be
// found out is no problem: compiling will tell. Cancelled when the user wants to leave.
absl::Status CheckJob(const v1::JobSpec& spec, Context& context);

// What tacc-plan knows of machines.
absl::StatusOr<jobfile::KnownMachines> AskForMachines(Context& context);

// What `tacc-plan plan --request REQUEST ARGUMENTS` prints.
absl::StatusOr<std::string> RunPlan(const nlohmann::json& request, const std::vector<std::string>& arguments,
                                    Context& context);

// What `tacc-plan calibrate --request REQUEST` prints.
absl::StatusOr<std::string> RunCalibrate(const nlohmann::json& request, Context& context);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_PLAN_REQUEST_H_
