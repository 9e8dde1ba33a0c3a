// Offsets for all buffers of a program, and how much memory that comes to.
#ifndef TACC_GRAPH_PASSES_MEMORY_PLAN_MEMORY_H_
#define TACC_GRAPH_PASSES_MEMORY_PLAN_MEMORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"
#include "graph/ops/target.h"

namespace tacc::graph {

inline constexpr int64_t kArenaAlignment = 64;  // bytes

// One buffer that lives from step `first` to step `last`, both included.
struct BufferLife {
  int64_t bytes = 0;
  int first = 0;
  int last = 0;
  int64_t pinned = -1;  // an offset that it must have; such buffers do not overlap each other
};

// Offsets, multiples of kArenaAlignment, such that buffers whose lives overlap do not overlap in memory; and the peak.
// Greedy by size, each at the lowest offset that fits. Source: Pisarchyk & Lee, "Efficient Memory Management for Deep
// Neural Net Inference", 2020, section 5.2.
struct Assignment {
  std::vector<int64_t> offsets;
  int64_t bytes = 0;
};
Assignment AssignOffsets(const std::vector<BufferLife>& buffers);

struct MemoryUse {
  int64_t weights_bytes = 0;  // fp32 masters, and what is frozen
  int64_t frozen_bytes = 0;   // of them, what is not trained
  int64_t copies_bytes = 0;   // narrower copies
  int64_t optimizer_bytes = 0;
  int64_t gradients_bytes = 0;
  int64_t temporaries_bytes = 0;  // the largest graph's, beside gradients
  int64_t stash_bytes = 0;        // of a pipeline: all copies
  int64_t workspace_bytes = 0;
  int64_t arena_bytes = 0;  // all but the workspace
  // Of the arena: what no graph's temporaries, with the gradients among them, fill when the most of them are alive, for
  // buffers of other lives lie in the way.
  int64_t gap_bytes = 0;
  struct Buffer {
    std::string name;  // graph, value and module
    int64_t bytes = 0;
  };
  std::vector<Buffer> largest;  // the three largest buffers, states or values
};

// The planned states of a training's programs, of all stages.
struct StatePlaces {
  // [stage], by name. Those among the temporaries have no place (offset -1).
  std::vector<std::map<std::string, State>> stages;
};
StatePlaces PlacesOf(const std::vector<Program>& stages);

// Gives every state and value its place in the arena: states first, then the graphs' temporaries, which share one
// region. A gradient that is stored once a step, before anything reads it, lies among the temporaries from there to its
// last reader: what a forward keeps for the backward lies where gradients will.
// The copies of a stash follow each other; offsets of values in it are those of the first.
// - Results that alias an operand (op facts) share its place; a result may be written over an operand that has no later
//   use.
// - A value that is stored lies at its state's place from the start where no later line reads the old value: then the
//   store is free.
// - The operand of an asynchronous collective lives until its wait.
//
// `target`: whose kernels' workspaces are planned. `like`: where the states of another program lie, with which this one
// is to share them: the same training for longer batches; null: there is none. What the program needs is appended to
// `memory`. Returns true. Errors: Internal when the other program has not the same states.
absl::StatusOr<bool> PlanMemory(Program& program, const OpTable& ops, const std::shared_ptr<const Target>& target,
                                const std::shared_ptr<const StatePlaces>& like, std::vector<MemoryUse>* memory);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_MEMORY_PLAN_MEMORY_H_
