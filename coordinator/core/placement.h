// Which workers a job's ranks get. Pure functions.
#ifndef TACC_COORDINATOR_CORE_PLACEMENT_H_
#define TACC_COORDINATOR_CORE_PLACEMENT_H_

#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/job_state.h"
#include "coordinator/core/membership.h"
#include "tacc/v1/worker.pb.h"

namespace tacc::coordinator {

// The profile that every one of `workers` (one kind, at least one) can live up to: the least memory, threads and speed,
// the least part of its machine's processors (shared with those of them that advertise the same address), and only the
// dtypes and instructions that all have.
v1::DeviceProfile Weakest(const std::vector<const Worker*>& workers);

// The device to compile a job of `world` ranks (0: unknown, taken as 1) for: the weakest of the workers it would get.
// Nothing when fewer than `world` usable workers of one kind are attached. Free workers come before busy ones, kinds
// in the order of DeviceKinds(), machines with more of them before others, then names in order.
std::optional<v1::DeviceProfile> DeviceToCompileFor(const Membership& members, int world);

// Attached workers that no rank can be started on now, and why: "; gpu-1: cuda:1 cannot be used: ..."; empty: there are
// none.
std::string Troubles(const Membership& members);

// Why a job of `world` ranks (0: unknown, taken as 1) does not run, for people: "needs 4 workers, 1 free (2 attached);
// taken by tiny-1".
std::string NeedsWorkers(const Membership& members, int world);

// Whether a program compiled for job.compile.device may run on `device`.
bool Fits(const JobState& job, const v1::DeviceProfile& device);

struct Choice {
  // By rank; empty: not now.
  std::vector<std::string> workers;
  // Enough workers are free, but not for the program as compiled, or another release compiled it: compile again for
  // this device.
  std::optional<v1::DeviceProfile> recompile_for;
  // Why not now, for people: "needs 2 workers, 1 free".
  std::string reason;
};
// A gang for a compiled job: all of its ranks or none, of one kind, neighbours on one machine.
Choice Place(const Membership& members, const JobState& job);

// Sum of the peaks, in FLOP/s, of the workers in `precision` ("f32", "bf16"): the vendor's where the worker knows it,
// else the measured one; of CPUs on a machine with fewer processors than their threads, what these reach.
double PeakFlopsPerSecond(const Membership& members, const std::vector<std::string>& workers,
                          const std::string& precision);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_CORE_PLACEMENT_H_
