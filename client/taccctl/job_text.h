// A job as text for people.
#pragma once

#include <ostream>
#include <string>

#include "tacc/v1/coordinator.pb.h"

namespace tacc::client {

// All about one job.
void PrintJob(const v1::Job& job, std::ostream& out);

// "running", "waiting", ...
std::string PhaseText(v1::Phase phase);

}  // namespace tacc::client
