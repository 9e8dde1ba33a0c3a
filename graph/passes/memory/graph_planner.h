// The places in memory of one graph's temporaries.
#ifndef TACC_GRAPH_PASSES_MEMORY_GRAPH_PLANNER_H_
#define TACC_GRAPH_PASSES_MEMORY_GRAPH_PLANNER_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/ir/graph.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"
#include "graph/passes/memory/plan_memory.h"

namespace tacc::graph {

// The next multiple of the arena's alignment.
inline int64_t AlignToArena(int64_t bytes) { return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment; }

// What a graph does with a state that lies among the temporaries.
enum class Carries { kMakes, kUses, kKeeps };

// Gives every value of one graph a place in memory. Graph and states are borrowed, and written.
class GraphPlanner {
 public:
  // `carried`: the states among the temporaries that are alive in this graph: made in it, read for the last time, or
  // kept for a later one. `last_reads`: the stashes that no other graph reads or sends.
  GraphPlanner(Graph& graph, std::map<std::string, State*>& states, std::map<std::string, Carries> carried,
               std::set<std::string> last_reads, const OpTable& ops)
      : graph_(graph), states_(states), carried_(std::move(carried)), last_reads_(std::move(last_reads)), ops_(ops) {}

  struct Bytes {
    int64_t used = 0;   // from the base
    int64_t alive = 0;  // at once, at the most: what no assignment can do with less than
  };
  // Offsets of values relative to `base`, and of the states that are made here.
  Bytes Run(int64_t base, std::vector<MemoryUse::Buffer>& buffers);

 private:
  // A place in memory that one or more values share.
  struct Place {
    int64_t bytes = 0;
    int first = 0;
    int last = 0;
    int64_t fixed_offset = -1;  // a state's place
    std::string state;          // the state whose content it starts with, when fixed
  };

  void FindUses();
  void BuildPlaces();
  void NewPlace(ValueId v, int node);
  void Share(ValueId v, int place, int64_t within, int node);

  // Parts of one tensor get one place, one behind the other, where nothing else says where they lie.
  void JoinParts();

  // The operand's place may take the result: nothing reads any value in it after this node, and if it is a state's, the
  // result is what will be stored there or the state is not needed any more.
  bool MayOverwrite(const Node& node, ValueId operand, ValueId result, int index) const;

  // Gradients and counters live within a step, and the update is the last to read them: it may write over them. So may
  // the only graph that reads a stash.
  bool DiesHere(const std::string& state) const;

  // The state that the value is stored to, or "".
  std::string StoredTo(ValueId v) const;

  // Is a read of the state, made anywhere, still used after node `index`?
  bool ReadLater(const std::string& state, int index) const;

  // Values made for a state go straight to its place.
  void PlaceStored();

  // A state that begins here lies where its value is made, from there to the end of the graph; else in a place of its
  // own from the store on.
  void PlaceMade(ValueId v, int store, const State& state);

  Graph& graph_;
  std::map<std::string, State*>& states_;
  const std::map<std::string, Carries> carried_;
  const std::set<std::string> last_reads_;
  const OpTable& ops_;
  std::vector<int> last_use_;
  std::map<ValueId, std::string> stored_to_;
  std::map<std::string, std::vector<ValueId>> reads_;  // of each state
  std::vector<Place> places_;
  std::vector<std::vector<ValueId>> members_;  // of each place
  std::vector<int> place_of_;
  std::vector<int64_t> within_;  // byte offset of a value in its place
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_MEMORY_GRAPH_PLANNER_H_
