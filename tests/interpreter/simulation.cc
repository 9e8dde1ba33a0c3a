#include "tests/interpreter/simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"

namespace tacc::interpreter {
namespace {

using graph::Placement;
using graph::ValueId;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Placement PlacementOf(const graph::Value& value) {
  if (value.placement.has_value()) return *value.placement;
  return {value.type, graph::Sharding::Replicated(value.type.rank())};
}

bool MovesShards(const graph::Op& op) {
  return op == graph::Op::kAllGather || op == graph::Op::kReduceScatter || op == graph::Op::kAllReduce ||
         op == graph::Op::kAllToAll || op == graph::Op::kShardSlice;
}

// Executes one graph; leaves and ends go through callbacks.
class GraphRun {
 public:
  using ReadLeaf = std::function<absl::StatusOr<Shards>(const graph::Node&, const Placement&)>;
  using WriteEnd = std::function<absl::Status(const graph::Node&, const Shards&, const Placement&)>;

  // send, recv and finish; and a sum over stages.
  using Communicate = std::function<absl::Status(const graph::Node&)>;
  using SumOverStages = std::function<absl::StatusOr<Shards>(const graph::Node&, const Shards&)>;

  GraphRun(const graph::Graph& graph, const graph::Mesh& mesh, const EvaluatorTable& evaluators, ReadLeaf read,
           WriteEnd write, Communicate communicate = nullptr, SumOverStages sum = nullptr)
      : graph_(graph),
        mesh_(mesh),
        evaluators_(evaluators),
        read_(std::move(read)),
        write_(std::move(write)),
        communicate_(std::move(communicate)),
        sum_(std::move(sum)) {
    values_.resize(graph.values.size());
  }

  absl::Status Run() {
    for (const graph::Node& node : graph_.nodes) {
      if (absl::Status status = Visit(node); !status.ok()) {
        return absl::Status(status.code(), absl::StrCat(graph::Print(graph_, node, mesh_), ": ", status.message()));
      }
    }
    return absl::OkStatus();
  }

 private:
  Placement placement(ValueId v) const { return PlacementOf(graph_.values[v]); }

  absl::Status Visit(const graph::Node& node) {
    if (node.op == graph::Op::kInput || node.op == graph::Op::kParam || node.op == graph::Op::kRead) {
      TACC_ASSIGN_OR_RETURN(values_[node.results[0]], read_(node, placement(node.results[0])));
      return absl::OkStatus();
    }
    if (node.op == graph::Op::kOutput || node.op == graph::Op::kStore)
      return write_(node, values_[node.operands[0]], placement(node.operands[0]));
    if (node.op == graph::Op::kSend || node.op == graph::Op::kRecv || node.op == graph::Op::kFinish)
      return communicate_(node);
    if (node.op == graph::Op::kStageSum) {
      TACC_ASSIGN_OR_RETURN(values_[node.results[0]], sum_(node, values_[node.operands[0]]));
    } else if (node.op == graph::Op::kRotateBlocks) {
      TACC_RETURN_IF_ERROR(Rotate(node));
    } else if (MovesShards(node.op)) {
      Exchange(node);
    } else if (node.op == graph::Op::kWait || node.op == graph::Op::kMaskPadding) {
      values_[node.results[0]] = values_[node.operands[0]];
    } else {
      TACC_RETURN_IF_ERROR(Compute(node));
    }
    // Padding has no defined value, except that a mask has just made it zero.
    for (ValueId v : node.results) {
      for (int64_t rank = 0; rank < mesh_.num_ranks(); ++rank) {
        if (node.op == graph::Op::kWait) continue;
        FillPadding(values_[v][rank], Ranges(placement(v), mesh_, rank), node.op == graph::Op::kMaskPadding ? 0 : kNaN);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Compute(const graph::Node& node) {
    for (ValueId v : node.results) values_[v].resize(mesh_.num_ranks());
    for (int64_t rank = 0; rank < mesh_.num_ranks(); ++rank) {
      Request request;
      request.node = &node;
      for (ValueId v : node.operands) {
        request.in.push_back(&values_[v][rank]);
        request.in_ranges.push_back(Ranges(placement(v), mesh_, rank));
        request.in_logical.push_back(placement(v).global.dims);
      }
      for (ValueId v : node.results) {
        request.out_types.push_back(graph_.values[v].type);
        request.out_ranges.push_back(Ranges(placement(v), mesh_, rank));
        request.out_logical.push_back(placement(v).global.dims);
      }
      TACC_ASSIGN_OR_RETURN(Results results, evaluators_.Evaluate(request));
      for (size_t i = 0; i < node.results.size(); ++i) {
        if (results[i].dims != graph_.type(node.results[i]).dims) {
          return absl::InternalError(
              absl::StrCat("result ", i, " has dims ", graph::DimsToString(results[i].dims), " on rank ", rank));
        }
        values_[node.results[i]][rank] = std::move(results[i]);
      }
    }
    return absl::OkStatus();
  }

  // Of a logical array [B,S,...] each block of the sequence at the next one's place, from whoever holds it.
  absl::Status Rotate(const graph::Node& node) {
    const Placement at = placement(node.operands[0]);
    TACC_ASSIGN_OR_RETURN(const Array whole, Assemble(values_[node.operands[0]], at, mesh_));
    const int64_t extent = whole.dims[1], block = graph::GetAttr<int64_t>(node.attrs, "block");
    Array rotated = whole;
    ForEachIndex(whole.dims, [&](const Dims& index) {
      Dims to = index;
      to[1] = (index[1] + block) % extent;
      rotated.at(to) = whole.at(index);
    });
    values_[node.results[0]] = Scatter(rotated, placement(node.results[0]), mesh_, random_);
    return absl::OkStatus();
  }

  // The ranks that differ from `rank` only on the axes named.
  std::vector<int64_t> Group(int64_t rank, const std::vector<std::string>& over) const {
    const std::vector<int64_t> own = mesh_.Coordinates(rank);
    std::vector<int64_t> group;
    for (int64_t other = 0; other < mesh_.num_ranks(); ++other) {
      const std::vector<int64_t> coordinates = mesh_.Coordinates(other);
      bool same = true;
      for (size_t a = 0; a < mesh_.axes.size(); ++a) {
        if (std::find(over.begin(), over.end(), mesh_.axes[a].name) == over.end()) same &= own[a] == coordinates[a];
      }
      if (same) group.push_back(other);
    }
    return group;
  }

  // Every collective is: take each element of the own logical range from the members of the group that hold it, and sum
  // if it is a reduction.
  void Exchange(const graph::Node& node) {
    const bool sums = node.op == graph::Op::kReduceScatter || node.op == graph::Op::kAllReduce;
    const Placement from = placement(node.operands[0]), to = placement(node.results[0]);
    const Shards& source = values_[node.operands[0]];
    Shards result;
    for (int64_t rank = 0; rank < mesh_.num_ranks(); ++rank) {
      const std::vector<graph::Range> own = Ranges(to, mesh_, rank);
      Array local = Array::Filled(graph::LocalDims(to.global.dims, to.sharding, mesh_), kNaN);
      const std::vector<int64_t> group =
          node.op == graph::Op::kShardSlice ? std::vector<int64_t>{rank}
                                            : Group(rank, graph::GetAttr<std::vector<std::string>>(node.attrs, "over"));
      bool first = true;
      for (int64_t member : group) {
        const std::vector<graph::Range> theirs = Ranges(from, mesh_, member);
        Dims begin, end;
        for (size_t d = 0; d < own.size(); ++d) {
          begin.push_back(std::max(own[d].begin, theirs[d].begin));
          end.push_back(std::min(own[d].end, theirs[d].end));
        }
        ForEachIndex(begin, end, [&](const Dims& index) {
          Dims to_index = index, from_index = index;
          for (size_t d = 0; d < own.size(); ++d) {
            to_index[d] -= own[d].begin;
            from_index[d] -= theirs[d].begin;
          }
          const double value = source[member].at(from_index);
          local.at(to_index) = sums && !first ? local.at(to_index) + value : value;
        });
        first = false;
      }
      result.push_back(std::move(local));
    }
    values_[node.results[0]] = std::move(result);
  }

  const graph::Graph& graph_;
  const graph::Mesh& mesh_;
  const EvaluatorTable& evaluators_;
  ReadLeaf read_;
  WriteEnd write_;
  Communicate communicate_;
  SumOverStages sum_;
  std::vector<Shards> values_;
  Random random_{1};
};

// What an input node holds of an array in natural order.
Array InOrder(const graph::Node& node, const Array& array) {
  const int64_t zigzag = graph::GetAttr<int64_t>(node.attrs, "zigzag");
  if (zigzag <= 1) return array;
  const graph::SequenceOrder order{array.dims[1], zigzag};
  Array ordered = array;
  ForEachIndex(array.dims, [&](const Dims& index) {
    Dims from = index;
    from[1] = order.PositionOf(index[1]);
    ordered.at(index) = array.at(from);
  });
  return ordered;
}

absl::StatusOr<const Array*> Find(const Arrays& arrays, const std::string& name, const Dims& dims) {
  auto it = arrays.find(name);
  if (it == arrays.end()) return absl::InvalidArgumentError(absl::StrCat("no value is given for \"", name, "\""));
  if (it->second.dims != dims) {
    return absl::InvalidArgumentError(absl::StrCat("the value given for \"", name, "\" has dims ",
                                                   graph::DimsToString(it->second.dims), "; wanted ",
                                                   graph::DimsToString(dims)));
  }
  return &it->second;
}

}  // namespace

absl::StatusOr<Arrays> RunGraph(const graph::Graph& graph, const graph::Mesh& mesh, const Arrays& leaves) {
  const EvaluatorTable evaluators;
  Random random(1);
  Arrays ends;
  GraphRun run(
      graph, mesh, evaluators,
      [&](const graph::Node& node, const Placement& placement) -> absl::StatusOr<Shards> {
        TACC_ASSIGN_OR_RETURN(const Array* array, Find(leaves, node.symbol, placement.global.dims));
        return Scatter(InOrder(node, *array), placement, mesh, random);
      },
      [&](const graph::Node& node, const Shards& shards, const Placement& placement) -> absl::Status {
        TACC_ASSIGN_OR_RETURN(ends[node.symbol], Assemble(shards, placement, mesh));
        return absl::OkStatus();
      });
  TACC_RETURN_IF_ERROR(run.Run());
  return ends;
}

Simulation::Simulation(const graph::Program& program, StageExchange* exchange)
    : program_(program), mesh_(program.mesh), exchange_(exchange), random_(1) {
  if (const int axis = mesh_.Find(graph::kStageAxis); axis >= 0 && program.num_stages > 1) mesh_.axes[axis].size = 1;
  for (const graph::State& state : program.states) {
    double value = state.init == "ones" ? 1 : 0;
    std::sscanf(state.init.c_str(), "constant(%lf)", &value);
    const Array initial = Array::Filled(state.placement.global.dims, value);
    // Zeros are zero on each rank, also where a sum is pending.
    Placement placement = state.placement;
    placement.sharding.pending.clear();
    for (int64_t slot = 0; slot < state.slots; ++slot)
      states_[KeyOf(state.name, slot)] = Scatter(initial, placement, mesh_, random_);
  }
}

std::string Simulation::KeyOf(const std::string& state, int64_t micro_batch) const {
  return absl::StrCat(state, " ", micro_batch % program_.FindState(state)->slots);
}

absl::Status Simulation::SetState(const std::string& name, const Array& logical) {
  const graph::State* state = program_.FindState(name);
  if (state == nullptr) return absl::InvalidArgumentError(absl::StrCat("no state is named \"", name, "\""));
  if (logical.dims != state->logical_dims()) {
    return absl::InvalidArgumentError(absl::StrCat("state \"", name, "\" is ",
                                                   graph::DimsToString(state->logical_dims()), ", not ",
                                                   graph::DimsToString(logical.dims)));
  }
  const Array placed{state->placement.global.dims, logical.values};
  states_[KeyOf(name, 0)] = Scatter(placed, state->placement, mesh_, random_);
  return absl::OkStatus();
}

absl::StatusOr<Array> Simulation::GetState(const std::string& name) const {
  const graph::State* state = program_.FindState(name);
  if (state == nullptr) return absl::InvalidArgumentError(absl::StrCat("no state is named \"", name, "\""));
  auto array = Assemble(states_.at(KeyOf(name, 0)), state->placement, mesh_);
  if (!array.ok())
    return absl::Status(array.status().code(), absl::StrCat("state \"", name, "\": ", array.status().message()));
  array->dims = state->logical_dims();
  return array;
}

absl::Status Simulation::Run(const std::vector<graph::Call>& calls, const std::function<Arrays(int64_t)>& inputs) {
  std::map<int64_t, std::string> receiving;  // channel -> stash, of messages under way to this stage
  for (const graph::Call& call : calls) {
    const graph::Graph* graph = program_.FindGraph(call.graph);
    if (graph == nullptr) return absl::InvalidArgumentError(absl::StrCat("no graph is named ", call.graph));
    const Arrays given = inputs(call.micro_batch);
    GraphRun run(
        *graph, mesh_, evaluators_,
        [&](const graph::Node& node, const Placement& placement) -> absl::StatusOr<Shards> {
          if (node.op == graph::Op::kRead) return states_.at(KeyOf(node.symbol, call.micro_batch));
          TACC_ASSIGN_OR_RETURN(const Array* array, Find(given, node.symbol, placement.global.dims));
          return Scatter(InOrder(node, *array), placement, mesh_, random_);
        },
        [&](const graph::Node& node, const Shards& shards, const Placement& placement) -> absl::Status {
          if (node.op == graph::Op::kStore) {
            states_[KeyOf(node.symbol, call.micro_batch)] = shards;
            return absl::OkStatus();
          }
          TACC_ASSIGN_OR_RETURN(outputs_[node.symbol], Assemble(shards, placement, mesh_));
          return absl::OkStatus();
        },
        [&](const graph::Node& node) -> absl::Status {
          Shards& copy = states_.at(KeyOf(node.symbol, call.micro_batch));
          const int64_t channel = graph::GetAttr<int64_t>(node.attrs, "channel");
          if (node.op == graph::Op::kSend) {
            exchange_->Send(channel, call.micro_batch, copy);
          } else if (node.op == graph::Op::kRecv) {
            // What lies there until the message has come must not be read.
            for (Array& array : copy) std::fill(array.values.begin(), array.values.end(), kNaN);
            receiving[channel] = node.symbol;
          } else if (receiving.count(channel) > 0) {
            TACC_ASSIGN_OR_RETURN(copy, exchange_->Receive(channel, call.micro_batch));
          }
          return absl::OkStatus();
        },
        [&](const graph::Node& node, const Shards& shards) -> absl::StatusOr<Shards> {
          return exchange_->Sum(program_.stage, graph::GetAttr<std::vector<int64_t>>(node.attrs, "stages"), shards);
        });
    if (absl::Status status = run.Run(); !status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("stage ", program_.stage, ", graph ", call.graph, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

PipelineSimulation::PipelineSimulation(const std::vector<graph::Program>& stages)
    : exchange_(std::make_unique<StageExchange>()) {
  for (const graph::Program& program : stages)
    simulations_.push_back(std::make_unique<Simulation>(program, exchange_.get()));
}

absl::Status PipelineSimulation::SetState(const std::string& name, const Array& logical) {
  bool found = false;
  for (const auto& simulation : simulations_) {
    if (simulation->program().FindState(name) == nullptr) continue;
    found = true;
    TACC_RETURN_IF_ERROR(simulation->SetState(name, logical));
  }
  return found ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat("no stage has a state \"", name, "\""));
}

absl::StatusOr<Array> PipelineSimulation::GetState(const std::string& name) const {
  std::optional<Array> state;
  for (const auto& simulation : simulations_) {
    if (simulation->program().FindState(name) == nullptr) continue;
    TACC_ASSIGN_OR_RETURN(Array array, simulation->GetState(name));
    if (!state.has_value()) state = array;
    for (size_t i = 0; i < array.values.size(); ++i) {
      if (std::abs(array.values[i] - state->values[i]) > 1e-9 * std::max(1.0, std::abs(array.values[i])))
        return absl::InternalError(absl::StrCat("state \"", name, "\" differs between stages"));
    }
  }
  if (!state.has_value()) return absl::InvalidArgumentError(absl::StrCat("no stage has a state \"", name, "\""));
  return *state;
}

absl::Status PipelineSimulation::Run(std::vector<graph::Call> graph::Program::*calls, const Inputs& inputs) {
  std::vector<absl::Status> statuses(simulations_.size());
  exchange_->Start(static_cast<int>(simulations_.size()));
  std::vector<std::thread> threads;
  for (size_t stage = 0; stage < simulations_.size(); ++stage) {
    threads.emplace_back([&, stage] {
      statuses[stage] = simulations_[stage]->Run(simulations_[stage]->program().*calls, inputs);
      exchange_->Leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Not the stages that waited for the one that failed.
  for (const absl::Status& status : statuses) {
    if (!status.ok() && !absl::IsFailedPrecondition(status)) return status;
  }
  for (const absl::Status& status : statuses) TACC_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

}  // namespace tacc::interpreter
