#include "graph/ir/program.h"

namespace tacc::graph {

absl::string_view Name(Level level) {
  constexpr const char* kNames[] = {"logical", "partitioned", "scheduled", "planned"};
  return kNames[static_cast<int>(level)];
}

absl::string_view Name(StateKind kind) {
  constexpr const char* kNames[] = {"weight",     "copy",     "optimizer", "average",
                                    "loss_scale", "gradient", "counter",   "stash"};
  return kNames[static_cast<int>(kind)];
}

namespace {

constexpr const char* kRoles[] = {"trained", "frozen", "adapter", "buffer"};

}  // namespace

absl::string_view Name(WeightRole role) { return kRoles[static_cast<int>(role)]; }

std::optional<WeightRole> FindWeightRole(absl::string_view name) {
  for (WeightRole role : {WeightRole::kTrained, WeightRole::kFrozen, WeightRole::kAdapter, WeightRole::kBuffer}) {
    if (name == Name(role)) return role;
  }
  return std::nullopt;
}

int64_t SlotStride(const State& state) {
  constexpr int64_t kAlignment = 64;
  return (state.type.bytes() + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t StageOf(const Mesh& mesh, int64_t rank) {
  const int axis = mesh.Find(kStageAxis);
  return axis < 0 ? 0 : mesh.Coordinates(rank)[axis];
}

const Graph* Program::FindGraph(absl::string_view name) const {
  for (const Graph& graph : graphs) {
    if (name == graph.name.c_str()) return &graph;
  }
  return nullptr;
}

Graph* Program::FindGraph(absl::string_view name) {
  return const_cast<Graph*>(static_cast<const Program*>(this)->FindGraph(name));
}

const State* Program::FindState(absl::string_view name) const {
  for (const State& state : states) {
    if (name == state.name.c_str()) return &state;
  }
  return nullptr;
}

StateIndex::StateIndex(const Program& program) {
  for (const State& state : program.states) states_.emplace(state.name, &state);
}

const State* StateIndex::Find(const std::string& name) const {
  const auto it = states_.find(name);
  return it == states_.end() ? nullptr : it->second;
}

}  // namespace tacc::graph
