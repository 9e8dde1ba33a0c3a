#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "graph/ir/capture.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/program/bound_graph.h"

namespace tacc::worker {

using kernels::TensorView;

namespace {

bool HasSameNodes(const graph::Graph& graph, const graph::Program& program) {
  const graph::Graph* const other = program.FindGraph(graph.name);
  return other != nullptr &&
         std::equal(graph.nodes.begin(), graph.nodes.end(), other->nodes.begin(), other->nodes.end(),
                    [](const graph::Node& a, const graph::Node& b) { return a.op == b.op; });
}

}  // namespace

absl::StatusOr<TensorView> Executor::Binder::ViewOf(const graph::TensorType& type, char* data) const {
  if (type.rank() > kernels::Dims::kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat(type.ToString(), " has ", type.rank(), " dims; kernels take at most ", kernels::Dims::kMaxRank));
  }
  return TensorView{data, static_cast<kernels::DType>(type.dtype), kernels::Dims(type.dims.begin(), type.dims.end())};
}

absl::StatusOr<char*> Executor::Binder::Memory(int64_t offset, int64_t bytes) {
  if (const Arena* arena = executor_.options_.arena; arena != nullptr) {
    if (const auto it = stashes_.upper_bound(offset); it != stashes_.begin()) {
      const graph::State& stash = *std::prev(it)->second;
      if (offset < stash.offset + graph::SlotStride(stash)) offset += SlotOf(stash) * graph::SlotStride(stash);
    }
    if (offset < 0 || bytes > arena->arena_bytes() || offset > arena->arena_bytes() - bytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "offset ", offset, " of ", bytes, " bytes is not inside the arena of ", arena->arena_bytes(), " bytes"));
    }
    return arena->data() + offset;
  }
  constexpr int64_t kAlign = 64;
  executor_.owned_.push_back(std::make_unique<char[]>(bytes + kAlign));
  char* data = executor_.owned_.back().get();
  return data + (kAlign - reinterpret_cast<uintptr_t>(data) % kAlign) % kAlign;
}

absl::Status Executor::Binder::CheckCalls() const {
  const graph::Program& first = *executor_.programs_[0].program;
  if (program_.mesh == first.mesh && program_.stage == first.stage && program_.num_stages == first.num_stages &&
      program_.step == first.step && program_.eval == first.eval)
    return absl::OkStatus();
  return absl::InvalidArgumentError("a program for other batches has another mesh, stage or other calls");
}

absl::Status Executor::Binder::CheckState(const graph::State& state) const {
  if (state.kind == graph::StateKind::kStash) return absl::OkStatus();
  const graph::State* const first = executor_.programs_[0].program->FindState(state.name);
  if (first == nullptr || first->type != state.type || first->placement != state.placement)
    return absl::InvalidArgumentError(
        absl::StrCat("state ", state.name, " of a program for other batches is not that of the first one"));
  if (first->offset == state.offset) return absl::OkStatus();
  if (state.kind != graph::StateKind::kGradient)
    return absl::InvalidArgumentError(
        absl::StrCat("state ", state.name, " of a program for other batches lies at another place"));
  executor_.shares_gradients_ = false;
  return absl::OkStatus();
}

absl::Status Executor::Binder::CheckInputs() const {
  for (size_t i = 0; i < bound_.inputs.size(); ++i) {
    if (!bound_.inputs[i].name.empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("a program for other batches lacks the input \"", executor_.inputs()[i].name, "\""));
  }
  return absl::OkStatus();
}

absl::Status Executor::Binder::Bind() {
  if (!is_first()) {
    TACC_RETURN_IF_ERROR(CheckCalls());
    bound_.inputs.resize(executor_.inputs().size());
  }
  TACC_RETURN_IF_ERROR(BindStates());
  TACC_RETURN_IF_ERROR(BindCalls());
  TACC_RETURN_IF_ERROR(CheckInputs());
  for (const auto& [key, message] : messages_) {
    if (!message->is_bound)
      return absl::InvalidArgumentError(
          absl::StrCat("channel ", key.first, " has a finish, but neither send nor recv of copy ", key.second));
  }
  return absl::OkStatus();
}

absl::Status Executor::Binder::BindCalls() {
  for (auto [calls, bound] : {std::pair{&program_.step, &bound_.step}, std::pair{&program_.eval, &bound_.eval}}) {
    for (const graph::Call& call : *calls) {
      const graph::Graph* graph = program_.FindGraph(call.graph);
      if (graph == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("a call names the graph '", call.graph, "', which the program does not have"));
      }
      if (call.micro_batch < 0)
        return absl::InvalidArgumentError(absl::StrCat("call ", call.graph, ": negative micro_batch"));
      executor_.num_micro_batches_ = std::max(executor_.num_micro_batches_, call.micro_batch + 1);
      TACC_ASSIGN_OR_RETURN(BoundGraph * of_call, BindGraph(*graph, call.micro_batch));
      bound->push_back({of_call, call.micro_batch, index_});
    }
  }
  // A graph that is never called must fit as well.
  for (const graph::Graph& graph : program_.graphs) TACC_RETURN_IF_ERROR(BindGraph(graph, 0).status());
  return absl::OkStatus();
}

absl::Status Executor::Binder::BindStates() {
  for (const graph::State& state : program_.states) {
    states_[state.name] = &state;
    if (!is_first()) TACC_RETURN_IF_ERROR(CheckState(state));
    if (!is_first() && executor_.options_.arena == nullptr && state.kind != graph::StateKind::kStash) {
      bound_.states[state.name] = executor_.programs_[0].states.at(state.name);
      continue;
    }
    if (state.slots < 1) return absl::InvalidArgumentError(absl::StrCat("state ", state.name, ": slots=", state.slots));
    if (state.slots > 1 && state.offset >= 0) stashes_[state.offset] = &state;
    for (micro_batch_ = 0; micro_batch_ < state.slots; ++micro_batch_) {
      absl::StatusOr<char*> data = Memory(state.offset, state.type.bytes());
      if (!data.ok())
        return absl::Status(data.status().code(), absl::StrCat("state ", state.name, ": ", data.status().message()));
      TACC_ASSIGN_OR_RETURN(const TensorView view, ViewOf(state.type, *data));
      bound_.states[state.name].push_back(view);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Executor::BoundGraph*> Executor::Binder::BindGraph(const graph::Graph& graph, int64_t micro_batch) {
  micro_batch_ = micro_batch;
  std::vector<int64_t> slots;
  for (const graph::Node& node : graph.nodes) {
    const auto state = node.symbol.empty() ? states_.end() : states_.find(node.symbol);
    if (state != states_.end() && state->second->slots > 1) slots.push_back(SlotOf(*state->second));
  }
  std::unique_ptr<BoundGraph>& place = bound_.graphs[{graph.name, slots}];
  if (place != nullptr) return place.get();
  place = std::make_unique<BoundGraph>();
  BoundGraph& bound = *place;
  bound.graph = &graph;
  bound.is_timed = is_first() || HasSameNodes(graph, *executor_.programs_[0].program);
  views_.assign(graph.values.size(), TensorView());
  tickets_.assign(graph.values.size(), nullptr);
  requests_.clear();
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (absl::Status status = BindNode(graph, static_cast<int>(i), bound); !status.ok()) {
      Instruction instruction;
      instruction.node = static_cast<int>(i);
      return executor_.Annotate(bound, instruction, status);
    }
  }
  TACC_RETURN_IF_ERROR(PrepareKernels(bound));
  CutIntoParts(bound);
  return &bound;
}

absl::Status Executor::Binder::PrepareKernels(BoundGraph& bound) {
  const KernelTable& table = executor_.options_.device->kernels();
  const auto op = [&](const Instruction& instruction) -> const graph::Op& {
    return bound.graph->nodes[instruction.node].op;
  };
  std::vector<Instruction> given = std::exchange(bound.instructions, {});
  for (size_t i = 0; i < given.size();) {
    Instruction& first = bound.instructions.emplace_back(std::move(given[i]));
    if (first.request < 0) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    while (end < given.size() && given[end].request >= 0 && op(given[end]) == op(first)) ++end;
    absl::StatusOr<KernelTable::Joint> joint =
        table.PrepareFirst(absl::MakeConstSpan(requests_).subspan(first.request, end - i),
                           [this](const std::vector<char>& bytes) { return KeepOnDevice(bytes); });
    if (!joint.ok()) return executor_.Annotate(bound, first, joint.status());
    first.kernel = std::move(joint->kernel);
    i += joint->num_nodes;
  }
  return absl::OkStatus();
}

absl::StatusOr<const void*> Executor::Binder::KeepOnDevice(const std::vector<char>& bytes) {
  Device& device = *executor_.options_.device;
  TACC_ASSIGN_OR_RETURN(std::unique_ptr<Arena> memory, device.AllocateDevice(static_cast<int64_t>(bytes.size())));
  device.Upload(bytes.data(), Flat(memory->data(), static_cast<int64_t>(bytes.size())));
  TACC_RETURN_IF_ERROR(device.Synchronize());
  executor_.kept_.push_back(std::move(memory));
  return executor_.kept_.back()->data();
}

void Executor::Binder::CutIntoParts(BoundGraph& bound) const {
  const std::vector<Instruction>& instructions = bound.instructions;
  std::vector<Part>& parts = bound.parts;
  if (!executor_.options_.device->is_asynchronous()) {
    parts.push_back({.begin = 0, .end = instructions.size()});
    return;
  }
  const graph::TalkPlace place = executor_.talk_place();
  size_t i = 0;
  for (const graph::GraphPart& part : graph::CutForCapture(*bound.graph, program_.mesh, place)) {
    const bool is_recorded = part.not_captured.empty();
    for (const size_t begin = i; i < instructions.size() && instructions[i].node < part.end; ++i) {
      const bool waits = !is_recorded && instructions[i].waits(place);
      if (i == begin || waits != parts.back().waits) parts.push_back({i, i, is_recorded, waits, nullptr});
      parts.back().end = i + 1;
    }
  }
}

}  // namespace tacc::worker
