#include "worker/rank/run/client_source.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "graph/ir/status_macros.h"
#include "worker/checkpoint/tensors/model_weights.h"
#include "worker/rank/collectives/agreement.h"
#include "worker/rank/collectives/bind_collective.h"

namespace tacc::worker {
namespace {

using Kind = ClientCommand::Kind;

// A rank without a command looks so often whether the ranks are told to stop.
constexpr absl::Duration kTick = absl::Seconds(1);

// Whether tokens lie in another order than the client's (graph/ir/sequence_order.h).
bool HasRing(const graph::Program& program) {
  const auto is_ordered = [](const graph::Node& node) { return graph::GetAttr<int64_t>(node.attrs, "zigzag") > 1; };
  return std::any_of(program.graphs.begin(), program.graphs.end(), [&](const graph::Graph& graph) {
    return std::any_of(graph.nodes.begin(), graph.nodes.end(), is_ordered);
  });
}

// The peak of the learning rate whose parameters have an input of that kind; nothing: it is another input.
std::optional<double> PeakOf(absl::string_view kind, absl::string_view input) {
  double peak = 0;
  if (!absl::ConsumePrefix(&input, kind) || !absl::SimpleAtod(input, &peak)) return std::nullopt;
  return peak;
}

double UpdateInput(const Executor::Input& input, const UpdateOptions& update) {
  if (input.name == graph::kGradientFactorInput) return update.gradient_factor;
  if (input.name == graph::kMaxGradNormInput) return update.max_grad_norm.value_or(*input.absent);
  const std::optional<double> of_rate = PeakOf(graph::kLearningRateFactorInput, input.name);
  for (const auto& [peak, rate] : update.learning_rates) {
    if (of_rate == peak) return rate / peak;
  }
  const std::optional<double> of_momentum = PeakOf(graph::kMomentumInput, input.name);
  for (const auto& [peak, momentum] : update.momenta) {
    if (of_momentum == peak) return momentum;
  }
  return *input.absent;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClientSource>> ClientSource::Open(RankParts* parts, const StartPoint& begin) {
  std::unique_ptr<ClientSource> source(new ClientSource(parts, begin.step));
  const Executor& executor = *parts->executor;
  source->micro_batch_ = parts->start.global_batch_size / executor.num_micro_batches();
  for (size_t i = 0; i <= parts->others.size(); ++i) TACC_RETURN_IF_ERROR(source->OpenBucket(i));
  for (size_t i = 0; i < executor.inputs().size(); ++i) {
    const Executor::Input& input = executor.inputs()[i];
    if (!input.absent.has_value()) continue;
    if (input.value.type.dtype == graph::DType::kF64) {
      source->update_inputs_[i] = 0.0;
    } else {
      source->update_inputs_[i] = 0.0F;
    }
  }
  {
    absl::MutexLock lock(&source->mutex_);
    source->state_ = begin.client_state;
  }
  parts->checkpointer->SetClientState(begin.client_state);
  ClientLink::Options options;
  options.advertise = parts->start.advertise;
  options.local_folder = parts->start.local_folder;
  for (size_t i = 0; i < source->buckets_.size(); ++i)
    options.buckets.push_back({source->ProgramOf(i).seq_len, source->buckets_[i].inputs});
  options.num_micro_batches = executor.num_micro_batches();
  options.welcome = [source = source.get()](std::string* bytes) { return source->Welcome(bytes); };
  TACC_ASSIGN_OR_RETURN(parts->client_link, ClientLink::Open(std::move(options)));
  return source;
}

ClientSource::ClientSource(RankParts* parts, int64_t step)
    : parts_(*parts), in_ring_(HasRing(parts->program)), step_(step), welcome_step_(step) {}

const graph::Program& ClientSource::ProgramOf(size_t bucket) const {
  return bucket == 0 ? parts_.program : parts_.others[bucket - 1];
}

absl::Status ClientSource::OpenBucket(size_t index) {
  const Executor& executor = *parts_.executor;
  const graph::Program& program = ProgramOf(index);
  Bucket& bucket = buckets_.emplace_back();
  TACC_ASSIGN_OR_RETURN(bucket.inputs, ClientInputs(program, parts_.start.rank, executor.inputs(index)));
  bucket.outputs = ClientOutputs(program, parts_.start.rank, executor.returned(index));
  for (size_t i = 0; i < executor.inputs(index).size(); ++i) {
    const Executor::Input& input = executor.inputs(index)[i];
    if (input.name == "sample")
      bucket.sample_inputs.emplace_back(i, RangesOf(input.value, program.mesh, parts_.start.rank)[0]);
  }
  return absl::OkStatus();
}

nlohmann::json ClientSource::Welcome(std::string* bytes) {
  const StartFile& start = parts_.start;
  absl::MutexLock lock(&mutex_);
  *bytes = state_;
  nlohmann::json outputs = nlohmann::json::array();
  for (const ClientOutput& output : buckets_[0].outputs) outputs.push_back(output.describe["name"]);
  const auto peaks = [this](absl::string_view kind) {
    nlohmann::json found = nlohmann::json::array();
    for (const auto& [index, value] : update_inputs_) {
      if (const auto peak = PeakOf(kind, parts_.executor->inputs()[index].name)) found.push_back(*peak);
    }
    return found;
  };
  return {{"rank", start.rank},
          {"world", start.world},
          {"attempt", start.attempt},
          {"step", welcome_step_},
          {"max_steps", start.max_steps},
          {"global_batch_size", start.global_batch_size},
          {"evaluates", parts_.executor->has_eval()},
          {"learning_rates", peaks(graph::kLearningRateFactorInput)},
          {"momenta", peaks(graph::kMomentumInput)},
          {"outputs", outputs}};
}

bool ClientSource::HasOneLength(const ClientCommand& command) const {
  std::vector<size_t> buckets = command.buckets;
  if (NumUnderWay(command) > 0) buckets.insert(buckets.end(), of_step_.begin(), of_step_.end());
  return std::equal(buckets.begin() + (buckets.empty() ? 0 : 1), buckets.end(), buckets.begin());
}

std::string ClientSource::Refusal(const ClientCommand& command, int64_t num_launched) const {
  const int64_t max_steps = parts_.start.max_steps, under_way = NumUnderWay(command);
  if (command.step != num_launched) {
    return absl::StrCat("the training has done ", num_launched, " steps, not ", command.step,
                        " as the client counts; connect anew");
  }
  const bool updates = command.kind == Kind::kStep || command.kind == Kind::kUpdate;
  const bool trains = updates || command.kind == Kind::kMicroBatch;
  if (trains && num_launched >= max_steps)
    return absl::StrCat("the training has done its ", max_steps, " steps (train.max_steps); close it");
  if (const std::string why = parts_.executor->WhyNotMixed(); trains && !why.empty() && !HasOneLength(command))
    return absl::StrCat(why, ", so that all of a step have one length (data.client.buckets); pad them to the longest");
  if (command.kind == Kind::kStep && under_way > 0)
    return absl::StrCat("the step has ", under_way, " micro-batches already; send update");
  if (command.kind == Kind::kUpdate && under_way == 0) return "there is no gradient; send a micro_batch before update";
  if (updates) {
    if (std::string why = WhyNot(command.update); !why.empty()) return why;
  }
  const bool needs_whole_steps =
      command.kind == Kind::kSave || command.kind == Kind::kLoad || command.kind == Kind::kClose;
  if (needs_whole_steps && under_way > 0)
    return absl::StrCat("the step has ", under_way, " micro-batches; send update or discard before");
  if (command.kind == Kind::kForward && !parts_.executor->has_eval()) return "the program has no evaluation";
  if (!command.outputs.empty() && in_ring_) {
    return "in a ring (dist.cp) ranks have the tokens in another order, so that outputs cannot be put together; give "
           "dist.sp.size the size of dist.cp";
  }
  if (command.kind == Kind::kMicroBatch || command.kind == Kind::kUpdate) {
    if (const std::string why = parts_.executor->WhyNotByParts(under_way); !why.empty())
      return absl::StrCat(why, "; send whole steps");
  }
  return "";
}

absl::StatusOr<Work> ClientSource::Next(int64_t num_launched, bool may_wait) {
  next_ = parts_.client_link->Next(may_wait ? kTick : absl::ZeroDuration());
  if (next_ == nullptr) {
    const double patience = parts_.start.client_wait_seconds;
    const bool gives_up = patience > 0 && parts_.client_link->WithoutClient() > absl::Seconds(patience);
    return Work{gives_up ? Work::Kind::kGiveUp : Work::Kind::kNothing};
  }
  refusal_ = Refusal(*next_, num_launched);
  Work work{Work::Kind::kRequest, next_->name};
  if (!refusal_.empty()) return work;
  if (next_->kind == Kind::kStep || next_->kind == Kind::kUpdate) work.kind = Work::Kind::kStep;
  if (next_->kind == Kind::kClose) work.kind = Work::Kind::kEnd;
  return work;
}

ClientSource::Batch& ClientSource::BatchOf(const ClientCommand& command, int64_t first, const UpdateOptions& update) {
  const size_t count = command.tensors.size();
  for (auto& [index, value] : update_inputs_) {
    const double now = UpdateInput(parts_.executor->inputs()[index], update);
    std::visit([now](auto& x) { x = static_cast<std::decay_t<decltype(x)>>(now); }, value);
  }
  batch_.step = update.optimizer_step.value_or(step_);
  batch_.inputs.assign(count, std::vector<const void*>(parts_.executor->inputs().size(), &batch_.step));
  batch_.samples.resize(count * buckets_[0].sample_inputs.size());
  for (size_t m = 0; m < count; ++m) {
    const Bucket& bucket = buckets_[command.buckets[m]];
    for (size_t i = 0; i < bucket.inputs.size(); ++i) batch_.inputs[m][bucket.inputs[i].index] = command.tensors[m][i];
    for (size_t i = 0; i < bucket.sample_inputs.size(); ++i) {
      const auto& [index, range] = bucket.sample_inputs[i];
      std::vector<int64_t>& samples = batch_.samples[m * bucket.sample_inputs.size() + i];
      samples.clear();
      for (int64_t row = range.begin; row < range.end; ++row)
        samples.push_back((first + static_cast<int64_t>(m)) * micro_batch_ + row);
      batch_.inputs[m][index] = samples.data();
    }
    for (const auto& [index, value] : update_inputs_)
      batch_.inputs[m][index] = std::visit([](const auto& x) -> const void* { return &x; }, value);
  }
  return batch_;
}

absl::Status ClientSource::Launch() {
  parts_.client_link->Take(next_);
  LeaveOthersStep(*next_);
  steps_.push_back(next_);
  if (next_->kind == Kind::kStep) {
    of_step_ = next_->buckets;
    TACC_RETURN_IF_ERROR(parts_.executor->Launch(BatchOf(*next_, 0, next_->update).inputs, of_step_));
  } else {
    // It reads no more of the batch, whose memory stays until then.
    const Batch& batch = BatchOf(*last_micro_batch_, num_micro_batches_ - 1, next_->update);
    TACC_RETURN_IF_ERROR(parts_.executor->LaunchUpdate({batch.inputs.back()}, of_step_.back()));
    Discard();
  }
  ++step_;
  return absl::OkStatus();
}

std::vector<int64_t> ClientSource::Lengths() const {
  std::vector<int64_t> lengths;
  for (const size_t bucket : of_step_) {
    if (buckets_.size() > 1) lengths.push_back(ProgramOf(bucket).seq_len);
  }
  return lengths;
}

void ClientSource::Discard() {
  num_micro_batches_ = 0;
  counters_.clear();
  last_micro_batch_ = nullptr;
}

int64_t ClientSource::NumUnderWay(const ClientCommand& command) const {
  return command.client == step_client_ ? num_micro_batches_ : 0;
}

void ClientSource::LeaveOthersStep(const ClientCommand& command) {
  if (NumUnderWay(command) == 0) Discard();
}

void ClientSource::TakeState(const ClientCommand& command) {
  if (!command.has_state) return;
  parts_.checkpointer->SetClientState(command.state);
  absl::MutexLock lock(&mutex_);
  state_ = command.state;
}

void ClientSource::Finished(int64_t step) {
  const std::shared_ptr<const ClientCommand> command = steps_.front();
  steps_.pop_front();
  TakeState(*command);
  {
    absl::MutexLock lock(&mutex_);
    welcome_step_ = step;
  }
  nlohmann::json answer = {{"step", step}};
  for (const char* name : {"loss", "grad_norm", "learning_rate", "target_tokens", "skipped", "loss_scale"}) {
    if (const absl::StatusOr<double> value = parts_.executor->Output(name); value.ok()) answer[name] = *value;
  }
  parts_.client_link->Answer(std::move(answer));
}

absl::Status ClientSource::Forward(const ClientCommand& command, nlohmann::json& answer, std::string& bytes) {
  const Batch& batch = BatchOf(command, 0);
  double loss = 0, target_tokens = 0;
  for (size_t m = 0; m < batch.inputs.size(); ++m) {
    const size_t bucket = command.buckets[m];
    TACC_RETURN_IF_ERROR(parts_.executor->RunEval(batch.inputs[m], bucket));
    TACC_RETURN_IF_ERROR(parts_.measurement->Take());
    TACC_ASSIGN_OR_RETURN(const double batch_loss, parts_.executor->Output("loss"));
    TACC_ASSIGN_OR_RETURN(const double batch_tokens, parts_.executor->Output("target_tokens"));
    loss += batch_loss;
    target_tokens += batch_tokens;
    for (const ClientOutput& output : buckets_[bucket].outputs) {
      const Executor::Returned& returned = parts_.executor->returned(bucket)[output.index];
      if (std::find(command.outputs.begin(), command.outputs.end(), returned.name) == command.outputs.end()) continue;
      nlohmann::json described = output.describe;
      described["micro_batch"] = m;
      answer["outputs"].push_back(std::move(described));
      bytes.append(returned.data);
    }
  }
  answer["micro_batches"] = batch.inputs.size();
  answer["loss"] = loss / target_tokens;
  answer["target_tokens"] = target_tokens;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> ClientSource::Counters() {
  std::vector<double> sums;
  const std::vector<int64_t> coordinates = parts_.program.mesh.Coordinates(parts_.start.rank);
  for (const char* name : {"counters/loss", "counters/target_tokens"}) {
    TACC_ASSIGN_OR_RETURN(double value, parts_.states->ReadScalar(name));
    // Ranks that differ on other axes have the same part of the sum.
    const graph::State& state = *parts_.program.FindState(name);
    const auto& pending = state.placement.sharding.pending;
    for (size_t axis = 0; axis < coordinates.size(); ++axis) {
      const bool sums_over = std::find(pending.begin(), pending.end(), static_cast<int>(axis)) != pending.end();
      if (coordinates[axis] != 0 && !sums_over) value = 0;
    }
    TACC_ASSIGN_OR_RETURN(const auto all, parts_.collectives.GatherHost({std::bit_cast<uint64_t>(value)}));
    double sum = 0;
    for (const std::vector<uint64_t>& words : all) sum += std::bit_cast<double>(words[0]);
    sums.push_back(sum);
  }
  return sums;
}

absl::Status ClientSource::RunMicroBatches(const ClientCommand& command, nlohmann::json& answer) {
  const Batch& batch = BatchOf(command, num_micro_batches_);
  if (num_micro_batches_ == 0) of_step_.clear();
  for (size_t m = 0; m < batch.inputs.size(); ++m) {
    const bool is_first = num_micro_batches_ == 0;
    TACC_RETURN_IF_ERROR(parts_.executor->RunMicroBatch({batch.inputs[m]}, is_first, command.buckets[m]));
    TACC_RETURN_IF_ERROR(parts_.measurement->Take());
    of_step_.push_back(command.buckets[m]);
    ++num_micro_batches_;
  }
  TACC_ASSIGN_OR_RETURN(const std::vector<double> counters, Counters());
  if (counters_.empty()) counters_.assign(counters.size(), 0);
  // Sums are answered: a mean is over the targets of all micro-batches of the step.
  answer["loss_sum"] = counters[0] - counters_[0];
  answer["target_tokens"] = counters[1] - counters_[1];
  counters_ = counters;
  last_micro_batch_ = next_;
  step_client_ = command.client;
  return absl::OkStatus();
}

absl::Status ClientSource::Read(const ClientCommand& command, nlohmann::json& answer, std::string& bytes) {
  if (command.states.empty()) {
    answer["states"] = nlohmann::json::array();
    for (const ShardTensor& tensor : parts_.states->DescribeShard()) answer["states"].push_back(tensor.name);
    return absl::OkStatus();
  }
  answer["parts"] = nlohmann::json::array();
  for (const std::string& name : command.states) {
    TACC_ASSIGN_OR_RETURN(const RankStates::Shard shard, parts_.states->MakePart(name));
    for (const ShardTensor& tensor : shard.tensors) {
      answer["parts"].push_back({{"name", name},
                                 {"dtype", tensor.dtype},
                                 {"shape", tensor.shape},
                                 {"merged_dims", tensor.merged_dims},
                                 {"offset", tensor.rectangle.offset},
                                 {"extent", tensor.rectangle.shape}});
      bytes.append(shard.copies[&tensor - shard.tensors.data()].data(),
                   shard.copies[&tensor - shard.tensors.data()].size());
    }
  }
  return absl::OkStatus();
}

absl::Status ClientSource::Load(const ClientCommand& command, nlohmann::json& answer) {
  absl::StatusOr<std::string> folder = command.path;
  if (!command.upload.empty()) {
    // Its daemon fetches it, once for the ranks of its machine.
    parts_.events.Write(protocol::FetchEvent{command.upload});
    folder = parts_.commands.WaitForUpload(command.upload, [this] { parts_.Beat(); });
  }
  using Tensors = absl::StatusOr<std::unique_ptr<ModelWeights>>;
  const Tensors tensors = folder.ok() ? ModelWeights::Open(*folder) : Tensors(folder.status());
  absl::Status status = tensors.status();
  if (status.ok()) status = parts_.states->CheckTensors(**tensors);
  status = AgreeOnStatus(parts_.collectives, status);
  if (!status.ok()) {
    answer["error"] = std::string(status.message());
    return absl::OkStatus();
  }
  return parts_.states->LoadTensors(**tensors);
}

absl::Status ClientSource::Save(int64_t step, const std::function<absl::Status()>& save, nlohmann::json& answer) {
  TACC_RETURN_IF_ERROR(save());
  TACC_RETURN_IF_ERROR(parts_.checkpointer->Wait());
  if (parts_.checkpointer->last_saved_step() == step) {
    answer["checkpoint"] = parts_.checkpointer->last_saved_path();
  } else {
    answer["error"] =
        absl::StrCat("the checkpoint could not be written",
                     parts_.saves_checkpoints() ? "; the job's warnings say why" : ": the job has no checkpoint.dir");
  }
  return absl::OkStatus();
}

absl::Status ClientSource::Serve(int64_t step, const std::function<absl::Status()>& save) {
  parts_.client_link->Take(next_);
  nlohmann::json answer = {{"step", step}};
  std::string bytes;
  if (refusal_.empty()) LeaveOthersStep(*next_);
  if (!refusal_.empty()) {
    answer["error"] = refusal_;
  } else if (next_->kind == Kind::kForward) {
    TACC_RETURN_IF_ERROR(Forward(*next_, answer, bytes));
  } else if (next_->kind == Kind::kMicroBatch) {
    TACC_RETURN_IF_ERROR(RunMicroBatches(*next_, answer));
  } else if (next_->kind == Kind::kDiscard) {
    Discard();
  } else if (next_->kind == Kind::kRead) {
    TACC_RETURN_IF_ERROR(Read(*next_, answer, bytes));
  } else if (next_->kind == Kind::kLoad) {
    TACC_RETURN_IF_ERROR(Load(*next_, answer));
  } else {
    TakeState(*next_);
    TACC_RETURN_IF_ERROR(Save(step, save, answer));
  }
  parts_.client_link->Answer(std::move(answer), std::move(bytes));
  return absl::OkStatus();
}

void ClientSource::End() {
  if (next_ == nullptr || next_->kind != Kind::kClose || !refusal_.empty()) return;
  TakeState(*next_);
  parts_.client_link->Take(next_);
  parts_.client_link->Answer({{"step", next_->step}});
}

std::string ClientSource::GiveUpReason() const {
  return absl::StrCat("no client has come for ", parts_.start.client_wait_seconds,
                      " seconds (data.client.wait_seconds); submit the job again to go on");
}

}  // namespace tacc::worker
