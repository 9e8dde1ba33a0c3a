#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "graph/ir/capture.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/program/bound_graph.h"

namespace tacc::worker {
namespace {

using kernels::TensorView;

Region Whole(const TensorView& view) { return Flat(view.data, view.bytes()); }

}  // namespace

Kernel Executor::Binder::CopyKernel(const Region& from, const Region& to) const {
  return [device = executor_.options_.device, from, to] { device->Copy(from, to); };
}

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

absl::Status Executor::Binder::Bind() {
  TACC_RETURN_IF_ERROR(BindStates());
  TACC_RETURN_IF_ERROR(BindCalls());
  for (const auto& [key, message] : messages_) {
    if (!message->is_bound)
      return absl::InvalidArgumentError(
          absl::StrCat("channel ", key.first, " has a finish, but neither send nor recv of copy ", key.second));
  }
  return absl::OkStatus();
}

absl::Status Executor::Binder::BindCalls() {
  for (auto [calls, bound] :
       {std::pair{&program_.step, &executor_.step_}, std::pair{&program_.eval, &executor_.eval_}}) {
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
      bound->push_back({of_call, call.micro_batch});
    }
  }
  // A graph that is never called must fit as well.
  for (const graph::Graph& graph : program_.graphs) TACC_RETURN_IF_ERROR(BindGraph(graph, 0).status());
  return absl::OkStatus();
}

absl::Status Executor::Binder::BindStates() {
  for (const graph::State& state : program_.states) {
    states_[state.name] = &state;
    if (state.slots < 1) return absl::InvalidArgumentError(absl::StrCat("state ", state.name, ": slots=", state.slots));
    if (state.slots > 1 && state.offset >= 0) stashes_[state.offset] = &state;
    for (micro_batch_ = 0; micro_batch_ < state.slots; ++micro_batch_) {
      absl::StatusOr<char*> data = Memory(state.offset, state.type.bytes());
      if (!data.ok())
        return absl::Status(data.status().code(), absl::StrCat("state ", state.name, ": ", data.status().message()));
      TACC_ASSIGN_OR_RETURN(const TensorView view, ViewOf(state.type, *data));
      executor_.states_[state.name].push_back(view);
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
  std::unique_ptr<BoundGraph>& place = executor_.graphs_[{graph.name, slots}];
  if (place != nullptr) return place.get();
  place = std::make_unique<BoundGraph>();
  BoundGraph& bound = *place;
  bound.graph = &graph;
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

absl::Status Executor::Binder::BindMessage(const graph::Node& node, Instruction& instruction) {
  const auto state = states_.find(node.symbol);
  if (state == states_.end())
    return absl::InvalidArgumentError(absl::StrCat("no state is named \"", node.symbol, "\""));
  if (executor_.options_.collectives == nullptr)
    return absl::InvalidArgumentError("a message in a program that runs without other ranks");
  const int64_t slot = SlotOf(*state->second);
  std::shared_ptr<UnderWay>& message = messages_[{graph::GetAttr<int64_t>(node.attrs, "channel"), slot}];
  if (message == nullptr) message = std::make_shared<UnderWay>();
  instruction.message = message;
  instruction.kind = node.op == graph::Op::kFinish ? Instruction::Kind::kFinish : Instruction::Kind::kPost;
  if (node.op == graph::Op::kFinish) return absl::OkStatus();
  TACC_ASSIGN_OR_RETURN(message->call, worker::BindMessage(node, program_.mesh, executor_.options_.rank,
                                                           executor_.states_.at(node.symbol)[slot]));
  message->call.node = static_cast<uint32_t>(instruction.node);
  message->is_bound = true;
  return executor_.options_.collectives->Prepare(&message->call);
}

absl::Status Executor::Binder::PlaceResults(const graph::Graph& graph, const graph::Node& node) {
  const std::vector<int> aliases =
      executor_.options_.aliases ? executor_.options_.aliases(graph, node) : std::vector<int>();
  for (size_t r = 0; r < node.results.size(); ++r) {
    const graph::Value& value = graph.values[node.results[r]];
    const bool aliases_whole = executor_.options_.arena == nullptr && r < aliases.size() && aliases[r] >= 0 &&
                               graph.type(node.operands[aliases[r]]).bytes() == value.type.bytes();
    char* data = nullptr;
    if (aliases_whole) {
      data = views_[node.operands[aliases[r]]].as<char>();
    } else {
      TACC_ASSIGN_OR_RETURN(data, Memory(value.offset, value.type.bytes()));
    }
    TACC_ASSIGN_OR_RETURN(views_[node.results[r]], ViewOf(value.type, data));
  }
  return absl::OkStatus();
}

absl::Status Executor::Binder::BindInput(const graph::Graph& graph, const graph::Node& node, BoundGraph& bound,
                                         Instruction& instruction) {
  const graph::Value& value = graph.values[node.results[0]];
  const int64_t zigzag = graph::GetAttr<int64_t>(node.attrs, "zigzag");
  std::vector<Input>& inputs = executor_.inputs_;
  const auto it =
      std::find_if(inputs.begin(), inputs.end(), [&](const Input& input) { return input.name == node.symbol; });
  instruction.kind = Instruction::Kind::kInput;
  instruction.input = static_cast<int>(it - inputs.begin());
  if (std::find(bound.inputs.begin(), bound.inputs.end(), instruction.input) == bound.inputs.end())
    bound.inputs.push_back(instruction.input);
  instruction.view = views_[node.results[0]];
  if (it == inputs.end()) {
    inputs.push_back({node.symbol, value, zigzag});
  } else if (it->value.type != value.type || it->value.placement != value.placement || it->zigzag != zigzag) {
    return absl::InvalidArgumentError(absl::StrCat("input \"", node.symbol, "\" is ", value.type.ToString(),
                                                   " here but ", it->value.type.ToString(), " in another graph"));
  }
  return absl::OkStatus();
}

absl::Status Executor::Binder::BindNode(const graph::Graph& graph, int index, BoundGraph& bound) {
  const graph::Node& node = graph.nodes[index];
  TACC_RETURN_IF_ERROR(PlaceResults(graph, node));
  Instruction instruction;
  instruction.node = index;
  const auto in = [&](int i) -> const TensorView& { return views_[node.operands[i]]; };
  const auto out = [&](int i) -> const TensorView& { return views_[node.results[i]]; };

  if (node.op == graph::Op::kInput) {
    TACC_RETURN_IF_ERROR(BindInput(graph, node, bound, instruction));
  } else if (node.op == graph::Op::kOutput) {
    const graph::Value& value = graph.values[node.operands[0]];
    if (in(0).size() != 1 || !kernels::IsFloat(in(0).dtype) || kernels::SizeOf(in(0).dtype) < 4) {
      return absl::InvalidArgumentError(
          absl::StrCat("output \"", node.symbol, "\" is ", value.type.ToString(), "; wanted f32[] or f64[]"));
    }
    if (value.placement.has_value() && !value.placement->sharding.pending.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("output \"", node.symbol, "\" is a pending sum; it must be reduced first"));
    }
    instruction.kind = Instruction::Kind::kOutput;
    instruction.view = in(0);
    OutputPlace& place = executor_.outputs_[node.symbol];
    if (!place.is_bound) place = {static_cast<int64_t>(executor_.outputs_.size()) - 1, in(0).dtype, true, false, 0};
    if (place.dtype != in(0).dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat("output \"", node.symbol, "\" is ", value.type.ToString(), ", of another type elsewhere"));
    }
    instruction.output = &place;
  } else if (node.op == graph::Op::kRead || node.op == graph::Op::kStore) {
    const auto state = states_.find(node.symbol);
    if (state == states_.end())
      return absl::InvalidArgumentError(absl::StrCat("no state is named \"", node.symbol, "\""));
    const TensorView& place = executor_.states_.at(node.symbol)[SlotOf(*state->second)];
    const TensorView& value = node.op == graph::Op::kRead ? out(0) : in(0);
    if (value.dtype != place.dtype || !(value.dims == place.dims)) {
      return absl::InvalidArgumentError(absl::StrCat("\"", node.symbol, "\" has another type than the state"));
    }
    if (value.data == place.data) return absl::OkStatus();
    instruction.kernel =
        node.op == graph::Op::kRead ? CopyKernel(Whole(place), Whole(value)) : CopyKernel(Whole(value), Whole(place));
  } else if (graph::IsMessage(node.op)) {
    TACC_RETURN_IF_ERROR(BindMessage(node, instruction));
  } else if (IsCollective(node.op)) {
    TACC_ASSIGN_OR_RETURN(CollectiveCall call,
                          BindCollective(graph, node, program_.mesh, executor_.options_.rank, in(0), out(0)));
    if (call.members.size() > 1 && executor_.options_.collectives == nullptr) {
      return absl::InvalidArgumentError("a collective in a program that runs without other ranks");
    }
    if (call.members.size() == 1) {
      if (in(0).dtype != out(0).dtype || in(0).bytes() != out(0).bytes()) {
        return absl::InternalError("a collective over one rank that changes the type");
      }
      if (in(0).data == out(0).data) return absl::OkStatus();
      instruction.kernel = CopyKernel(Whole(in(0)), Whole(out(0)));
    } else {
      call.node = static_cast<uint32_t>(index);
      instruction.call = std::make_unique<CollectiveCall>(std::move(call));
      TACC_RETURN_IF_ERROR(executor_.options_.collectives->Prepare(instruction.call.get()));
      instruction.kind = Instruction::Kind::kCollective;
      if (graph::GetAttr<bool>(node.attrs, "async")) {
        instruction.kind = Instruction::Kind::kStart;
        instruction.ticket = std::make_shared<CollectiveQueue::Ticket>(0);
        tickets_[node.results[0]] = instruction.ticket;
      }
    }
  } else if (node.op == graph::Op::kWait) {
    if (in(0).data != out(0).data) return absl::InvalidArgumentError("wait must alias its operand");
    instruction.ticket = tickets_[node.operands[0]];
    if (instruction.ticket == nullptr) return absl::OkStatus();
    instruction.kind = Instruction::Kind::kWait;
  } else if (node.op == graph::Op::kShardSlice) {
    TACC_ASSIGN_OR_RETURN(const LocalCopy copy,
                          BindShardSlice(graph, node, program_.mesh, executor_.options_.rank, in(0), out(0)));
    instruction.kernel = CopyKernel(copy.from, copy.to);
  } else if (node.op == graph::Op::kMaskPadding) {
    instruction.kernel =
        [device = executor_.options_.device, from = Whole(in(0)), to = Whole(out(0)),
         padding = PaddingOf(graph.values[node.results[0]], program_.mesh, executor_.options_.rank, out(0))] {
          device->Copy(from, to);
          for (const Region& region : padding) device->Clear(region);
        };
  } else {
    const std::vector<int> aliases =
        executor_.options_.aliases ? executor_.options_.aliases(graph, node) : std::vector<int>();
    if (!aliases.empty() && aliases[0] >= 0 && node.results.size() == 1) {
      // The planner gives an alias its operand's bytes.
      const TensorView& operand = in(aliases[0]);
      const char* data = out(0).as<char>();
      if (data >= operand.as<char>() && data + out(0).bytes() <= operand.as<char>() + operand.bytes())
        return absl::OkStatus();
    }
    KernelRequest request;
    request.node = &node;
    for (graph::ValueId v : node.operands) {
      request.in.push_back(views_[v]);
      request.in_ranges.push_back(RangesOf(graph.values[v], program_.mesh, executor_.options_.rank));
      const graph::Dims& logical =
          graph.values[v].placement ? graph.values[v].placement->global.dims : graph.values[v].type.dims;
      request.in_logical.push_back(kernels::Dims(logical.begin(), logical.end()));
    }
    for (graph::ValueId v : node.results) {
      request.out.push_back(views_[v]);
      request.out_ranges.push_back(RangesOf(graph.values[v], program_.mesh, executor_.options_.rank));
    }
    instruction.request = static_cast<int>(requests_.size());
    requests_.push_back(std::move(request));
  }
  bound.instructions.push_back(std::move(instruction));
  return absl::OkStatus();
}

}  // namespace tacc::worker
