#include "graph/passes/memory/graph_planner.h"

#include <algorithm>
#include <map>
#include <string>

namespace tacc::graph {
namespace {

// Bytes of the buffers that are alive at once, at the most.
int64_t MostAlive(const std::vector<BufferLife>& lives) {
  std::map<int, int64_t> changes;  // by the first line without or with them
  for (const BufferLife& life : lives) {
    changes[life.first] += AlignToArena(life.bytes);
    changes[life.last + 1] -= AlignToArena(life.bytes);
  }
  int64_t alive = 0, most = 0;
  for (const auto& [line, change] : changes) most = std::max(most, alive += change);
  return most;
}

}  // namespace

GraphPlanner::Bytes GraphPlanner::Run(int64_t base, std::vector<MemoryUse::Buffer>& buffers) {
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

void GraphPlanner::FindUses() {
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

void GraphPlanner::BuildPlaces() {
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

void GraphPlanner::NewPlace(ValueId v, int node) {
  Place place;
  place.bytes = graph_.type(v).bytes();
  place.first = node;
  place.last = std::max(node, last_use_[v]);
  place_of_[v] = static_cast<int>(places_.size());
  places_.push_back(std::move(place));
  members_.push_back({v});
}

void GraphPlanner::Share(ValueId v, int place, int64_t within, int node) {
  place_of_[v] = place;
  within_[v] = within;
  places_[place].last = std::max({places_[place].last, node, last_use_[v]});
  members_[place].push_back(v);
}

void GraphPlanner::JoinParts() {
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

bool GraphPlanner::MayOverwrite(const Node& node, ValueId operand, ValueId result, int index) const {
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

bool GraphPlanner::DiesHere(const std::string& state) const {
  const StateKind kind = states_.at(state)->kind;
  if (kind == StateKind::kStash) return last_reads_.count(state) > 0;
  return graph_.name == kUpdateGraph && (kind == StateKind::kGradient || kind == StateKind::kCounter);
}

std::string GraphPlanner::StoredTo(ValueId v) const {
  auto it = stored_to_.find(v);
  return it == stored_to_.end() ? "" : it->second;
}

bool GraphPlanner::ReadLater(const std::string& state, int index) const {
  auto it = reads_.find(state);
  return it != reads_.end() &&
         std::any_of(it->second.begin(), it->second.end(), [&](ValueId v) { return last_use_[v] > index; });
}

void GraphPlanner::PlaceStored() {
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

void GraphPlanner::PlaceMade(ValueId v, int store, const State& state) {
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

}  // namespace tacc::graph
