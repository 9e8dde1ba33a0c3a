// What a client sends of a batch to this rank, and what this rank sends it of an evaluation's outputs.
#ifndef TACC_WORKER_RANK_SESSION_CLIENT_INPUTS_H_
#define TACC_WORKER_RANK_SESSION_CLIENT_INPUTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/program.h"
#include "nlohmann/json.hpp"
#include "worker/rank/program/executor.h"

namespace tacc::worker {

// What a rank reads of one input of a client's batches.
struct ClientInput {
  size_t index = 0;  // In Executor::inputs().
  std::string name;
  graph::TensorType type;  // Of a micro-batch, over all ranks.
  // Dim 0 are the samples; otherwise the input is the same for all of them.
  bool has_batch = true;
  std::vector<graph::Range> ranges;  // The rank's part, by dim.
  // Which positions of dim 1 the rank reads, as ranges in their order; empty: as `ranges` says.
  std::vector<graph::Range> positions;
  int64_t bytes = 0;                      // Of the rank's part.
  std::optional<int64_t> limit, ignored;  // As Executor::Input.

  // For the client: name, dtype, dims, batch, ranges, positions, limit, ignored.
  nlohmann::json ToJson() const;
};

// The inputs of batches that a client gives, in the order of `inputs`: all but "step" and "sample", which the rank
// knows, and those of the update.
// InvalidArgument: an input does not divide over the ranks.
absl::StatusOr<std::vector<ClientInput>> ClientInputs(const graph::Program& program, int64_t rank,
                                                      const std::vector<Executor::Input>& inputs);

// What a rank reads of a micro-batch whose samples have one length.
struct ClientBucket {
  int64_t seq_len = 0;
  std::vector<ClientInput> inputs;
  int64_t bytes() const;  // Of all inputs.
};

// What a rank sends of an output that the model returns: its ranges of the dims, as ClientInput's; nothing where a rank
// before it has the same.
struct ClientOutput {
  size_t index = 0;         // In Executor::returned().
  nlohmann::json describe;  // name, dtype, dims, ranges
};
std::vector<ClientOutput> ClientOutputs(const graph::Program& program, int64_t rank,
                                        const std::vector<Executor::Returned>& returned);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_SESSION_CLIENT_INPUTS_H_
