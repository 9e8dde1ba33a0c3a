// Which kernel computes each op of an optimizer's step.
#ifndef TACC_WORKER_RANK_PROGRAM_BIND_OPTIMIZER_H_
#define TACC_WORKER_RANK_PROGRAM_BIND_OPTIMIZER_H_

#include <map>
#include <string>

#include "kernels/contract/lr_schedule.h"
#include "worker/rank/program/binding.h"

namespace tacc::worker {

// By op.
const std::map<std::string, PrepareKernel>& OptimizerKernels();

// Of a node of lr_schedule, all but the table of factors.
kernels::LrSchedule LrScheduleOf(const Binding& b);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_BIND_OPTIMIZER_H_
