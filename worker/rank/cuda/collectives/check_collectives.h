// Every kind of collective run on GPUs and compared with the sums of the host.
#ifndef TACC_WORKER_RANK_CUDA_COLLECTIVES_CHECK_COLLECTIVES_H_
#define TACC_WORKER_RANK_CUDA_COLLECTIVES_CHECK_COLLECTIVES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/device/device.h"

namespace tacc::worker {

// What became of one kind of call.
struct CollectiveOutcome {
  std::string name;     // "reduce_scatter bf16, 100000 elements, 3 rows, among 0 2"
  std::string error;    // Empty: every run gave what it must.
  uint64_t digest = 0;  // Of the bits of a sum that all ranks have; 0 of other calls.
};

struct CollectiveCheckOptions {
  Device* device = nullptr;          // Both must outlive the check;
  CollectiveQueue* queue = nullptr;  // nothing has been prepared.
  int rank = 0;
  int world = 1;
  int64_t elements = 100'000;  // Of a part, or of a large sum; 500 at least.
};

// Runs every kind of call that programs make: gathers, sums and exchanges of equal and unequal parts, in a row, in rows
// and packed, in place, in each dtype, among all ranks and, of four or more, among groups as the axes of a mesh give
// them; messages in a ring. Each is run as it is, and where the queue is on the device recorded and replayed, with
// other numbers each time; then all of them in one recording. After each run the whole memory of the call is held to
// what it must be: moved bits, sums in f64 on the host, and what no call may touch.
//
// All ranks call it, and get outcomes of the same calls in the same order, whose names differ by the members. Errors:
// of a call that could not be run, after which none else can.
absl::StatusOr<std::vector<CollectiveOutcome>> CheckCollectives(const CollectiveCheckOptions& options);

// The same, where a call is wrong too if it is on another rank, or if its sum is other bits there. All ranks call it.
absl::StatusOr<std::vector<CollectiveOutcome>> AgreeOnOutcomes(Collectives& host, std::vector<CollectiveOutcome> mine);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_COLLECTIVES_CHECK_COLLECTIVES_H_
