// What a person can do about a job that waits for workers.
#ifndef TACC_CLIENT_TACCCTL_LOCAL_ENOUGH_WORKERS_H_
#define TACC_CLIENT_TACCCTL_LOCAL_ENOUGH_WORKERS_H_

#include <string>

#include "client/taccctl/session/context.h"
#include "client/taccctl/session/coordinator_client.h"
#include "tacc/v1/coordinator.pb.h"

namespace tacc::client {

// Lines that say how many workers `job` wants, how many of one kind of device can be used, and how to have enough, with
// commands to paste; "" where there are enough, where the job does not wait, or where the coordinator does not answer.
std::string HowToHaveEnoughWorkers(const v1::Job& job, const GlobalOptions& global, CoordinatorClient* client,
                                   const Context& context);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_LOCAL_ENOUGH_WORKERS_H_
