#ifndef TACC_WORKER_RANK_PROGRAM_BIND_RANDOM_H_
#define TACC_WORKER_RANK_PROGRAM_BIND_RANDOM_H_

#include <map>
#include <string>

#include "worker/rank/program/binding.h"

namespace tacc::worker {

// Dropout and random numbers.
const std::map<std::string, PrepareKernel>& RandomKernels();

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_BIND_RANDOM_H_
