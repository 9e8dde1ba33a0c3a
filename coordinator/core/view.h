// What clients see of the state. Pure functions.
#ifndef TACC_COORDINATOR_CORE_VIEW_H_
#define TACC_COORDINATOR_CORE_VIEW_H_

#include <string>

#include "coordinator/core/job_state.h"
#include "coordinator/core/membership.h"
#include "tacc/v1/coordinator.pb.h"

namespace tacc::coordinator {

// All of Job but the cursor, which the store knows. `clear_address`: where the network reaches the coordinator without
// TLS, empty: nowhere.
v1::Job ViewJob(const JobState& job, const std::string& clear_address);

// Where the ranks listen for the job's client: none unless all are ready.
v1::GetEndpointsResponse ViewEndpoints(const JobState& job);

// `now` in the core's AwakeSeconds.
v1::WorkerView ViewWorker(const Worker& worker, double now);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_CORE_VIEW_H_
