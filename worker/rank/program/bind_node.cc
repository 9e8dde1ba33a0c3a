#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/program/bound_graph.h"

namespace tacc::worker {
namespace {

using graph::Op;
using kernels::TensorView;

Region Whole(const TensorView& view) { return Flat(view.data, view.bytes()); }

}  // namespace

// A node that is being bound.
struct Executor::Binder::Binding {
  const graph::Graph& graph;
  const graph::Node& node;
  BoundGraph& bound;
  const Binder& binder;
  Instruction instruction;
  bool runs_nothing = false;  // its result is there already

  const TensorView& in(int i) const { return binder.views_[node.operands[i]]; }
  const TensorView& out(int i) const { return binder.views_[node.results[i]]; }
  void Copy(const Region& from, const Region& to) {
    instruction.kernel = [device = binder.executor_.options_.device, from, to] { device->Copy(from, to); };
  }
  // Unless both lie at one place.
  void Copy(const TensorView& from, const TensorView& to) {
    runs_nothing = from.data == to.data;
    if (!runs_nothing) Copy(Whole(from), Whole(to));
  }
};

absl::Status Executor::Binder::BindNode(const graph::Graph& graph, int index, BoundGraph& bound) {
  using Bind = absl::Status (Binder::*)(Binding&);
  static const std::map<Op::Kind, Bind> kBind = {
      {Op::kInput, &Binder::BindInput},
      {Op::kOutput, &Binder::BindOutput},
      {Op::kRead, &Binder::BindRead},
      {Op::kStore, &Binder::BindStore},
      {Op::kAllGather, &Binder::BindCollectiveNode},
      {Op::kReduceScatter, &Binder::BindCollectiveNode},
      {Op::kAllReduce, &Binder::BindCollectiveNode},
      {Op::kAllToAll, &Binder::BindCollectiveNode},
      {Op::kRotateBlocks, &Binder::BindCollectiveNode},
      {Op::kStageSum, &Binder::BindCollectiveNode},
      {Op::kSend, &Binder::BindMessage},
      {Op::kRecv, &Binder::BindMessage},
      {Op::kFinish, &Binder::BindFinish},
      {Op::kWait, &Binder::BindWait},
      {Op::kShardSlice, &Binder::BindSlice},
      {Op::kMaskPadding, &Binder::BindMask},
  };
  const graph::Node& node = graph.nodes[index];
  TACC_RETURN_IF_ERROR(PlaceResults(graph, node));
  Binding binding{graph, node, bound, *this, {}};
  binding.instruction.node = index;
  const auto found = kBind.find(node.op.kind());
  TACC_RETURN_IF_ERROR((this->*(found == kBind.end() ? &Binder::BindKernel : found->second))(binding));
  if (!binding.runs_nothing) bound.instructions.push_back(std::move(binding.instruction));
  return absl::OkStatus();
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

absl::Status Executor::Binder::BindInput(Binding& binding) {
  const graph::Node& node = binding.node;
  const graph::Value& value = binding.graph.values[node.results[0]];
  const int64_t zigzag = graph::GetAttr<int64_t>(node.attrs, "zigzag");
  const std::vector<Input>& known = executor_.inputs();
  const auto index =
      std::find_if(known.begin(), known.end(), [&](const Input& i) { return i.name == node.symbol; }) - known.begin();
  if (index == static_cast<int64_t>(known.size())) {
    if (!is_first())
      return absl::InvalidArgumentError(
          absl::StrCat("a program for other batches has an input \"", node.symbol, "\" that the first one has not"));
    bound_.inputs.emplace_back();
  }
  Input& input = bound_.inputs[index];
  std::vector<int>& of_graph = binding.bound.inputs;
  if (std::find(of_graph.begin(), of_graph.end(), index) == of_graph.end()) of_graph.push_back(static_cast<int>(index));
  binding.instruction.kind = Instruction::Kind::kInput;
  binding.instruction.input = static_cast<int>(index);
  binding.instruction.view = binding.out(0);
  if (input.name.empty()) {
    input = {.name = node.symbol, .value = value, .zigzag = zigzag, .axes = graph::InputAxes(binding.graph, node)};
    for (const auto& [attr, field] :
         {std::pair("limit", &Executor::Input::limit), std::pair("ignored", &Executor::Input::ignored)}) {
      if (node.attrs.count(attr) > 0) input.*field = graph::GetAttr<int64_t>(node.attrs, attr);
    }
    if (node.attrs.count("default") > 0) input.absent = graph::GetAttr<double>(node.attrs, "default");
  } else if (input.value.type != value.type || input.value.placement != value.placement || input.zigzag != zigzag) {
    return absl::InvalidArgumentError(absl::StrCat("input \"", node.symbol, "\" is ", value.type.ToString(),
                                                   " here but ", input.value.type.ToString(), " in another graph"));
  }
  return absl::OkStatus();
}

absl::Status Executor::Binder::BindReturned(Binding& binding) {
  const graph::Node& node = binding.node;
  Device& device = *executor_.options_.device;
  const TensorView& view = binding.in(0);
  TACC_ASSIGN_OR_RETURN(auto host, device.AllocateHost(view.bytes()));
  binding.instruction.returned = host->data();
  if (device.is_asynchronous()) {
    TACC_ASSIGN_OR_RETURN(auto on_device, device.AllocateDevice(view.bytes()));
    binding.instruction.returned = on_device->data();
    bound_.returned_on_device.push_back(std::move(on_device));
  }
  bound_.returned.push_back(
      {node.symbol, binding.graph.values[node.operands[0]], std::string_view(host->data(), view.bytes())});
  bound_.returned_on_host.push_back(std::move(host));
  binding.instruction.kind = Instruction::Kind::kOutput;
  binding.instruction.view = view;
  return absl::OkStatus();
}

absl::Status Executor::Binder::BindOutput(Binding& binding) {
  const graph::Node& node = binding.node;
  if (graph::GetAttr<bool>(node.attrs, "returned")) return BindReturned(binding);
  const graph::Value& value = binding.graph.values[node.operands[0]];
  const TensorView& view = binding.in(0);
  if (view.size() != 1 || !kernels::IsFloat(view.dtype) || kernels::SizeOf(view.dtype) < 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("output \"", node.symbol, "\" is ", value.type.ToString(), "; wanted f32[] or f64[]"));
  }
  if (value.placement.has_value() && !value.placement->sharding.pending.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("output \"", node.symbol, "\" is a pending sum; it must be reduced first"));
  }
  OutputPlace& place = executor_.outputs_[node.symbol];
  if (!place.is_bound) place = {static_cast<int64_t>(executor_.outputs_.size()) - 1, view.dtype, true, false, 0};
  if (place.dtype != view.dtype) {
    return absl::InvalidArgumentError(
        absl::StrCat("output \"", node.symbol, "\" is ", value.type.ToString(), ", of another type elsewhere"));
  }
  binding.instruction.kind = Instruction::Kind::kOutput;
  binding.instruction.view = view;
  binding.instruction.output = &place;
  return absl::OkStatus();
}

absl::StatusOr<TensorView> Executor::Binder::PlaceOfState(const graph::Node& node, const TensorView& value) const {
  const auto state = states_.find(node.symbol);
  if (state == states_.end())
    return absl::InvalidArgumentError(absl::StrCat("no state is named \"", node.symbol, "\""));
  const TensorView& place = bound_.states.at(node.symbol)[SlotOf(*state->second)];
  if (value.dtype != place.dtype || !(value.dims == place.dims))
    return absl::InvalidArgumentError(absl::StrCat("\"", node.symbol, "\" has another type than the state"));
  return place;
}

absl::Status Executor::Binder::BindRead(Binding& binding) {
  TACC_ASSIGN_OR_RETURN(const TensorView place, PlaceOfState(binding.node, binding.out(0)));
  binding.Copy(place, binding.out(0));
  return absl::OkStatus();
}

absl::Status Executor::Binder::BindStore(Binding& binding) {
  TACC_ASSIGN_OR_RETURN(const TensorView place, PlaceOfState(binding.node, binding.in(0)));
  binding.Copy(binding.in(0), place);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Executor::UnderWay>> Executor::Binder::MessageOf(const graph::Node& node) {
  const auto state = states_.find(node.symbol);
  if (state == states_.end())
    return absl::InvalidArgumentError(absl::StrCat("no state is named \"", node.symbol, "\""));
  if (executor_.options_.collectives == nullptr)
    return absl::InvalidArgumentError("a message in a program that runs without other ranks");
  std::shared_ptr<UnderWay>& message =
      messages_[{graph::GetAttr<int64_t>(node.attrs, "channel"), SlotOf(*state->second)}];
  if (message == nullptr) message = std::make_shared<UnderWay>();
  return message;
}

absl::Status Executor::Binder::BindMessage(Binding& binding) {
  const graph::Node& node = binding.node;
  TACC_ASSIGN_OR_RETURN(const std::shared_ptr<UnderWay> message, MessageOf(node));
  const TensorView& place = bound_.states.at(node.symbol)[SlotOf(*states_.at(node.symbol))];
  TACC_ASSIGN_OR_RETURN(message->call, worker::BindMessage(node, program_.mesh, executor_.options_.rank, place));
  message->call.node = static_cast<uint32_t>(binding.instruction.node);
  message->is_bound = true;
  binding.instruction.kind = Instruction::Kind::kPost;
  binding.instruction.message = message;
  return executor_.options_.collectives->Prepare(&message->call);
}

absl::Status Executor::Binder::BindFinish(Binding& binding) {
  binding.instruction.kind = Instruction::Kind::kFinish;
  TACC_ASSIGN_OR_RETURN(binding.instruction.message, MessageOf(binding.node));
  return absl::OkStatus();
}

absl::Status Executor::Binder::BindCollectiveNode(Binding& binding) {
  const TensorView &in = binding.in(0), &out = binding.out(0);
  TACC_ASSIGN_OR_RETURN(CollectiveCall call,
                        BindCollective(binding.graph, binding.node, program_.mesh, executor_.options_.rank, in, out));
  if (call.members.size() == 1) {
    if (in.dtype != out.dtype || in.bytes() != out.bytes())
      return absl::InternalError("a collective over one rank that changes the type");
    binding.Copy(in, out);
    return absl::OkStatus();
  }
  if (executor_.options_.collectives == nullptr)
    return absl::InvalidArgumentError("a collective in a program that runs without other ranks");
  Instruction& instruction = binding.instruction;
  call.node = static_cast<uint32_t>(instruction.node);
  instruction.call = std::make_unique<CollectiveCall>(std::move(call));
  TACC_RETURN_IF_ERROR(executor_.options_.collectives->Prepare(instruction.call.get()));
  instruction.kind = Instruction::Kind::kCollective;
  if (graph::GetAttr<bool>(binding.node.attrs, "async")) {
    instruction.kind = Instruction::Kind::kStart;
    instruction.ticket = std::make_shared<CollectiveQueue::Ticket>(0);
    tickets_[binding.node.results[0]] = instruction.ticket;
  }
  return absl::OkStatus();
}

absl::Status Executor::Binder::BindWait(Binding& binding) {
  if (binding.in(0).data != binding.out(0).data) return absl::InvalidArgumentError("wait must alias its operand");
  binding.instruction.kind = Instruction::Kind::kWait;
  binding.instruction.ticket = tickets_[binding.node.operands[0]];
  binding.runs_nothing = binding.instruction.ticket == nullptr;
  return absl::OkStatus();
}

absl::Status Executor::Binder::BindSlice(Binding& binding) {
  TACC_ASSIGN_OR_RETURN(const LocalCopy copy, BindShardSlice(binding.graph, binding.node, program_.mesh,
                                                             executor_.options_.rank, binding.in(0), binding.out(0)));
  binding.Copy(copy.from, copy.to);
  return absl::OkStatus();
}

absl::Status Executor::Binder::BindMask(Binding& binding) {
  const graph::Value& result = binding.graph.values[binding.node.results[0]];
  binding.instruction.kernel = [device = executor_.options_.device, from = Whole(binding.in(0)),
                                to = Whole(binding.out(0)),
                                padding = PaddingOf(result, program_.mesh, executor_.options_.rank, binding.out(0))] {
    device->Copy(from, to);
    for (const Region& region : padding) device->Clear(region);
  };
  return absl::OkStatus();
}

absl::Status Executor::Binder::BindKernel(Binding& binding) {
  const graph::Graph& graph = binding.graph;
  const graph::Node& node = binding.node;
  const std::vector<int> aliases =
      executor_.options_.aliases ? executor_.options_.aliases(graph, node) : std::vector<int>();
  if (!aliases.empty() && aliases[0] >= 0 && node.results.size() == 1) {
    // The planner gives an alias its operand's bytes.
    const TensorView &operand = binding.in(aliases[0]), &result = binding.out(0);
    const char* data = result.as<char>();
    binding.runs_nothing = data >= operand.as<char>() && data + result.bytes() <= operand.as<char>() + operand.bytes();
    if (binding.runs_nothing) return absl::OkStatus();
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
  binding.instruction.request = static_cast<int>(requests_.size());
  requests_.push_back(std::move(request));
  return absl::OkStatus();
}

}  // namespace tacc::worker
