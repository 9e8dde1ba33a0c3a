// What a person can do about a job that waits for workers.
#pragma once

#include <string>

#include "client/taccctl/context.h"
#include "client/taccctl/coordinator_client.h"
#include "tacc/v1/coordinator.pb.h"

namespace tacc::client {

// Lines that say how many workers `job` wants, how many of one kind of device can be used, and how to have enough, with
// commands to paste; "" where there are enough, where the job does not wait, or where the coordinator does not answer.
std::string HowToHaveEnoughWorkers(const v1::Job& job, const GlobalOptions& global, CoordinatorClient* client,
                                   const Context& context);

}  // namespace tacc::client
