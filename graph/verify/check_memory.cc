#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/verify/checks.h"

namespace tacc::graph {
namespace {

constexpr int64_t kAlignment = 64;  // bytes

struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
  bool empty() const { return begin >= end; }
  bool Overlaps(const Interval& o) const { return begin < o.end && o.begin < end && !empty() && !o.empty(); }
  bool operator==(const Interval&) const = default;
};

// Which content each byte of the arena holds. A content is what one node wrote in one call.
class Arena {
 public:
  void Write(const Interval& where, int64_t content) {
    if (where.empty()) return;
    Split(where.begin);
    Split(where.end);
    pieces_.erase(pieces_.lower_bound(where.begin), pieces_.lower_bound(where.end));
    pieces_[where.begin] = {where.end, content};
  }

  bool Holds(const Interval& where, int64_t content) const {
    if (where.empty()) return true;
    auto it = pieces_.upper_bound(where.begin);
    if (it == pieces_.begin()) return false;
    --it;
    int64_t reached = where.begin;
    for (; it != pieces_.end() && it->first <= reached && reached < where.end; ++it) {
      if (it->second.content != content) return false;
      reached = it->second.end;
    }
    return reached >= where.end;
  }

 private:
  struct Piece {
    int64_t end;
    int64_t content;
  };

  // Makes `at` a border between pieces.
  void Split(int64_t at) {
    auto it = pieces_.upper_bound(at);
    if (it == pieces_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    pieces_[at] = it->second;
    it->second.end = at;
  }

  std::map<int64_t, Piece> pieces_;  // by begin
};

// The memory facts of a node, asked once.
struct NodeFacts {
  std::vector<int> aliases;  // per result; empty: none
  std::vector<int> reuses;
  int64_t alias_offset = 0;
};

int At(const std::vector<int>& list, size_t i) { return i < list.size() ? list[i] : -1; }

class MemoryCheck {
 public:
  MemoryCheck(const Program& program, const OpTable& ops) : program_(program), ops_(ops) {}

  absl::Status Run() {
    if (program_.arena_bytes < 0 || program_.workspace_bytes < 0)
      return absl::InvalidArgumentError("a planned program needs `arena bytes=N workspace=N`");
    TACC_RETURN_IF_ERROR(PlaceStates());
    for (const Graph& graph : program_.graphs) {
      if (absl::Status status = CheckOffsets(graph); !status.ok()) return InGraph(graph, status);
    }
    // Two steps, an evaluation and one more step: what a step leaves behind, the next one finds.
    for (const std::vector<Call>* calls : {&program_.step, &program_.step, &program_.eval, &program_.step}) {
      int repeats = 0;
      for (size_t i = 0; i < calls->size(); ++i) {
        repeats = i > 0 && (*calls)[i].graph == (*calls)[i - 1].graph ? repeats + 1 : 0;
        const Graph& graph = *program_.FindGraph((*calls)[i].graph);
        if (repeats >= 2 && !has_stash_) continue;  // a third micro-batch in a row meets what the second did
        micro_batch_ = (*calls)[i].micro_batch;
        called_.insert(graph.name);
        if (absl::Status status = RunGraph(graph); !status.ok()) return InGraph(graph, status);
      }
    }
    for (const Graph& graph : program_.graphs) {
      if (called_.count(graph.name) > 0) continue;
      if (absl::Status status = RunGraph(graph); !status.ok()) return InGraph(graph, status);
    }
    return absl::OkStatus();
  }

 private:
  // One copy of a state.
  struct StatePlace {
    Interval where;
    int64_t content = -1;
    struct UnderWay {
      bool receives = false;
      std::set<int64_t> channels;
    } under_way;  // messages from or to it
  };

  static absl::Status InGraph(const Graph& graph, const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat("graph ", graph.name, ": ", status.message()));
  }

  absl::Status CheckInterval(const Interval& where, absl::string_view what) const {
    if (where.begin < 0) return absl::InvalidArgumentError(absl::StrCat(what, " has no offset (at=N)"));
    if (where.end > program_.arena_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " ends at byte ", where.end, " of an arena of ", program_.arena_bytes));
    }
    return absl::OkStatus();
  }

  static absl::Status CheckAlignment(const Interval& where, absl::string_view what) {
    if (where.begin % kAlignment == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(what, " lies at=", where.begin, ", no multiple of ", kAlignment));
  }

  absl::Status PlaceStates() {
    for (const State& state : program_.states) {
      const std::string what = absl::StrCat("state \"", state.name, "\"");
      has_stash_ = has_stash_ || state.kind == StateKind::kStash;
      for (int64_t slot = 0; slot < state.slots; ++slot) {
        const int64_t begin = state.offset < 0 ? state.offset : state.offset + slot * SlotStride(state);
        const Interval where{begin, begin + state.type.bytes()};
        TACC_RETURN_IF_ERROR(CheckInterval(where, what));
        TACC_RETURN_IF_ERROR(CheckAlignment(where, what));
        states_[state.name].push_back({where, next_content_++, {}});
        arena_.Write(where, states_[state.name].back().content);
      }
      if (state.slots > 1) slotted_[state.offset] = &state;
    }
    for (const State& state : program_.states) {
      for (const StatePlace& place : states_[state.name]) {
        if (!arena_.Holds(place.where, place.content))
          return absl::InvalidArgumentError(absl::StrCat("state \"", state.name, "\" overlaps another state"));
      }
    }
    return absl::OkStatus();
  }

  // The copy that the call works on.
  StatePlace& PlaceOf(const std::string& state) {
    std::vector<StatePlace>& copies = states_.at(state);
    return copies[micro_batch_ % static_cast<int64_t>(copies.size())];
  }

  absl::Status CheckOffsets(const Graph& graph) {
    std::vector<NodeFacts>& facts = facts_[graph.name];
    for (const Node& node : graph.nodes) {
      const OpDef& def = *ops_.Find(node.op);
      const OpCall call = CallOf(graph, node);
      NodeFacts f;
      if (def.aliases) f.aliases = def.aliases(call);
      if (def.reuses) f.reuses = def.reuses(call);
      if (def.alias_offset_bytes) f.alias_offset = def.alias_offset_bytes(call);
      for (size_t r = 0; r < node.results.size(); ++r) {
        const Value& value = graph.values[node.results[r]];
        const std::string what = absl::StrCat("%", value.name);
        absl::Status status = CheckInterval(Where(graph, node.results[r]), what);
        if (At(f.aliases, r) < 0) status.Update(CheckAlignment(Where(graph, node.results[r]), what));
        if (!status.ok()) return NodeError(graph, node, status.message());
      }
      facts.push_back(std::move(f));
    }
    return absl::OkStatus();
  }

  // Offsets of values in a stash are those of its first copy.
  Interval Where(const Graph& graph, ValueId v) const {
    const Value& value = graph.values[v];
    int64_t begin = value.offset;
    if (auto it = slotted_.upper_bound(begin); begin >= 0 && it != slotted_.begin()) {
      const State& state = *std::prev(it)->second;
      if (begin < state.offset + SlotStride(state)) begin += micro_batch_ % state.slots * SlotStride(state);
    }
    return {begin, begin < 0 ? begin : begin + value.type.bytes()};
  }

  absl::Status RunGraph(const Graph& graph) {
    contents_.assign(graph.values.size(), -1);
    in_flight_.clear();
    const std::vector<NodeFacts>& facts = facts_.at(graph.name);
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      if (absl::Status status = Visit(graph, graph.nodes[i], facts[i]); !status.ok())
        return NodeError(graph, graph.nodes[i], status.message());
    }
    return absl::OkStatus();
  }

  absl::Status Visit(const Graph& graph, const Node& node, const NodeFacts& facts) {
    for (ValueId v : node.operands) {
      if (!arena_.Holds(Where(graph, v), contents_[v])) {
        return absl::InvalidArgumentError(
            absl::StrCat("the bytes of %", graph.values[v].name, " were written over before this line reads them"));
      }
    }
    if (node.op == Op::kRead) {
      const StatePlace& state = PlaceOf(node.symbol);
      const ValueId v = node.results[0];
      if (Where(graph, v) != state.where) {
        return absl::InvalidArgumentError(absl::StrCat("%", graph.values[v].name, " lies at=", graph.values[v].offset,
                                                       ", but its state at=", state.where.begin));
      }
      if (!arena_.Holds(state.where, state.content))
        return absl::InvalidArgumentError("the state's bytes were written over and not stored again");
      if (state.under_way.receives) return absl::InvalidArgumentError("the stash is read before its message has come");
      contents_[v] = state.content;
      return absl::OkStatus();
    }
    if (node.op == Op::kStore) {
      StatePlace& state = PlaceOf(node.symbol);
      const ValueId v = node.operands[0];
      if (Where(graph, v) == state.where) {
        state.content = contents_[v];
        return absl::OkStatus();
      }
      if (Where(graph, v).Overlaps(state.where))
        return absl::InvalidArgumentError("the value overlaps the state's place but does not lie at it");
      TACC_RETURN_IF_ERROR(CheckInFlight(state.where));
      state.content = next_content_++;
      arena_.Write(state.where, state.content);
      return absl::OkStatus();
    }
    if (IsMessage(node.op)) return Message(node);
    if (node.op == Op::kWait) in_flight_.erase(node.operands[0]);
    for (size_t r = 0; r < node.results.size(); ++r) TACC_RETURN_IF_ERROR(Write(graph, node, facts, r));
    if (GetAttr<bool>(node.attrs, "async"))
      in_flight_[node.results[0]] = {Where(graph, node.operands[0]), Where(graph, node.results[0])};
    return absl::OkStatus();
  }

  absl::Status Write(const Graph& graph, const Node& node, const NodeFacts& facts, size_t r) {
    const ValueId v = node.results[r];
    const Interval where = Where(graph, v);
    const std::string name = absl::StrCat("%", graph.values[v].name);
    if (const int operand = At(facts.aliases, r); operand >= 0) {
      const int64_t wanted = Where(graph, node.operands[operand]).begin + facts.alias_offset;
      if (where.begin != wanted) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, " lies at=", where.begin, ", but is a part of its operand, at=", wanted));
      }
      contents_[v] = contents_[node.operands[operand]];
      return absl::OkStatus();
    }
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const Interval operand = Where(graph, node.operands[i]);
      if (!where.Overlaps(operand)) continue;
      if (At(facts.reuses, r) == static_cast<int>(i) && where == operand) continue;
      return absl::InvalidArgumentError(absl::StrCat(name, " lies on its operand %",
                                                     graph.values[node.operands[i]].name, ", which ", node.op.name(),
                                                     " does not allow"));
    }
    for (size_t other = 0; other < r; ++other) {
      if (where.Overlaps(Where(graph, node.results[other]))) {
        return absl::InvalidArgumentError(absl::StrCat(name, " overlaps %", graph.values[node.results[other]].name));
      }
    }
    TACC_RETURN_IF_ERROR(CheckInFlight(where));
    contents_[v] = next_content_++;
    arena_.Write(where, contents_[v]);
    return absl::OkStatus();
  }

  absl::Status Message(const Node& node) {
    StatePlace& state = PlaceOf(node.symbol);
    const int64_t channel = GetAttr<int64_t>(node.attrs, "channel");
    if (node.op == Op::kFinish) {
      state.under_way.channels.erase(channel);
      if (state.under_way.channels.empty()) {
        state.under_way.receives = false;
        in_flight_states_.erase(&state);
      }
      return absl::OkStatus();
    }
    if (node.op == Op::kSend && !arena_.Holds(state.where, state.content))
      return absl::InvalidArgumentError("the state's bytes were written over and not stored again");
    if (node.op == Op::kRecv) {
      TACC_RETURN_IF_ERROR(CheckInFlight(state.where));
      state.under_way.receives = true;
      state.content = next_content_++;
      arena_.Write(state.where, state.content);
    }
    state.under_way.channels.insert(channel);
    in_flight_states_.insert(&state);
    return absl::OkStatus();
  }

  absl::Status CheckInFlight(const Interval& where) const {
    for (const StatePlace* state : in_flight_states_) {
      if (where.Overlaps(state->where))
        return absl::InvalidArgumentError("writes over a stash whose message has not been waited for");
    }
    for (const auto& [v, intervals] : in_flight_) {
      if (where.Overlaps(intervals.first) || where.Overlaps(intervals.second)) {
        return absl::InvalidArgumentError("writes over memory of a collective that has not been waited for");
      }
    }
    return absl::OkStatus();
  }

  const Program& program_;
  const OpTable& ops_;
  Arena arena_;
  int64_t next_content_ = 0;
  std::map<std::string, std::vector<StatePlace>> states_;  // by copy
  std::map<int64_t, const State*> slotted_;                // those with several copies, by offset
  std::set<const StatePlace*> in_flight_states_;
  bool has_stash_ = false;
  int64_t micro_batch_ = 0;
  std::map<std::string, std::vector<NodeFacts>> facts_;  // by graph
  std::set<std::string> called_;
  std::vector<int64_t> contents_;                               // of the values of the graph that runs
  std::map<ValueId, std::pair<Interval, Interval>> in_flight_;  // collective's result -> bytes of operand and result
};

}  // namespace

absl::Status CheckMemory(const Program& program, const OpTable& ops) { return MemoryCheck(program, ops).Run(); }

}  // namespace tacc::graph
