#include "worker/rank/program/executor.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/program/bound_graph.h"

namespace tacc::worker {
namespace {

constexpr int64_t kIoAlignment = 64;
constexpr int64_t kOutputBytes = 8;

int64_t RoundUp(int64_t bytes) { return (bytes + kIoAlignment - 1) / kIoAlignment * kIoAlignment; }

double ReadScalar(const void* data, kernels::DType dtype) {
  return dtype == kernels::DType::kF64 ? *static_cast<const double*>(data)
                                       : static_cast<double>(*static_cast<const float*>(data));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> Executor::Create(const ExecutorOptions& options) {
  if (options.rank < 0 || options.rank >= options.program->mesh.num_ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is not in the program's mesh ", options.program->mesh.ToString()));
  }
  std::unique_ptr<Executor> executor(new Executor(options));
  executor->programs_.resize(1 + options.others.size());
  for (size_t i = 0; i < executor->programs_.size(); ++i) {
    executor->programs_[i].program = i == 0 ? options.program : options.others[i - 1];
    TACC_RETURN_IF_ERROR(Binder(*executor, i).Bind());
  }
  executor->input_places_.resize(executor->inputs().size());
  if (options.device->is_asynchronous()) TACC_RETURN_IF_ERROR(executor->CreateLanes());
  return executor;
}

Executor::Executor(const ExecutorOptions& options) : options_(options) {}

// What is queued still uses the executor's memory. An error has been reported, or nobody asks.
Executor::~Executor() { (void)options_.device->Synchronize(); }

absl::Status Executor::CreateLanes() {
  for (size_t i = 0; i < inputs().size(); ++i) {
    input_offsets_.push_back(batch_bytes_);
    int64_t bytes = 0;
    for (const BoundProgram& program : programs_) bytes = std::max(bytes, program.inputs[i].value.type.bytes());
    batch_bytes_ += RoundUp(bytes);
  }
  const int64_t lane_bytes = std::max<int64_t>(num_micro_batches_, 1) * batch_bytes_;
  const int64_t output_bytes = RoundUp(kOutputBytes * static_cast<int64_t>(outputs_.size()));
  TACC_ASSIGN_OR_RETURN(device_io_,
                        options_.device->AllocateDevice(kMaxInFlight * lane_bytes + batch_bytes_ + output_bytes));
  char* place = device_io_->data() + kMaxInFlight * lane_bytes;
  for (size_t i = 0; i < inputs().size(); ++i) input_places_[i] = place + input_offsets_[i];
  device_outputs_ = place + batch_bytes_;
  for (int i = 0; i < kMaxInFlight; ++i) {
    Lane& lane = lanes_.emplace_back(options_.device);
    TACC_ASSIGN_OR_RETURN(lane.host, options_.device->AllocateHost(lane_bytes + output_bytes));
    lane.device_inputs = device_io_->data() + i * lane_bytes;
    lane.host_outputs = lane.host->data() + lane_bytes;
    TACC_ASSIGN_OR_RETURN(lane.done, options_.device->CreateMark());
  }
  return absl::OkStatus();
}

absl::Status Executor::Annotate(const BoundGraph& graph, const Instruction& instruction,
                                const absl::Status& status) const {
  const graph::Node& node = graph.graph->nodes[instruction.node];
  return absl::Status(status.code(),
                      absl::StrCat("graph ", graph.graph->name, ", node ", instruction.node, " (", node.op.name(),
                                   node.module.empty() ? "" : " @", node.module, "): ", status.message()));
}

void Executor::ShowPlace(uint32_t call_index, const Instruction& instruction, Activity activity) const {
  if (options_.status == nullptr || (options_.collectives != nullptr && options_.collectives->is_on_device())) return;
  options_.status->SetNode(call_index, static_cast<uint32_t>(instruction.node), activity);
}

absl::Status Executor::RunCollective(const Instruction& instruction, uint32_t call_index) {
  ShowPlace(call_index, instruction, Activity::kInCollective);
  if (options_.failpoints != nullptr) TACC_RETURN_IF_ERROR(options_.failpoints->Hit("in_collective"));
  switch (instruction.kind) {
    case Instruction::Kind::kCollective:
      return options_.collectives->Run(*instruction.call);
    case Instruction::Kind::kStart: {
      TACC_ASSIGN_OR_RETURN(*instruction.ticket, options_.collectives->Start(instruction.call.get()));
      return absl::OkStatus();
    }
    case Instruction::Kind::kWait:
      return options_.collectives->Wait(*instruction.ticket);
    case Instruction::Kind::kPost: {
      TACC_ASSIGN_OR_RETURN(instruction.message->ticket, options_.collectives->Start(&instruction.message->call));
      return absl::OkStatus();
    }
    case Instruction::Kind::kFinish:
      return options_.collectives->Finish(instruction.message->call, instruction.message->ticket);
    default:
      return absl::InternalError("not a collective");
  }
}

absl::Status Executor::RunInstruction(const BoundGraph& graph, const Instruction& instruction, uint32_t call_index) {
  ShowPlace(call_index, instruction, Activity::kInNode);
  StepTimer* const timer = graph.is_timed ? timer_ : nullptr;
  if (timer != nullptr)
    TACC_RETURN_IF_ERROR(timer->Begin(static_cast<int>(call_index), instruction.node, instruction.role()));
  switch (instruction.kind) {
    case Instruction::Kind::kKernel:
      // The one border where what LibTorch throws becomes a status.
      try {
        instruction.kernel();
      } catch (const std::exception& error) {
        return Annotate(graph, instruction, options_.device->StatusOf(error));
      }
      break;
    case Instruction::Kind::kInput: {
      // Read by the device, not written.
      char* from = static_cast<char*>(const_cast<void*>(input_places_[instruction.input]));
      options_.device->Copy(Flat(from, instruction.view.bytes()),
                            Flat(instruction.view.data, instruction.view.bytes()));
      break;
    }
    case Instruction::Kind::kOutput:
      if (instruction.returned != nullptr) {
        const int64_t bytes = instruction.view.bytes();
        options_.device->Copy(Flat(instruction.view.data, bytes), Flat(instruction.returned, bytes));
        break;
      }
      instruction.output->has_run = true;
      if (options_.device->is_asynchronous()) {
        options_.device->Copy(
            Flat(instruction.view.data, instruction.view.bytes()),
            Flat(device_outputs_ + kOutputBytes * instruction.output->index, instruction.view.bytes()));
      } else {
        instruction.output->value = ReadScalar(instruction.view.data, instruction.view.dtype);
      }
      break;
    default:
      if (absl::Status status = RunCollective(instruction, call_index); !status.ok())
        return Annotate(graph, instruction, status);
  }
  return timer == nullptr ? absl::OkStatus() : timer->End();
}

absl::Status Executor::RunInstructions(const BoundGraph& graph, size_t begin, size_t end, uint32_t call_index) {
  for (size_t i = begin; i < end; ++i) {
    TACC_RETURN_IF_ERROR(RunInstruction(graph, graph.instructions[i], call_index));
    ShowQueued(graph, i, i + 1, call_index);
  }
  return absl::OkStatus();
}

void Executor::ShowQueued(const BoundGraph& graph, size_t begin, size_t end, uint32_t call_index) const {
  if (options_.watch == nullptr) return;
  const Instruction &first = graph.instructions[begin], &last = graph.instructions[end - 1];
  options_.watch->Queued({call_index, graph.graph, first.node, last.node, first.waits(talk_place())});
}

absl::Status Executor::RunPart(BoundGraph& graph, Part& part, uint32_t call_index, Lane* lane) {
  // The first run warms up what libraries make at first use; a timer needs each node by itself.
  if (!part.is_recorded || !graph.has_run || timer_ != nullptr)
    return RunInstructions(graph, part.begin, part.end, call_index);
  const Instruction& first = graph.instructions[part.begin];
  if (part.recording == nullptr) {
    absl::StatusOr<std::unique_ptr<Device::Recording>> recording = options_.device->Record([&] {
      absl::Status status;
      for (size_t i = part.begin; i < part.end && status.ok(); ++i)
        status = RunInstruction(graph, graph.instructions[i], call_index);
      return status;
    });
    if (!recording.ok()) return Annotate(graph, first, recording.status());
    part.recording = *std::move(recording);
  }
  ShowPlace(call_index, first, Activity::kInNode);
  if (absl::Status status = part.recording->Replay(); !status.ok()) return Annotate(graph, first, status);
  ++lane->num_replays;
  ShowQueued(graph, part.begin, part.end, call_index);
  return absl::OkStatus();
}

absl::Status Executor::RunGraph(BoundGraph& graph, uint32_t call_index, Lane* lane) {
  for (Part& part : graph.parts) {
    const bool is_timed = lane != nullptr && !part.waits;
    if (is_timed) TACC_RETURN_IF_ERROR(lane->work.Set().status());
    TACC_RETURN_IF_ERROR(RunPart(graph, part, call_index, lane));
    if (is_timed) TACC_RETURN_IF_ERROR(lane->work.Set().status());
  }
  graph.has_run = true;
  return absl::OkStatus();
}

absl::StatusOr<double> Executor::BusySeconds(const Lane& lane) const {
  double busy = 0;
  for (size_t i = 0; i + 1 < lane.work.size(); i += 2) {
    TACC_ASSIGN_OR_RETURN(const double seconds, lane.work[i + 1].SecondsSince(lane.work[i]));
    busy += seconds;
  }
  return busy;
}

absl::StatusOr<std::vector<TimeSpan>> Executor::BusyParts(const Device::Mark& since) const {
  std::vector<TimeSpan> parts;
  if (lanes_.empty() || num_finished_ == 0) return parts;
  const Marks& work = lanes_[(num_finished_ - 1) % kMaxInFlight].work;
  for (size_t i = 0; i + 1 < work.size(); i += 2) {
    TimeSpan& part = parts.emplace_back();
    TACC_ASSIGN_OR_RETURN(part.begin, work[i].SecondsSince(since));
    TACC_ASSIGN_OR_RETURN(part.end, work[i + 1].SecondsSince(since));
  }
  return parts;
}

absl::Status Executor::UploadBatch(const std::vector<std::vector<const void*>>& inputs,
                                   const std::vector<size_t>& programs, Lane& lane) {
  for (size_t m = 0; m < inputs.size(); ++m) {
    const std::vector<Input>& of_program = programs_[programs[m]].inputs;
    for (size_t i = 0; i < of_program.size(); ++i) {
      std::memcpy(lane.host->data() + m * batch_bytes_ + input_offsets_[i], inputs[m][i],
                  of_program[i].value.type.bytes());
    }
  }
  const int64_t bytes = static_cast<int64_t>(inputs.size()) * batch_bytes_;
  if (bytes == 0) return absl::OkStatus();
  if (timer_ != nullptr) {
    const auto name = [](std::string* out, const Input& input) { out->append(input.name); };
    TACC_RETURN_IF_ERROR(
        timer_->BeginCopy(StepTimes::Copy::Direction::kToDevice, absl::StrJoin(this->inputs(), " ", name), bytes));
  }
  options_.device->UploadAhead(lane.host->data(), Flat(lane.device_inputs, bytes));
  return timer_ == nullptr ? absl::OkStatus() : timer_->EndCopy();
}

absl::Status Executor::DownloadOutputs(Lane& lane) {
  const int64_t bytes = kOutputBytes * static_cast<int64_t>(outputs_.size());
  if (bytes == 0) return absl::OkStatus();
  if (timer_ != nullptr) {
    const auto name = [](std::string* out, const auto& output) { out->append(output.first); };
    TACC_RETURN_IF_ERROR(
        timer_->BeginCopy(StepTimes::Copy::Direction::kToHost, absl::StrJoin(outputs_, " ", name), bytes));
  }
  options_.device->Download(Flat(device_outputs_, bytes), lane.host_outputs);
  return timer_ == nullptr ? absl::OkStatus() : timer_->EndCopy();
}

absl::Status Executor::RunCalls(const std::vector<BoundCall>& calls,
                                const std::vector<std::vector<const void*>>& inputs,
                                const std::vector<size_t>& programs, uint32_t first_index) {
  Lane* lane = nullptr;
  if (!lanes_.empty()) {
    lane = &lanes_[num_launched_ % kMaxInFlight];
    lane->work.Clear();
    lane->num_replays = 0;
    TACC_RETURN_IF_ERROR(UploadBatch(inputs, programs, *lane));
  }
  uint32_t index = first_index;
  for (const BoundCall& call : calls) {
    for (int i : call.graph->inputs) {
      if (lane == nullptr) {
        input_places_[i] = inputs.at(call.micro_batch)[i];
      } else {
        const int64_t bytes = programs_[call.program].inputs[i].value.type.bytes();
        options_.device->Copy(Flat(lane->device_inputs + call.micro_batch * batch_bytes_ + input_offsets_[i], bytes),
                              Flat(const_cast<void*>(input_places_[i]), bytes));
      }
    }
    if (options_.collectives != nullptr) TACC_RETURN_IF_ERROR(options_.collectives->EnterCall(index));
    TACC_RETURN_IF_ERROR(RunGraph(*call.graph, index++, lane));
  }
  if (lane != nullptr) {
    TACC_RETURN_IF_ERROR(DownloadOutputs(*lane));
    TACC_RETURN_IF_ERROR(lane->done->Set());
  }
  ++num_launched_;
  return absl::OkStatus();
}

absl::Status Executor::WarmUp() {
  if (!options_.device->is_asynchronous()) return absl::OkStatus();
  using Kind = Instruction::Kind;
  // Whatever the copies of stashes that a graph is bound for: as often on every rank.
  std::set<const graph::Graph*> seen;
  for (const BoundProgram& program : programs_) {
    std::vector<BoundCall> calls = program.step;
    calls.insert(calls.end(), program.eval.begin(), program.eval.end());
    for (const BoundCall& call : calls) {
      const BoundGraph& graph = *call.graph;
      if (!seen.insert(graph.graph).second) continue;
      for (size_t i = 0; i < graph.instructions.size(); ++i) {
        const Kind kind = graph.instructions[i].kind;
        if (kind != Kind::kPost && kind != Kind::kFinish) TACC_RETURN_IF_ERROR(RunInstructions(graph, i, i + 1, 0));
      }
    }
  }
  for (auto& [name, output] : outputs_) output.has_run = false;
  TACC_RETURN_IF_ERROR(options_.device->Synchronize());
  return options_.collectives == nullptr ? absl::OkStatus() : options_.collectives->Check();
}

absl::Status Executor::Launch(const std::vector<std::vector<const void*>>& inputs, std::vector<size_t> programs) {
  if (num_in_flight() >= kMaxInFlight) return absl::FailedPreconditionError("too many steps in flight");
  programs.resize(inputs.size());
  std::vector<BoundCall> calls = programs_[0].step;
  for (size_t i = 0; i < calls.size(); ++i) {
    // All programs have the same calls. Those that are of no micro-batch count as the first one's.
    const auto micro_batch = static_cast<size_t>(calls[i].micro_batch);
    if (micro_batch < programs.size()) calls[i] = programs_[programs[micro_batch]].step[i];
  }
  return RunCalls(calls, inputs, programs, 0);
}

absl::Status Executor::Finish() {
  if (num_in_flight() == 0) return absl::FailedPreconditionError("no step is in flight");
  if (!lanes_.empty()) {
    Lane& lane = lanes_[num_finished_ % kMaxInFlight];
    TACC_RETURN_IF_ERROR(lane.done->Wait());
    // An aborted collective ends too.
    if (options_.collectives != nullptr) TACC_RETURN_IF_ERROR(options_.collectives->Check());
    TACC_ASSIGN_OR_RETURN(busy_seconds_, BusySeconds(lane));
    num_replays_ = lane.num_replays;
    for (auto& [name, output] : outputs_)
      output.value = ReadScalar(lane.host_outputs + kOutputBytes * output.index, output.dtype);
  }
  ++num_finished_;
  if (options_.status != nullptr && num_in_flight() == 0) options_.status->SetActivity(Activity::kBetweenSteps);
  return absl::OkStatus();
}

absl::Status Executor::RunStep(const std::vector<std::vector<const void*>>& inputs) {
  TACC_RETURN_IF_ERROR(Launch(inputs));
  return Finish();
}

std::string Executor::WhyNotByParts(int64_t num_run) const {
  if (options_.program->num_stages > 1) return "the stages of a pipeline work on several micro-batches at once";
  const std::vector<BoundCall>& step = programs_[0].step;
  if (step.empty() || step.back().graph->graph->name != graph::kUpdateGraph) return "the program has no update";
  const bool sums_up = step.front().graph->graph->name == graph::kBeginGraph;
  if (!sums_up && num_run > 0) return "the job's steps have one micro-batch (train.per_device_train_batch_size)";
  return "";
}

std::string Executor::WhyNotMixed() const {
  if (options_.program->num_stages > 1) return "the stages of a pipeline work on several micro-batches at once";
  if (!shares_gradients_) return "gradients lie elsewhere for each length";
  return "";
}

absl::Status Executor::RunMicroBatch(const std::vector<std::vector<const void*>>& inputs, bool is_first,
                                     size_t program) {
  const std::vector<BoundCall>& step = programs_[program].step;
  std::vector<BoundCall> calls;
  const bool skips_begin = !is_first && step.front().graph->graph->name == graph::kBeginGraph;
  for (const BoundCall& call : step) {
    const std::string& name = call.graph->graph->name;
    // All micro-batches have the same graphs.
    if (name == graph::kBeginGraph ? is_first : name != graph::kUpdateGraph && call.micro_batch == 0)
      calls.push_back(call);
  }
  TACC_RETURN_IF_ERROR(RunCalls(calls, inputs, std::vector<size_t>(inputs.size(), program), skips_begin ? 1 : 0));
  return Finish();
}

absl::Status Executor::LaunchUpdate(const std::vector<std::vector<const void*>>& inputs, size_t program) {
  if (num_in_flight() >= kMaxInFlight) return absl::FailedPreconditionError("too many steps in flight");
  const std::vector<BoundCall>& step = programs_[program].step;
  return RunCalls({step.back()}, inputs, std::vector<size_t>(inputs.size(), program),
                  static_cast<uint32_t>(step.size() - 1));
}

absl::Status Executor::RunEval(const std::vector<const void*>& inputs, size_t program) {
  const BoundProgram& bound = programs_[program];
  TACC_RETURN_IF_ERROR(RunCalls(bound.eval, {inputs}, {program}, static_cast<uint32_t>(bound.step.size())));
  TACC_RETURN_IF_ERROR(Finish());
  if (bound.returned_on_device.empty()) return absl::OkStatus();
  for (size_t i = 0; i < bound.returned.size(); ++i) {
    const auto bytes = static_cast<int64_t>(bound.returned[i].data.size());
    options_.device->Download(Flat(bound.returned_on_device[i]->data(), bytes), bound.returned_on_host[i]->data());
  }
  return options_.device->Synchronize();
}

absl::StatusOr<double> Executor::Output(const std::string& name) const {
  const auto it = outputs_.find(name);
  if (it == outputs_.end() || !it->second.has_run)
    return absl::NotFoundError(absl::StrCat("the program has no output \"", name, "\""));
  return it->second.value;
}

graph::TalkPlace Executor::talk_place() const {
  const bool is_by_host = options_.collectives != nullptr && !options_.collectives->is_on_device();
  return is_by_host ? graph::TalkPlace::kHost : graph::TalkPlace::kDevice;
}

std::vector<graph::CapturePart> Executor::Parts() const {
  if (!options_.device->is_asynchronous()) return {};
  return graph::CapturePlan(*options_.program, talk_place());
}

}  // namespace tacc::worker
