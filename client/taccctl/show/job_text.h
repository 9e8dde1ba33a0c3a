// A job as text for people.
#ifndef TACC_CLIENT_TACCCTL_SHOW_JOB_TEXT_H_
#define TACC_CLIENT_TACCCTL_SHOW_JOB_TEXT_H_

#include <ostream>
#include <string>

#include "tacc/v1/coordinator.pb.h"

namespace tacc::client {

// All about one job.
void PrintJob(const v1::Job& job, std::ostream& out);

// "running", "waiting", ...
std::string PhaseText(v1::Phase phase);

// Updates done, and of how many: "12/30"; "40 (30 wanted)" of a job that goes on from a checkpoint beyond what it
// wants.
std::string StepsDone(const v1::Job& job);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_SHOW_JOB_TEXT_H_
