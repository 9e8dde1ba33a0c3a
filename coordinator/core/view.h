// What clients see of the state. Pure functions.
#ifndef TACC_COORDINATOR_CORE_VIEW_H_
#define TACC_COORDINATOR_CORE_VIEW_H_

#include "coordinator/core/job_state.h"
#include "coordinator/core/membership.h"
#include "tacc/v1/coordinator.pb.h"

namespace tacc::coordinator {

// All of Job but the cursor, which the store knows.
v1::Job ViewJob(const JobState& job);

// `now` in the core's AwakeSeconds.
// Where the ranks listen for the job's client: none unless all are ready.
v1::GetEndpointsResponse ViewEndpoints(const JobState& job);

v1::WorkerView ViewWorker(const Worker& worker, double now);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_CORE_VIEW_H_
