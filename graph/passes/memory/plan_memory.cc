#include "graph/passes/memory/plan_memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/passes/memory/graph_planner.h"

namespace tacc::graph {

Assignment AssignOffsets(const std::vector<BufferLife>& buffers) {
  Assignment result;
  result.offsets.assign(buffers.size(), 0);
  std::vector<int> order(buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return buffers[a].bytes > buffers[b].bytes; });
  std::stable_partition(order.begin(), order.end(), [&](int b) { return buffers[b].pinned >= 0; });
  std::vector<int> placed;  // by offset
  for (int b : order) {
    const int64_t bytes = AlignToArena(buffers[b].bytes);
    if (bytes == 0) continue;
    int64_t offset = std::max<int64_t>(0, buffers[b].pinned);
    for (int other : placed) {
      if (buffers[b].pinned >= 0) break;
      if (buffers[other].last < buffers[b].first || buffers[b].last < buffers[other].first) continue;
      if (result.offsets[other] >= offset + bytes) break;  // sorted by offset: the gap before `other` fits
      offset = std::max(offset, result.offsets[other] + AlignToArena(buffers[other].bytes));
    }
    result.offsets[b] = offset;
    placed.insert(std::upper_bound(placed.begin(), placed.end(), b,
                                   [&](int x, int y) { return result.offsets[x] < result.offsets[y]; }),
                  b);
    result.bytes = std::max(result.bytes, offset + bytes);
  }
  return result;
}

namespace {

// The states that a graph reads and stores.
struct Touched {
  std::unordered_set<std::string> read, stored;
};

std::map<std::string, Touched> TouchedByGraph(const Program& program) {
  std::map<std::string, Touched> touched;
  for (const Graph& graph : program.graphs) {
    Touched& by_graph = touched[graph.name];
    for (const Node& node : graph.nodes) {
      if (node.op == Op::kRead) by_graph.read.insert(node.symbol);
      if (node.op == Op::kStore) by_graph.stored.insert(node.symbol);
    }
  }
  return touched;
}

// For each gradient that is stored by one call of a step, before any call reads it: what the called graphs do with it.
// By graph, then state.
using CarriedByGraph = std::map<std::string, std::map<std::string, Carries>>;
CarriedByGraph FindCarried(const Program& program) {
  CarriedByGraph carried;
  const std::map<std::string, Touched> touched = TouchedByGraph(program);
  std::vector<const Touched*> by_call, by_eval_call;
  for (const Call& call : program.step) by_call.push_back(&touched.at(call.graph));
  for (const Call& call : program.eval) by_eval_call.push_back(&touched.at(call.graph));
  for (const State& state : program.states) {
    if (state.kind != StateKind::kGradient) continue;
    int made = -1, last_read = -1;
    bool carries = true;
    for (int i = 0; i < static_cast<int>(program.step.size()); ++i) {
      const bool reads = by_call[i]->read.count(state.name) > 0, stores = by_call[i]->stored.count(state.name) > 0;
      if (stores) {
        carries &= made < 0 && !reads;
        made = i;
      }
      if (reads) {
        carries &= made >= 0;
        last_read = i;
      }
    }
    for (const Touched* call : by_eval_call)
      carries &= call->read.count(state.name) == 0 && call->stored.count(state.name) == 0;
    if (!carries || made < 0 || last_read <= made) continue;
    // A graph that is called for other reasons as well would have to keep it always.
    std::map<std::string, Carries> by_graph;
    for (int i = made; i <= last_read && carries; ++i) {
      const Carries how = i == made ? Carries::kMakes : i == last_read ? Carries::kUses : Carries::kKeeps;
      carries &= by_graph.emplace(program.step[i].graph, how).second || by_graph.at(program.step[i].graph) == how;
    }
    if (!carries) continue;
    for (const auto& [graph, how] : by_graph) carried[graph][state.name] = how;
  }
  return carried;
}

// For each graph the stashes that it alone reads, and that are not sent.
std::map<std::string, std::set<std::string>> LastReads(const Program& program) {
  std::map<std::string, std::set<std::string>> readers;  // stash -> graphs, "" for a send
  for (const Graph& graph : program.graphs) {
    for (const Node& node : graph.nodes) {
      if (node.op == Op::kRead || node.op == Op::kSend)
        readers[node.symbol].insert(node.op == Op::kRead ? graph.name : "");
    }
  }
  std::map<std::string, std::set<std::string>> last_reads;
  for (const State& state : program.states) {
    const auto it = readers.find(state.name);
    if (state.kind == StateKind::kStash && it != readers.end() && it->second.size() == 1)
      last_reads[*it->second.begin()].insert(state.name);
  }
  return last_reads;
}

// For each state that a graph reads as a part of a tensor: the states of all its parts, in order.
std::map<std::string, std::vector<std::string>> PartsOfOne(const Program& program, const OpTable& ops) {
  const StateIndex states(program);
  std::map<std::string, std::vector<std::string>> parts;
  for (const Graph& graph : program.graphs) {
    const std::vector<int> producers = graph.Producers();
    for (const Node& node : graph.nodes) {
      const OpDef* def = ops.Find(node.op);
      if (def == nullptr || def->first_part < 0) continue;
      std::vector<std::string> names;
      for (size_t i = def->first_part; i < node.operands.size(); ++i) {
        const Node& producer = graph.nodes[producers[node.operands[i]]];
        const bool is_known = states.Find(producer.symbol) != nullptr;
        if (producer.op == Op::kRead && is_known && parts.count(producer.symbol) == 0) names.push_back(producer.symbol);
      }
      const std::set<std::string> distinct(names.begin(), names.end());
      if (distinct.size() + def->first_part != node.operands.size()) continue;
      for (const std::string& name : names) parts[name] = names;
    }
  }
  return parts;
}

// Whether each of the node's operands from `first` on, which have places, ends where the next begins.
bool LieInARow(const Graph& graph, const Node& node, int first) {
  for (size_t i = first + 1; first >= 0 && i < node.operands.size(); ++i) {
    const Value& before = graph.values[node.operands[i - 1]];
    if (before.offset + before.type.bytes() != graph.values[node.operands[i]].offset) return false;
  }
  return true;
}

std::set<std::string> Names(const CarriedByGraph& carried) {
  std::set<std::string> names;
  for (const auto& [graph, list] : carried) {
    for (const auto& [state, how] : list) names.insert(state);
  }
  return names;
}

int64_t BytesOf(const State& state) { return state.slots * AlignToArena(state.type.bytes()); }

// Gives states the places that they have in a program for longer batches, but for those that are this one's own.
// Returns the end of all places there.
absl::StatusOr<int64_t> PlaceAsIn(const std::map<std::string, State>& like, const std::set<std::string>& own,
                                  Program& program) {
  int64_t end = 0;
  for (const auto& [name, state] : like) end = std::max(end, state.offset < 0 ? 0 : state.offset + BytesOf(state));
  for (State& state : program.states) {
    const auto found = like.find(state.name);
    const bool is_there = found != like.end();
    if (state.kind == StateKind::kStash) {
      if (is_there && BytesOf(state) <= BytesOf(found->second)) state.offset = found->second.offset;
    } else if (!is_there || state.type != found->second.type || state.placement != found->second.placement) {
      return absl::InternalError(
          absl::StrCat("state ", state.name, " is not as in the program for the longest batches"));
    } else if (own.count(state.name) == 0) {
      state.offset = found->second.offset;
    }
  }
  return end;
}

}  // namespace

StatePlaces PlacesOf(const std::vector<Program>& stages) {
  StatePlaces places;
  for (const Program& program : stages) {
    const std::set<std::string> among_temporaries = Names(FindCarried(program));
    std::map<std::string, State>& of_stage = places.stages.emplace_back();
    for (const State& state : program.states) {
      State& place = of_stage.emplace(state.name, state).first->second;
      if (among_temporaries.count(state.name) > 0) place.offset = -1;
    }
  }
  return places;
}

absl::StatusOr<bool> PlanMemory(Program& program, const OpTable& ops, const std::shared_ptr<const Target>& target,
                                const std::shared_ptr<const StatePlaces>& like, std::vector<MemoryUse>* memory) {
  MemoryUse use;
  std::vector<MemoryUse::Buffer> buffers;
  std::map<std::string, State*> states;
  const CarriedByGraph carried = FindCarried(program);
  const std::set<std::string> among_temporaries = Names(carried);
  int64_t offset = 0, carried_bytes = 0, alive_bytes = 0;
  for (State& state : program.states) {
    states[state.name] = &state;
    state.offset = -1;
  }
  if (like != nullptr) {
    TACC_ASSIGN_OR_RETURN(offset, PlaceAsIn(like->stages.at(program.stage), among_temporaries, program));
  }
  const std::map<std::string, std::vector<std::string>> parts = PartsOfOne(program, ops);
  for (State& state : program.states) {
    const auto together = parts.find(state.name);
    const std::vector<std::string> alone = {state.name};
    for (const std::string& name : together == parts.end() ? alone : together->second) {
      State& next = *states.at(name);
      if (next.offset >= 0) continue;
      next.offset = offset;
      (among_temporaries.count(name) > 0 ? carried_bytes : offset) += BytesOf(next);
    }
    const int64_t bytes = state.type.bytes();
    switch (state.kind) {
      case StateKind::kWeight:
        use.weights_bytes += bytes;
        if (state.role == WeightRole::kFrozen) use.frozen_bytes += bytes;
        break;
      case StateKind::kCopy:
        use.copies_bytes += bytes;
        break;
      case StateKind::kOptimizer:
      case StateKind::kAverage:
      case StateKind::kLossScale:
        use.optimizer_bytes += bytes;
        break;
      case StateKind::kGradient:
        use.gradients_bytes += bytes;
        break;
      case StateKind::kCounter:
        break;
      case StateKind::kStash:
        use.stash_bytes += state.slots * bytes;
        break;
    }
    buffers.push_back({absl::StrCat("state ", state.name), state.slots * bytes});
  }
  // Graphs that make a state among the temporaries come before those that find it there.
  std::vector<Graph*> order;
  for (Graph& graph : program.graphs) order.push_back(&graph);
  std::stable_partition(order.begin(), order.end(), [&](const Graph* graph) {
    const auto it = carried.find(graph->name);
    return it != carried.end() && std::any_of(it->second.begin(), it->second.end(),
                                              [](const auto& entry) { return entry.second == Carries::kMakes; });
  });
  std::map<std::string, std::set<std::string>> last_reads = LastReads(program);
  for (Graph* each : order) {
    Graph& graph = *each;
    for (const Node& node : graph.nodes) {
      const OpDef* def = ops.Find(node.op);
      if (def == nullptr)
        return absl::InvalidArgumentError(absl::StrCat(graph.name, ": unknown op '", node.op.name(), "'"));
      if ((node.op == Op::kRead || node.op == Op::kStore) && states.count(node.symbol) == 0) {
        return absl::InvalidArgumentError(absl::StrCat(graph.name, ": no state is named \"", node.symbol, "\""));
      }
    }
    const auto it = carried.find(graph.name);
    GraphPlanner planner(graph, states, it == carried.end() ? std::map<std::string, Carries>() : it->second,
                         last_reads[graph.name], ops);
    const GraphPlanner::Bytes bytes = planner.Run(offset, buffers);
    use.temporaries_bytes = std::max(use.temporaries_bytes, bytes.used);
    alive_bytes = std::max(alive_bytes, bytes.alive);
    for (const Node& node : graph.nodes) {
      const OpDef& def = *ops.Find(node.op);
      const Parts parts = LieInARow(graph, node, def.first_part) ? Parts::kInARow : Parts::kApart;
      use.workspace_bytes = std::max(use.workspace_bytes, WorkspaceBytes(def, CallOf(graph, node), *target, parts));
    }
  }
  use.workspace_bytes += target->LibraryBytes();
  use.arena_bytes = offset + use.temporaries_bytes;
  use.gap_bytes = use.temporaries_bytes - alive_bytes;
  use.temporaries_bytes -= std::min(use.temporaries_bytes, carried_bytes);
  std::partial_sort(buffers.begin(), buffers.begin() + std::min<size_t>(3, buffers.size()), buffers.end(),
                    [](const MemoryUse::Buffer& a, const MemoryUse::Buffer& b) { return a.bytes > b.bytes; });
  buffers.resize(std::min<size_t>(3, buffers.size()));
  use.largest = std::move(buffers);
  program.arena_bytes = use.arena_bytes;
  program.workspace_bytes = use.workspace_bytes;
  program.level = Level::kPlanned;
  memory->push_back(std::move(use));
  return true;
}

}  // namespace tacc::graph
