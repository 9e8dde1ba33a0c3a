#include "worker/rank/executor.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "machine/clock.h"
#include "worker/rank/bound_graph.h"

namespace tacc::worker {
namespace {

double ReadScalar(const kernels::TensorView& view) {
  return view.dtype == kernels::DType::kF64 ? *view.as<double>() : static_cast<double>(*view.as<float>());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const ExecutorOptions& options) {
  if (options.rank < 0 || options.rank >= options.program->mesh.num_ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is not in the program's mesh ", options.program->mesh.ToString()));
  }
  std::unique_ptr<Executor> executor(new Executor(options));
  TACC_RETURN_IF_ERROR(Binder(*executor).Bind());
  return executor;
}

Executor::Executor(const ExecutorOptions& options) : options_(options) {}

Executor::~Executor() = default;

absl::Status Executor::Annotate(const BoundGraph& graph, const Instruction& instruction,
                                const absl::Status& status) const {
  const graph::Node& node = graph.graph->nodes[instruction.node];
  return absl::Status(status.code(),
                      absl::StrCat("graph ", graph.graph->name, ", node ", instruction.node, " (", node.op,
                                   node.module.empty() ? "" : " @", node.module, "): ", status.message()));
}

absl::Status Executor::RunCollective(const Instruction& instruction, uint32_t call_index) {
  if (options_.status != nullptr) {
    options_.status->SetNode(call_index, static_cast<uint32_t>(instruction.node), Activity::kInCollective);
  }
  if (options_.failpoints != nullptr) TACC_RETURN_IF_ERROR(options_.failpoints->Hit("in_collective"));
  switch (instruction.kind) {
    case Instruction::Kind::kCollective:
      return options_.collectives->Run(*instruction.call);
    case Instruction::Kind::kStart:
      *instruction.ticket = options_.collectives->Start(instruction.call.get());
      return absl::OkStatus();
    case Instruction::Kind::kWait:
      return options_.collectives->Wait(*instruction.ticket);
    case Instruction::Kind::kPost:
      instruction.message->ticket = options_.collectives->Start(&instruction.message->call);
      return absl::OkStatus();
    case Instruction::Kind::kFinish:
      return options_.collectives->Finish(instruction.message->call, instruction.message->ticket);
    default:
      return absl::InternalError("not a collective");
  }
}

absl::Status Executor::RunGraph(const BoundGraph& graph, uint32_t call_index, const std::vector<const void*>& inputs) {
  for (const Instruction& instruction : graph.instructions) {
    if (options_.status != nullptr) {
      options_.status->SetNode(call_index, static_cast<uint32_t>(instruction.node), Activity::kInNode);
    }
    const double begin = is_profiling_ ? SteadySeconds() : 0;
    switch (instruction.kind) {
      case Instruction::Kind::kKernel:
        // The one border where what LibTorch throws becomes a status.
        try {
          instruction.kernel();
        } catch (const std::exception& error) {
          return Annotate(graph, instruction, absl::InternalError(error.what()));
        }
        break;
      case Instruction::Kind::kInput:
        std::memcpy(instruction.view.data, inputs[instruction.input], instruction.view.bytes());
        break;
      case Instruction::Kind::kOutput:
        *instruction.output = ReadScalar(instruction.view);
        break;
      default:
        if (absl::Status status = RunCollective(instruction, call_index); !status.ok())
          return Annotate(graph, instruction, status);
    }
    if (is_profiling_) {
      instruction.seconds += SteadySeconds() - begin;
      ++instruction.count;
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::RunStep(const std::vector<std::vector<const void*>>& inputs) {
  uint32_t index = 0;
  for (const BoundCall& call : step_) TACC_RETURN_IF_ERROR(RunGraph(*call.graph, index++, inputs.at(call.micro_batch)));
  if (options_.status != nullptr) options_.status->SetActivity(Activity::kBetweenSteps);
  return absl::OkStatus();
}

absl::Status Executor::RunEval(const std::vector<const void*>& inputs) {
  uint32_t index = static_cast<uint32_t>(step_.size());
  for (const BoundCall& call : eval_) TACC_RETURN_IF_ERROR(RunGraph(*call.graph, index++, inputs));
  if (options_.status != nullptr) options_.status->SetActivity(Activity::kBetweenSteps);
  return absl::OkStatus();
}

absl::StatusOr<double> Executor::Output(const std::string& name) const {
  const auto it = outputs_.find(name);
  if (it == outputs_.end()) return absl::NotFoundError(absl::StrCat("the program has no output \"", name, "\""));
  return it->second;
}

void Executor::StartProfile() {
  is_profiling_ = true;
  for (const auto& [name, graph] : graphs_) {
    for (const Instruction& instruction : graph->instructions) instruction.seconds = instruction.count = 0;
  }
}

std::vector<ProfileEntry> Executor::Profile() const {
  std::map<std::pair<std::string, std::string>, ProfileEntry> entries;
  for (const auto& [name, graph] : graphs_) {
    for (const Instruction& instruction : graph->instructions) {
      const graph::Node& node = graph->graph->nodes[instruction.node];
      ProfileEntry& entry = entries[{node.op, node.module}];
      entry.op = node.op;
      entry.module = node.module;
      entry.count += instruction.count;
      entry.seconds += instruction.seconds;
    }
  }
  std::vector<ProfileEntry> sorted;
  for (auto& [key, entry] : entries) sorted.push_back(std::move(entry));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const ProfileEntry& a, const ProfileEntry& b) { return a.seconds > b.seconds; });
  return sorted;
}

}  // namespace tacc::worker
