#include "tests/ranks/in_process_ranks.h"

#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "graph/ir/sequence_order.h"
#include "graph/ir/status_macros.h"
#include "graph/trace/step_trace.h"
#include "machine/clock.h"
#include "worker/checkpoint/checkpoint_name.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/tensors/rectangle.h"
#include "worker/checkpoint/writer.h"
#include "worker/rank/cuda/collectives/choose_collectives.h"
#include "worker/rank/cuda/testing/simulated_communication.h"
#include "worker/rank/cuda/testing/simulated_gpu.h"
#include "worker/rank/device/arena.h"
#include "worker/rank/device/host_device.h"
#include "worker/rank/program/cpu_kernels.h"
#include "worker/rank/program/executor.h"
#include "worker/rank/program/step_timer.h"
#include "worker/rank/state/states.h"
#include "worker/rank/testing/in_process_transport.h"
#include "worker/rank/testing/simulated_device.h"
#include "worker/rank/timing/rank_trace.h"

namespace tacc::worker {
namespace {

// The part of a micro-batch that one rank holds, an entry an input.
using RankInputs = std::vector<std::vector<char>>;

template <typename T>
void Append(T value, std::vector<char>* bytes) {
  const size_t at = bytes->size();
  bytes->resize(at + sizeof(value));
  std::memcpy(bytes->data() + at, &value, sizeof(value));
}

bool IsSimulatedGpu(InProcessRanks::Memory memory) {
  return memory == InProcessRanks::Memory::kSimulatedGpu || memory == InProcessRanks::Memory::kSimulatedGpuInOrder;
}

}  // namespace

class InProcessRanks::Rank {
 public:
  Rank(const graph::Program& program, int rank, Memory memory, const KernelTable* kernels, Transport* transport)
      : program_(program),
        rank_(rank),
        memory_(memory),
        collectives_(rank, static_cast<int>(program.mesh.num_ranks())),
        queues_(MakeQueues(transport)),
        communication_(queues_.get()),
        device_(MakeDevice(kernels)),
        states_(&program, rank, device_.get(), [this](const std::string& name) { return executor_->state(name); }) {}

  const graph::Program& program() const { return program_; }
  int rank() const { return rank_; }
  const RankStates& states() const { return states_; }
  RankStates& states() { return states_; }
  const Arena* arena() const { return arena_.get(); }
  int64_t num_micro_batches() const { return executor_->num_micro_batches(); }

  absl::Status Bind(const graph::OpTable& ops, Transport* transport) {
    if (collectives_.world() > 1) collectives_.Connect(transport);
    ExecutorOptions options;
    options.program = &program_;
    options.rank = rank_;
    options.device = device_.get();
    options.aliases = [&ops](const graph::Graph& graph, const graph::Node& node) {
      const graph::OpDef* op = ops.Find(node.op);
      return op->aliases ? op->aliases(graph::CallOf(graph, node)) : std::vector<int>();
    };
    options.collectives = &collectives_;
    if (device_->is_asynchronous() && collectives_.world() > 1) {
      TACC_RETURN_IF_ERROR(ChooseTalk());
      options.collectives = talk_.queue.get();
    }
    if (memory_ != Memory::kOwn) {
      TACC_ASSIGN_OR_RETURN(arena_, device_->CreateArena(program_.arena_bytes, program_.workspace_bytes));
      if (memory_ == Memory::kPlanned) arena_->Poison();
      options.arena = arena_.get();
    }
    TACC_ASSIGN_OR_RETURN(executor_, Executor::Create(options));
    timer_ = std::make_unique<StepTimer>(device_.get(), options.collectives);
    TACC_RETURN_IF_ERROR(options.collectives->Open());
    return executor_->WarmUp();
  }

  // What runs from here to StopTimer is timed.
  void StartTimer() { executor_->SetTimer(timer_.get()); }
  absl::StatusOr<StepTimes> StopTimer() {
    executor_->SetTimer(nullptr);
    return timer_->Take();
  }

  void PoisonPadding() {
    if (device_->is_asynchronous()) return;  // The host cannot write there.
    for (const graph::State& state : program_.states) {
      const graph::Value value{"", state.type, state.placement};
      for (const Region& region : PaddingOf(value, program_.mesh, rank_, executor_->state(state.name))) {
        for (int64_t i = 0; i < region.runs; ++i)
          std::memset(region.data + i * region.stride_bytes, 0xff, region.run_bytes);
      }
    }
  }

  // Starts the step.
  absl::Status Launch(int64_t step, const BatchSource& batches) {
    std::vector<RankInputs> inputs;
    std::vector<std::vector<const void*>> pointers;
    for (int64_t m = 0; m < executor_->num_micro_batches(); ++m) inputs.push_back(Cut(step, batches(step, m)));
    for (const RankInputs& part : inputs) pointers.push_back(Pointers(part));
    return executor_->Launch(pointers);
  }

  // Ends the oldest one.
  absl::Status Finish() {
    TACC_RETURN_IF_ERROR(executor_->Finish());
    if (executor_->Output("skipped").value_or(1.0) != 0.0)
      return absl::FailedPreconditionError(absl::StrCat("rank ", rank_, ": an update was skipped"));
    return absl::OkStatus();
  }

  // Steps that are under way while the next one starts.
  int64_t max_in_flight() const { return device_->is_asynchronous() ? Executor::kMaxInFlight : 1; }
  int64_t num_replays() const {
    if (IsSimulatedGpu(memory_)) return static_cast<const SimulatedGpu&>(*device_).num_replays();
    return static_cast<const SimulatedDevice&>(*device_).num_replays();
  }
  int64_t num_in_flight() const { return executor_->num_in_flight(); }

  absl::StatusOr<double> Evaluate(int64_t step, const BatchSource& batches) {
    double sum = 0;
    for (int64_t m = 0; m < executor_->num_micro_batches(); ++m) {
      const RankInputs inputs = Cut(step, batches(step, m));
      TACC_RETURN_IF_ERROR(executor_->RunEval(Pointers(inputs)));
      TACC_ASSIGN_OR_RETURN(const double loss, executor_->Output("loss"));
      sum += loss;
    }
    return sum;
  }

  absl::StatusOr<double> Output(const std::string& name) const { return executor_->Output(name); }

  int64_t packed_bytes() const { return communication_->packed_bytes(); }

  // Names of what a step puts out.
  std::vector<std::string> OutputNames() const {
    std::vector<std::string> names;
    for (const graph::Node& node : program_.FindGraph(graph::kUpdateGraph)->nodes) {
      if (node.op == graph::Op::kOutput) names.push_back(node.symbol);
    }
    return names;
  }

 private:
  // This rank's part of each input: rows, and the positions that it holds of them.
  RankInputs Cut(int64_t step, const MicroBatch& batch) const {
    RankInputs inputs;
    for (const Executor::Input& input : executor_->inputs()) {
      std::vector<char>& bytes = inputs.emplace_back();
      const std::vector<graph::Range> ranges = RangesOf(input.value, program_.mesh, rank_);
      if (input.name == "step") {
        Append(step, &bytes);
        continue;
      }
      for (int64_t row = ranges[0].begin; row < ranges[0].end; ++row) {
        if (input.name == "sample") {
          Append(batch.first_sample + row, &bytes);
          continue;
        }
        const std::vector<int32_t>& column = input.name == "tokens" ? batch.tokens : batch.targets;
        for (int64_t position : graph::Positions({batch.length, input.zigzag}, ranges[1]))
          Append(column[row * batch.length + position], &bytes);
      }
    }
    return inputs;
  }

  static std::vector<const void*> Pointers(const RankInputs& inputs) {
    std::vector<const void*> pointers;
    for (const std::vector<char>& bytes : inputs) pointers.push_back(bytes.data());
    return pointers;
  }

  std::unique_ptr<SimulatedCommunication> MakeQueues(Transport* transport) const {
    if (!IsSimulatedGpu(memory_)) return nullptr;
    return std::make_unique<SimulatedCommunication>(transport, SimulatedCommunication::Slow::kNone);
  }

  std::unique_ptr<Device> MakeDevice(const KernelTable* kernels) const {
    if (memory_ == Memory::kSimulatedDevice) return std::make_unique<SimulatedDevice>(kernels);
    if (IsSimulatedGpu(memory_)) return std::make_unique<SimulatedGpu>(kernels, queues_.get());
    return std::make_unique<HostDevice>(kernels);
  }

  // Chooses as ranks with GPUs do; all simulated devices are one GPU, whose ranks talk by way of the host.
  absl::Status ChooseTalk() {
    RankGpu gpu;
    gpu.device = device_.get();
    gpu.id = [this] { return GpuId{0, IsSimulatedGpu(memory_) ? static_cast<uint64_t>(rank_) : 0}; };
    gpu.make_communication = [this]() -> absl::StatusOr<std::unique_ptr<Communication>> { return std::move(queues_); };
    TACC_ASSIGN_OR_RETURN(
        talk_, ChooseCollectives(
                   {&collectives_, absl::InfiniteDuration(), nullptr, memory_ == Memory::kSimulatedGpuInOrder}, gpu));
    return absl::OkStatus();
  }

  const graph::Program& program_;
  const int rank_;
  const Memory memory_;
  Collectives collectives_;
  std::unique_ptr<SimulatedCommunication> queues_;  // Until they are the talk's.
  const SimulatedCommunication* const communication_;
  RankTalk talk_;
  const std::unique_ptr<Device> device_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<StepTimer> timer_;
  RankStates states_;
};

const graph::Program& ProgramOf(const std::vector<graph::Program>& stages, int64_t rank) {
  return stages.size() == 1 ? stages[0] : stages[graph::StageOf(stages[0].mesh, rank)];
}

InProcessRanks::InProcessRanks(const graph::OpTable* ops)
    : ops_(*ops), cpu_kernels_(std::make_unique<CpuKernelTable>()) {}
InProcessRanks::~InProcessRanks() = default;

absl::StatusOr<std::unique_ptr<InProcessRanks>> InProcessRanks::Create(const std::vector<graph::Program>* stages,
                                                                       const graph::OpTable* ops, Memory memory,
                                                                       const KernelTable* kernels,
                                                                       int ranks_a_machine) {
  auto ranks = std::unique_ptr<InProcessRanks>(new InProcessRanks(ops));
  if (kernels == nullptr) kernels = ranks->cpu_kernels_.get();
  const int world = static_cast<int>((*stages)[0].mesh.num_ranks());
  for (std::unique_ptr<Transport>& transport : MakeInProcessTransports(world, absl::Seconds(60), ranks_a_machine))
    ranks->transports_.push_back(std::make_unique<CountingTransport>(std::move(transport)));
  for (int rank = 0; rank < world; ++rank)
    ranks->ranks_.push_back(
        std::make_unique<Rank>(ProgramOf(*stages, rank), rank, memory, kernels, ranks->transports_[rank].get()));
  TACC_RETURN_IF_ERROR(
      ranks->ForEachRank([&](Rank& rank) { return rank.Bind(*ops, ranks->transports_[rank.rank()].get()); }));
  return ranks;
}

int64_t InProcessRanks::num_micro_batches() const { return ranks_[0]->num_micro_batches(); }

absl::Status InProcessRanks::ForEachRank(const std::function<absl::Status(Rank&)>& run) const {
  std::vector<absl::Status> statuses(ranks_.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    threads.emplace_back([&, rank] { statuses[rank] = run(*ranks_[rank]); });
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) TACC_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::Status InProcessRanks::Initialize(uint64_t seed) {
  return ForEachRank([seed](Rank& rank) -> absl::Status {
    TACC_RETURN_IF_ERROR(rank.states().Initialize({.seed = seed}));
    rank.PoisonPadding();
    return absl::OkStatus();
  });
}

absl::StatusOr<std::string> InProcessRanks::Save(const std::string& directory, int64_t step) const {
  const CheckpointId id{step, 1};
  std::filesystem::create_directories(directory);
  TACC_RETURN_IF_ERROR(ForEachRank([&](Rank& rank) -> absl::Status {
    TACC_ASSIGN_OR_RETURN(const RankStates::Shard shard, rank.states().MakeShard());
    return WriteShard(directory, id, rank.rank(), shard.tensors, nullptr);
  }));
  Manifest manifest;
  manifest.version = "test";
  manifest.job = "test";
  manifest.step = id.step;
  manifest.attempt = id.attempt;
  TACC_ASSIGN_OR_RETURN(const CommittedCheckpoint committed,
                        CommitCheckpoint(directory, std::move(manifest), static_cast<int>(ranks_.size()), nullptr));
  return absl::StrCat(directory, "/", committed.name);
}

absl::Status InProcessRanks::Load(const std::string& path) {
  TACC_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  return ForEachRank([&checkpoint](Rank& rank) -> absl::Status {
    TACC_RETURN_IF_ERROR(rank.states().Load(*checkpoint, {}));
    rank.PoisonPadding();
    return absl::OkStatus();
  });
}

absl::Status InProcessRanks::Train(int64_t first_step, int64_t num_steps, const BatchSource& batches,
                                   TrainingLog* log) {
  return ForEachRank([&](Rank& rank) -> absl::Status {
    const auto finish = [&]() -> absl::Status {
      TACC_RETURN_IF_ERROR(rank.Finish());
      if (rank.rank() != 0) return absl::OkStatus();
      for (const std::string& name : rank.OutputNames()) {
        TACC_ASSIGN_OR_RETURN(const double value, rank.Output(name));
        log->outputs[name].push_back(value);
      }
      return absl::OkStatus();
    };
    for (int64_t step = first_step; step < first_step + num_steps; ++step) {
      TACC_RETURN_IF_ERROR(rank.Launch(step, batches));
      if (rank.num_in_flight() == rank.max_in_flight()) TACC_RETURN_IF_ERROR(finish());
    }
    while (rank.num_in_flight() > 0) TACC_RETURN_IF_ERROR(finish());
    return absl::OkStatus();
  });
}

absl::StatusOr<std::string> InProcessRanks::TraceStep(int64_t step, const BatchSource& batches, TrainingLog* log) {
  TACC_RETURN_IF_ERROR(ForEachRank([](Rank& rank) {
    rank.StartTimer();
    return absl::OkStatus();
  }));
  const double begin = SteadySeconds();
  TACC_RETURN_IF_ERROR(Train(step, 1, batches, log));
  std::vector<std::string> processes;
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    TACC_ASSIGN_OR_RETURN(const StepTimes times, rank->StopTimer());
    processes.push_back(MeasuredProcess(rank->program(), ops_, rank->rank(), times, begin));
  }
  return graph::TraceText(processes);
}

absl::StatusOr<double> InProcessRanks::Evaluate(int64_t step, const BatchSource& batches) {
  std::vector<double> losses(ranks_.size());
  TACC_RETURN_IF_ERROR(ForEachRank([&](Rank& rank) -> absl::Status {
    TACC_ASSIGN_OR_RETURN(losses[rank.rank()], rank.Evaluate(step, batches));
    return absl::OkStatus();
  }));
  return losses[0];
}

std::map<std::string, std::vector<float>> InProcessRanks::Weights() const {
  std::map<std::string, std::vector<float>> weights;
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    const absl::StatusOr<RankStates::Shard> shard = rank->states().MakeShard();
    if (!shard.ok()) continue;
    for (const ShardTensor& tensor : shard->tensors) {
      std::vector<float>& whole = weights[tensor.name];
      whole.resize(*NumElements(tensor.shape));
      CopyIntersection(static_cast<const char*>(tensor.data), tensor.rectangle, reinterpret_cast<char*>(whole.data()),
                       WholeTensor(MergedShape(tensor.shape, tensor.merged_dims)), sizeof(float));
    }
  }
  return weights;
}

std::vector<int64_t> InProcessRanks::NumReplays() const {
  std::vector<int64_t> counts;
  for (const std::unique_ptr<Rank>& rank : ranks_) counts.push_back(rank->num_replays());
  return counts;
}

std::vector<InProcessRanks::Sent> InProcessRanks::SentBytes() const {
  std::vector<Sent> sent;
  for (const std::unique_ptr<CountingTransport>& transport : transports_) {
    Sent& of_rank = sent.emplace_back(Sent{transport->sent_bytes(), {}});
    for (int peer = 0; peer < transport->world(); ++peer) of_rank.to.push_back(transport->sent_to(peer));
  }
  return sent;
}

std::vector<int64_t> InProcessRanks::PackedBytes() const {
  std::vector<int64_t> bytes;
  for (const std::unique_ptr<Rank>& rank : ranks_) bytes.push_back(rank->packed_bytes());
  return bytes;
}

std::vector<int64_t> InProcessRanks::HighestTouched() const {
  std::vector<int64_t> bytes;
  for (const std::unique_ptr<Rank>& rank : ranks_) bytes.push_back(rank->arena()->HighestTouched());
  return bytes;
}

}  // namespace tacc::worker
