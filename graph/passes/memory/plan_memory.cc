#include "graph/passes/memory/plan_memory.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"

namespace tacc::graph {
namespace {

int64_t Align(int64_t bytes) { return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment; }

// A place in memory that one or more values share.
struct Place {
  int64_t bytes = 0;
  int first = 0;
  int last = 0;
  int64_t fixed_offset = -1;  // a state's place
  std::string state;          // the state whose content it starts with, when fixed
};

// What a graph does with a state that lies among the temporaries.
enum class Carries { kMakes, kUses, kKeeps };

// Bytes of the buffers that are alive at once, at the most.
int64_t MostAlive(const std::vector<BufferLife>& lives) {
  std::map<int, int64_t> changes;  // by the first line without or with them
  for (const BufferLife& life : lives) {
    changes[life.first] += Align(life.bytes);
    changes[life.last + 1] -= Align(life.bytes);
  }
  int64_t alive = 0, most = 0;
  for (const auto& [line, change] : changes) most = std::max(most, alive += change);
  return most;
}

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
  Bytes Run(int64_t base, std::vector<MemoryUse::Buffer>& buffers) {
    FindUses();
    BuildPlaces();
    JoinParts();
    PlaceStored();
    std::vector<BufferLife> lives;
    std::vector<int> temporaries;
    for (size_t p = 0; p < places_.size(); ++p) {
      if (places_[p].fixed_offset >= 0) continue;
      lives.push_back({places_[p].bytes, places_[p].first, places_[p].last});
      temporaries.push_back(static_cast<int>(p));
    }
    for (const auto& [name, how] : carried_) {
      if (how == Carries::kMakes) continue;
      int last = how == Carries::kKeeps ? static_cast<int>(graph_.nodes.size()) : 0;
      for (const Place& place : places_) {
        if (place.state == name) last = std::max(last, place.last);
      }
      const State& state = *states_.at(name);
      lives.push_back({state.type.bytes(), 0, last, state.offset - base});
    }
    const Assignment assignment = AssignOffsets(lives);
    for (size_t i = 0; i < temporaries.size(); ++i) {
      Place& place = places_[temporaries[i]];
      place.fixed_offset = base + assignment.offsets[i];
      if (!place.state.empty()) states_.at(place.state)->offset = place.fixed_offset;
    }
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (place_of_[v] >= 0) graph_.values[v].offset = places_[place_of_[v]].fixed_offset + within_[v];
    }
    std::vector<char> named(places_.size(), 0);
    for (const Node& node : graph_.nodes) {
      for (ValueId v : node.results) {
        const int p = place_of_[v];
        if (named[p] || !places_[p].state.empty()) continue;
        named[p] = 1;
        buffers.push_back(
            {absl::StrCat(graph_.name, " %", graph_.values[v].name, node.module.empty() ? "" : " @", node.module),
             places_[p].bytes});
      }
    }
    return {assignment.bytes, MostAlive(lives)};
  }

 private:
  void FindUses() {
    const int end = static_cast<int>(graph_.nodes.size());
    last_use_.assign(graph_.values.size(), -1);
    std::map<ValueId, ValueId> started;  // result of an asynchronous collective -> its operand
    for (int i = 0; i < end; ++i) {
      const Node& node = graph_.nodes[i];
      for (ValueId v : node.operands) {
        last_use_[v] = node.op == Op::kOutput ? end : std::max(last_use_[v], i);
        if (auto it = started.find(v); node.op == Op::kWait && it != started.end()) {
          last_use_[it->second] = std::max(last_use_[it->second], i);
        }
      }
      if (node.op == Op::kStore) stored_to_.emplace(node.operands[0], node.symbol);
      if (node.op == Op::kRead) reads_[node.symbol].push_back(node.results[0]);
      if (GetAttr<bool>(node.attrs, "async")) started[node.results[0]] = node.operands[0];
    }
  }

  void BuildPlaces() {
    place_of_.assign(graph_.values.size(), -1);
    within_.assign(graph_.values.size(), 0);
    for (int i = 0; i < static_cast<int>(graph_.nodes.size()); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.op == Op::kRead) {
        const State* state = states_.at(node.symbol);
        NewPlace(node.results[0], i);
        places_.back().fixed_offset = state->offset;
        places_.back().state = node.symbol;
        continue;
      }
      const OpDef* def = ops_.Find(node.op);
      const OpCall call = CallOf(graph_, node);
      const std::vector<int> aliases = def->aliases ? def->aliases(call) : std::vector<int>();
      const std::vector<int> reuses = def->reuses ? def->reuses(call) : std::vector<int>();
      for (size_t r = 0; r < node.results.size(); ++r) {
        const ValueId v = node.results[r];
        if (r < aliases.size() && aliases[r] >= 0) {
          const ValueId operand = node.operands[aliases[r]];
          Share(v, place_of_[operand], within_[operand] + (def->alias_offset_bytes ? def->alias_offset_bytes(call) : 0),
                i);
        } else if (r < reuses.size() && reuses[r] >= 0 && MayOverwrite(node, node.operands[reuses[r]], v, i)) {
          Share(v, place_of_[node.operands[reuses[r]]], within_[node.operands[reuses[r]]], i);
        } else {
          NewPlace(v, i);
        }
      }
    }
  }

  void NewPlace(ValueId v, int node) {
    Place place;
    place.bytes = graph_.type(v).bytes();
    place.first = node;
    place.last = std::max(node, last_use_[v]);
    place_of_[v] = static_cast<int>(places_.size());
    places_.push_back(std::move(place));
    members_.push_back({v});
  }

  void Share(ValueId v, int place, int64_t within, int node) {
    place_of_[v] = place;
    within_[v] = within;
    places_[place].last = std::max({places_[place].last, node, last_use_[v]});
    members_[place].push_back(v);
  }

  // Parts of one tensor get one place, one behind the other, where nothing else says where they lie.
  void JoinParts() {
    for (const Node& node : graph_.nodes) {
      const int first = ops_.Find(node.op)->first_part;
      if (first < 0) continue;
      const std::vector<ValueId> parts(node.operands.begin() + first, node.operands.end());
      Place joined = places_[place_of_[parts[0]]];
      joined.bytes = 0;
      std::set<int> separate;
      bool may_join = true;
      for (ValueId v : parts) {
        const Place& place = places_[place_of_[v]];
        may_join = may_join && separate.insert(place_of_[v]).second && place.fixed_offset < 0 &&
                   place.bytes == graph_.type(v).bytes() && place.bytes % kArenaAlignment == 0;
        joined.bytes += place.bytes;
        joined.first = std::min(joined.first, place.first);
        joined.last = std::max(joined.last, place.last);
      }
      if (!may_join) continue;
      const int whole = place_of_[parts[0]];
      int64_t within = 0;
      for (ValueId v : parts) {
        const int own = place_of_[v];
        const int64_t bytes = places_[own].bytes;
        for (ValueId member : members_[own]) {
          place_of_[member] = whole;
          within_[member] += within;
        }
        if (own != whole) {
          members_[whole].insert(members_[whole].end(), members_[own].begin(), members_[own].end());
          members_[own].clear();
          places_[own] = Place{};
        }
        within += bytes;
      }
      places_[whole] = std::move(joined);
    }
  }

  // The operand's place may take the result: nothing reads any value in it after this node, and if it is a state's, the
  // result is what will be stored there or the state is not needed any more.
  bool MayOverwrite(const Node& node, ValueId operand, ValueId result, int index) const {
    const Place& place = places_[place_of_[operand]];
    if (graph_.type(operand).bytes() != graph_.type(result).bytes()) return false;
    for (ValueId member : members_[place_of_[operand]]) {
      if (last_use_[member] > index) return false;
      // Two operands of one node in one place: only the one that is overwritten may lie there.
      if (member != operand && std::find(node.operands.begin(), node.operands.end(), member) != node.operands.end())
        return false;
    }
    if (std::count(node.operands.begin(), node.operands.end(), operand) > 1) return false;
    if (place.fixed_offset < 0) return place.bytes == graph_.type(result).bytes();
    if (ReadLater(place.state, index)) return false;
    return StoredTo(result) == place.state || DiesHere(place.state);
  }

  // Gradients and counters live within a step, and the update is the last to read them: it may write over them. So may
  // the only graph that reads a stash.
  bool DiesHere(const std::string& state) const {
    const StateKind kind = states_.at(state)->kind;
    if (kind == StateKind::kStash) return last_reads_.count(state) > 0;
    return graph_.name == kUpdateGraph && (kind == StateKind::kGradient || kind == StateKind::kCounter);
  }

  // The state that the value is stored to, or "".
  std::string StoredTo(ValueId v) const {
    auto it = stored_to_.find(v);
    return it == stored_to_.end() ? "" : it->second;
  }

  // Is a read of the state, made anywhere, still used after node `index`?
  bool ReadLater(const std::string& state, int index) const {
    auto it = reads_.find(state);
    return it != reads_.end() &&
           std::any_of(it->second.begin(), it->second.end(), [&](ValueId v) { return last_use_[v] > index; });
  }

  // Values made for a state go straight to its place.
  void PlaceStored() {
    for (int i = 0; i < static_cast<int>(graph_.nodes.size()); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.op != Op::kStore) continue;
      const ValueId v = node.operands[0];
      Place& place = places_[place_of_[v]];
      const State* state = states_.at(node.symbol);
      if (const auto it = carried_.find(node.symbol); it != carried_.end() && it->second == Carries::kMakes) {
        PlaceMade(v, i, *state);
        continue;
      }
      if (place.fixed_offset >= 0 || within_[v] != 0 || place.bytes != state->type.bytes()) continue;
      // The whole life of the place must come after the last use of the old content.
      bool old_content_needed = false;
      for (ValueId read : reads_[node.symbol]) old_content_needed |= places_[place_of_[read]].last >= place.first;
      if (old_content_needed) continue;
      place.fixed_offset = state->offset;
      place.state = node.symbol;
    }
  }

  // A state that begins here lies where its value is made, from there to the end of the graph; else in a place of its
  // own from the store on.
  void PlaceMade(ValueId v, int store, const State& state) {
    const int end = static_cast<int>(graph_.nodes.size());
    Place& place = places_[place_of_[v]];
    const bool alone = place.fixed_offset < 0 && place.state.empty() && within_[v] == 0 &&
                       place.bytes == state.type.bytes() && members_[place_of_[v]].back() == v;
    if (alone) {
      place.last = end;
      place.state = state.name;
      return;
    }
    Place own;
    own.bytes = state.type.bytes();
    own.first = store;
    own.last = end;
    own.state = state.name;
    places_.push_back(std::move(own));
    members_.emplace_back();
  }

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

}  // namespace

Assignment AssignOffsets(const std::vector<BufferLife>& buffers) {
  Assignment result;
  result.offsets.assign(buffers.size(), 0);
  std::vector<int> order(buffers.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return buffers[a].bytes > buffers[b].bytes; });
  std::stable_partition(order.begin(), order.end(), [&](int b) { return buffers[b].pinned >= 0; });
  std::vector<int> placed;  // by offset
  for (int b : order) {
    const int64_t bytes = Align(buffers[b].bytes);
    if (bytes == 0) continue;
    int64_t offset = std::max<int64_t>(0, buffers[b].pinned);
    for (int other : placed) {
      if (buffers[b].pinned >= 0) break;
      if (buffers[other].last < buffers[b].first || buffers[b].last < buffers[other].first) continue;
      if (result.offsets[other] >= offset + bytes) break;  // sorted by offset: the gap before `other` fits
      offset = std::max(offset, result.offsets[other] + Align(buffers[other].bytes));
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

}  // namespace

absl::StatusOr<bool> PlanMemory(Program& program, const OpTable& ops, const std::shared_ptr<const Target>& target,
                                std::vector<MemoryUse>* memory) {
  MemoryUse use;
  std::vector<MemoryUse::Buffer> buffers;
  std::map<std::string, State*> states;
  const CarriedByGraph carried = FindCarried(program);
  std::set<std::string> among_temporaries;
  for (const auto& [graph, list] : carried) {
    for (const auto& [state, how] : list) among_temporaries.insert(state);
  }
  int64_t offset = 0, carried_bytes = 0, alive_bytes = 0;
  for (State& state : program.states) {
    states[state.name] = &state;
    state.offset = -1;
  }
  const std::map<std::string, std::vector<std::string>> parts = PartsOfOne(program, ops);
  for (State& state : program.states) {
    const auto together = parts.find(state.name);
    const std::vector<std::string> alone = {state.name};
    for (const std::string& name : together == parts.end() ? alone : together->second) {
      State& next = *states.at(name);
      if (next.offset >= 0) continue;
      next.offset = offset;
      (among_temporaries.count(name) > 0 ? carried_bytes : offset) += next.slots * Align(next.type.bytes());
    }
    const int64_t bytes = state.type.bytes();
    switch (state.kind) {
      case StateKind::kWeight:
        use.weights_bytes += bytes;
        break;
      case StateKind::kCopy:
        use.copies_bytes += bytes;
        break;
      case StateKind::kOptimizer:
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
