// Names the cause of a hang from samples of the ranks' status blocks. A pure function.
#ifndef TACC_COORDINATOR_CORE_HANG_H_
#define TACC_COORDINATOR_CORE_HANG_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/job_state.h"

namespace tacc::coordinator {

// What an instruction of a rank's program is called: "all_gather %w.3 (layers.0.mlp)". `call` and `node` as in the
// status block.
using DescribeInstruction = std::function<std::string(const JobState& job, int rank, int call, int node)>;

// A hang of a running attempt is: every rank has stood still for `timeout_seconds`, and at least one of them inside a
// collective. Returns one line that names the rank that is furthest behind and the instruction that the others wait in;
// nothing when there is no hang or a rank has sent no sample yet. Stages of a pipeline run programs of their own, whose
// places cannot be compared: the first stage with a rank that is behind the others of its stage, or in no collective,
// is looked at.
std::optional<std::string> FindHang(const JobState& job, double timeout_seconds, const DescribeInstruction& describe);

// A hang of an attempt that starts is: a rank that waits for no other has stood still for `timeout_seconds`, or all
// that are not ready wait and have. Returns one line that names the rank and what it was doing; nothing when there is
// none.
std::optional<std::string> FindStartHang(const JobState& job, double timeout_seconds);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_CORE_HANG_H_
