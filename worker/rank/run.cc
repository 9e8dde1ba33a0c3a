#include "worker/rank/run.h"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "machine/clock.h"
#include "machine/machine.h"
#include "worker/checkpoint/export.h"
#include "worker/checkpoint/posix_file.h"
#include "worker/checkpoint/reader.h"
#include "worker/rank/agreement.h"
#include "worker/rank/arena.h"
#include "worker/rank/batches.h"
#include "worker/rank/checkpointer.h"
#include "worker/rank/commands.h"
#include "worker/rank/device_metrics.h"
#include "worker/rank/events.h"
#include "worker/rank/failure_codes.h"
#include "worker/rank/gloo_transport.h"
#include "worker/rank/profile.h"
#include "worker/rank/rank_trace.h"
#include "worker/rank/runtime.h"
#include "worker/rank/start_file.h"
#include "worker/rank/step_timer.h"

namespace tacc::worker {
namespace {

using nlohmann::json;

constexpr int64_t kMaxProgramBytes = 512 << 20;
// Updates skipped in a row because the gradient norm was not finite, before the run gives up.
constexpr int kMaxSkippedInARow = 10;

class RankRun {
 public:
  RankRun(const RunOptions& options, StartFile start, EventWriter* events, CommandReader* commands)
      : options_(options),
        start_(std::move(start)),
        events_(*events),
        commands_(*commands),
        collectives_(start_.rank, start_.world) {}

  // The exit code; a failure has been reported.
  int Run() {
    const double begin = SteadySeconds();
    if (absl::Status status = LoadAndConnect(); !status.ok()) {
      BlameDevice(status);
      return Fail(failure_code_ != nullptr ? failure_code_ : LoadCodeOf(status), std::string(status.message()));
    }
    json ready = {{"step", steps_done_},
                  {"resumed_from", resumed_from_},
                  {"load_seconds", SteadySeconds() - begin},
                  {"arena_bytes", arena_ == nullptr ? 0 : arena_->arena_bytes()}};
    metrics_->AddToReady(&ready);
    if (const std::vector<graph::CapturePart> parts = executor_->Parts(); !parts.empty()) {
      ready["capture"] = CaptureJson(parts);
      events_.Log(graph::InWords(parts));
    }
    events_.Write("ready", std::move(ready));
    if (profiles()) executor_->SetTimer(timer_.get());
    absl::Status status = Train();
    if (profiles()) profile_.Write(options_.profile_path, collectives_.stats(), program_, options_.allocator);
    if (!status.ok()) {
      BlameDevice(status);
      return Fail(failure_code_ != nullptr ? failure_code_ : CodeOf(status), std::string(status.message()));
    }
    events_.Write(stopped_ ? "stopped" : "finished", {{"step", steps_done_}});
    // What the GPUs have sent each other has come everywhere before the first of them goes.
    if (talk_.queue != nullptr) (void)collectives_.Barrier();
    return kExitOk;
  }

  // Before the end of a process that takes nothing apart.
  void FinishWriting() {
    if (checkpointer_ != nullptr) checkpointer_->JoinThread();
  }

 private:
  // What a failed device leaves behind are errors of whatever was asked of it. It is not waited for: it may itself wait
  // for a rank that has gone.
  void BlameDevice(const absl::Status& status) {
    if (failure_code_ == nullptr && device_ != nullptr && !absl::IsResourceExhausted(status) && !device_->Check().ok())
      failure_code_ = "device";
  }

  int Fail(const char* code, const std::string& message) {
    events_.Failed(code, message);
    return ExitCode(code);
  }

  // --- Loading ---
  absl::Status LoadAndConnect() {
    TACC_RETURN_IF_ERROR(OpenStatusBlock());
    TACC_RETURN_IF_ERROR(LoadProgram());
    if (start_.world > 1 && start_.rank == 0) {
      TACC_ASSIGN_OR_RETURN(server_, RendezvousServer::Start(start_.advertise, start_.world, timeout()));
      events_.Write("listening", {{"port", server_->port()}});
    }
    Now(Activity::kBinding);
    TACC_RETURN_IF_ERROR(Hit("before_load"));
    TACC_RETURN_IF_ERROR(Bind());
    const absl::Status loaded = LoadStates();
    Now(Activity::kMeeting);
    if (start_.world > 1) TACC_RETURN_IF_ERROR(transport_ == nullptr ? Connect() : transport_->WaitForAll());
    TACC_RETURN_IF_ERROR(AgreeOnStates(loaded));
    TACC_RETURN_IF_ERROR(Hit("after_load"));
    Now(Activity::kOpeningData);
    const absl::Status opened = OpenData();
    Now(Activity::kMeeting);
    TACC_RETURN_IF_ERROR(AgreeOnStatus(collectives_, opened));
    Now(Activity::kBetweenSteps);
    return absl::OkStatus();
  }

  void Now(Activity activity) {
    if (status_block_ != nullptr) status_block_->SetActivity(activity);
  }

  void Beat() {
    if (status_block_ != nullptr) status_block_->Beat();
  }

  absl::Status Hit(const char* failpoint) {
    return options_.failpoints == nullptr ? absl::OkStatus() : options_.failpoints->Hit(failpoint);
  }

  absl::Duration timeout() const { return absl::Seconds(start_.collective_timeout_seconds); }

  absl::Status OpenStatusBlock() {
    if (options_.status_shm.empty()) return absl::OkStatus();
    TACC_ASSIGN_OR_RETURN(status_block_, StatusBlock::Open(options_.status_shm));
    return absl::OkStatus();
  }

  absl::Status LoadProgram() {
    TACC_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(start_.program, kMaxProgramBytes));
    graph::ParseOptions parse;
    parse.file = start_.program;
    TACC_ASSIGN_OR_RETURN(program_, graph::ParseProgram(text, parse));
    if (program_.mesh.num_ranks() != start_.world) {
      return absl::InvalidArgumentError(absl::StrCat(start_.program, ": its mesh ", program_.mesh.ToString(), " has ",
                                                     program_.mesh.num_ranks(), " ranks, but world = ", start_.world));
    }
    const int64_t stage = program_.num_stages > 1 ? graph::StageOf(program_.mesh, start_.rank) : 0;
    if (program_.stage != stage) {
      return absl::InvalidArgumentError(absl::StrCat(start_.program, ": it is stage ", program_.stage, " of ",
                                                     program_.num_stages, ", but rank ", start_.rank, " of ",
                                                     start_.world, " runs stage ", stage));
    }
    if (absl::Status status = options_.verify(program_); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(start_.program, ": ", status.message()));
    }
    return absl::OkStatus();
  }

  absl::Status OpenDevice() {
    ConfigureThreads(start_.threads);
    const absl::StatusOr<Device*> device = options_.open_device(start_);
    if (!device.ok()) {
      if (!absl::IsNotFound(device.status()) && !absl::IsResourceExhausted(device.status())) failure_code_ = "device";
      return device.status();
    }
    device_ = *device;
    metrics_ = std::make_unique<DeviceMetrics>(device_);
    return absl::OkStatus();
  }

  absl::Status Bind() {
    TACC_RETURN_IF_ERROR(OpenDevice());
    if (!device_->is_asynchronous()) return BindProgram(&collectives_);
    if (start_.world == 1) {
      TACC_RETURN_IF_ERROR(BindProgram(&collectives_));
      return executor_->WarmUp();
    }
    // Ranks on GPUs meet before they bind: where they run decides how they talk, and that what is bound.
    Now(Activity::kMeeting);
    TACC_RETURN_IF_ERROR(Connect());
    TACC_ASSIGN_OR_RETURN(talk_, options_.choose_talk({&collectives_, timeout(), status_block_.get()}));
    if (start_.rank == 0 && !talk_.detour.empty()) events_.Warning("shared_gpu", talk_.detour);
    Now(Activity::kBinding);
    const absl::Status bound = BindProgram(talk_.queue.get());
    Now(Activity::kMeeting);
    TACC_RETURN_IF_ERROR(AgreeOnStatus(collectives_, bound));
    TACC_RETURN_IF_ERROR(talk_.queue->Open());
    Now(Activity::kBinding);
    return executor_->WarmUp();
  }

  absl::Status BindProgram(CollectiveQueue* collectives) {
    ExecutorOptions executor;
    executor.program = &program_;
    executor.rank = start_.rank;
    executor.device = device_;
    executor.aliases = options_.aliases;
    executor.collectives = collectives;
    executor.status = status_block_.get();
    executor.failpoints = options_.failpoints;
    if (program_.level == graph::Level::kPlanned) {
      const int64_t needed = program_.arena_bytes + program_.workspace_bytes;
      if (start_.memory_bytes > 0 && needed > start_.memory_bytes) {
        return absl::ResourceExhaustedError(absl::StrCat("the program needs ", needed, " bytes (arena ",
                                                         program_.arena_bytes, ", workspace ", program_.workspace_bytes,
                                                         "), but this rank has ", start_.memory_bytes));
      }
      TACC_ASSIGN_OR_RETURN(arena_, device_->CreateArena(program_.arena_bytes, program_.workspace_bytes));
      executor.arena = arena_.get();
    }
    TACC_ASSIGN_OR_RETURN(executor_, Executor::Create(executor));
    timer_ = std::make_unique<StepTimer>(device_, executor.collectives);
    const std::string& trace_path = options_.trace_path.empty() ? start_.trace_path : options_.trace_path;
    trace_ = std::make_unique<RankTrace>(RankTrace::Request{trace_path, start_.trace_step}, &program_, options_.ops,
                                         &collectives_, &events_);
    states_ = std::make_unique<RankStates>(
        &program_, start_.rank, device_, [this](const std::string& name) { return executor_->state(name); },
        [this] { Beat(); });
    checkpointer_ = std::make_unique<Checkpointer>(&start_, &program_, device_, states_.get(), &collectives_, &events_,
                                                   options_.failpoints, SpareBytes());
    return absl::OkStatus();
  }

  // Memory of the host that this rank may take beside its libraries and its program.
  int64_t SpareBytes() const {
    // All ranks may be on this machine; half of what it has is left to others.
    if (device_->is_asynchronous()) return ThisMachine().available_memory_bytes / 2 / start_.world;
    if (start_.memory_bytes == 0) return std::numeric_limits<int64_t>::max();
    // Nothing has touched the arena yet.
    const int64_t planned = arena_ == nullptr ? 0 : program_.arena_bytes + program_.workspace_bytes;
    return start_.memory_bytes - planned - ResidentBytes();
  }

  std::string ResumePath() const {
    return absl::StartsWith(start_.resume, "/") ? start_.resume
                                                : absl::StrCat(start_.checkpoint_dir, "/", start_.resume);
  }

  absl::Status LoadStates() {
    if (!start_.resume.empty()) return LoadCheckpoint(ResumePath());
    Now(Activity::kLoadingWeights);
    if (start_.weights == StartFile::Weights::kRandom) return states_->Initialize(nullptr, start_.seed);
    TACC_ASSIGN_OR_RETURN(const std::unique_ptr<ModelWeights> weights, ModelWeights::Open(start_.model_dir));
    return states_->Initialize(weights.get(), start_.seed);
  }

  absl::Status LoadCheckpoint(const std::string& path) {
    Now(Activity::kLoadingCheckpoint);
    TACC_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
    // The ranks share the work of reading everything once.
    TACC_RETURN_IF_ERROR(checkpoint->VerifyData(start_.rank, start_.world, [this] { Beat(); }));
    TACC_RETURN_IF_ERROR(states_->Load(*checkpoint));
    steps_done_ = checkpoint->manifest().step;
    resumed_from_ = path.substr(path.rfind('/') + 1);
    return absl::OkStatus();
  }

  absl::Status Connect() {
    Endpoint store{start_.advertise, server_ == nullptr ? 0 : server_->port()};
    if (start_.rank != 0) store = commands_.WaitForRendezvous();
    GlooOptions gloo;
    gloo.rank = start_.rank;
    gloo.world = start_.world;
    gloo.attempt = start_.attempt;
    gloo.advertise = start_.advertise;
    gloo.store = store;
    gloo.timeout = timeout();
    TACC_ASSIGN_OR_RETURN(transport_, ConnectGloo(gloo));
    collectives_.Connect(transport_.get());
    return absl::OkStatus();
  }

  // All ranks begin with the same states, or none does. A checkpoint that any rank finds damaged is left for the one
  // before it, unless the user named it by its path.
  absl::Status AgreeOnStates(absl::Status loaded) {
    while (true) {
      const absl::Status agreed = AgreeOnStatus(collectives_, loaded);
      if (agreed.ok()) return absl::OkStatus();
      if (!loaded.ok() && !start_.resume.empty()) events_.Warning("checkpoint_damaged", std::string(loaded.message()));
      if (start_.resume.empty() || absl::StartsWith(start_.resume, "/")) return agreed;
      const std::string older = OlderCheckpoint(start_.resume);
      if (older.empty()) return agreed;
      start_.resume = older;
      loaded = LoadCheckpoint(ResumePath());
      Now(Activity::kMeeting);
    }
  }

  // The newest checkpoint before `name` whose structure is whole; empty when there is none. The same on every rank:
  // they see one directory.
  std::string OlderCheckpoint(const std::string& name) const {
    const auto entries = ListCheckpoints(start_.checkpoint_dir);
    if (!entries.ok()) return "";
    bool is_older = false;
    for (const CheckpointEntry& entry : *entries) {
      if (is_older && entry.status.ok()) return entry.name;
      is_older = is_older || entry.name == name;
    }
    return "";
  }

  absl::Status OpenData() {
    BatchOptions batches;
    batches.program = &program_;
    batches.rank = start_.rank;
    batches.num_micro_batches = executor_->num_micro_batches();
    batches.inputs = &executor_->inputs();
    batches.seq_len = start_.seq_len;
    batches.global_batch_size = start_.global_batch_size;
    batches.seed = start_.seed;
    TACC_ASSIGN_OR_RETURN(dataset_, Dataset::Open(start_.data_path));
    TACC_ASSIGN_OR_RETURN(train_batches_, TrainBatches::Create(batches, dataset_.get(), steps_done_));
    const std::string& eval_dir = start_.eval_path;
    if (!executor_->has_eval() || eval_dir.empty()) return absl::OkStatus();
    TACC_ASSIGN_OR_RETURN(eval_dataset_, Dataset::Open(eval_dir));
    TACC_ASSIGN_OR_RETURN(eval_batches_, EvalBatches::Create(batches, eval_dataset_.get()));
    return absl::OkStatus();
  }

  // --- Training ---

  // A step that was launched: what its event says of it.
  struct Launched {
    double begin = 0;
    double data_wait = 0;
    uint64_t batch_hash = 0;
  };

  absl::Status Train() {
    if (status_block_ != nullptr) status_block_->SetStep(steps_done_);
    const int64_t first_step = steps_done_;
    TACC_RETURN_IF_ERROR(trace_->Agree(steps_done_, start_.max_steps));
    for (int64_t steps_launched = steps_done_;;) {
      const bool is_last = steps_launched >= start_.max_steps;
      const double begin = SteadySeconds();
      const absl::Status data = is_last ? absl::OkStatus() : train_batches_->Next();
      const double data_wait = SteadySeconds() - begin;
      TACC_RETURN_IF_ERROR(Agree(data));
      if (stopped_ || checkpoint_wanted_ || is_last) TACC_RETURN_IF_ERROR(FinishSteps(0));
      if (stopped_) return SavesCheckpoints() ? checkpointer_->Save(steps_done_) : absl::OkStatus();
      if (checkpoint_wanted_ && !is_last) TACC_RETURN_IF_ERROR(StartCheckpoint());
      if (is_last) return Finish(first_step);
      if (launched_.empty()) communication_seconds_ = collectives_.stats().wait_seconds;
      const bool traces = steps_launched + 1 == trace_->step();
      if (traces) TACC_RETURN_IF_ERROR(FinishSteps(0));
      if (traces) executor_->SetTimer(timer_.get());
      TACC_RETURN_IF_ERROR(executor_->Launch(train_batches_->inputs()));
      launched_.push_back({begin, data_wait, batch_hash_});
      ++steps_launched;
      const bool at_end = steps_launched >= start_.max_steps;
      const bool evaluates = at_end || (start_.eval_steps > 0 && steps_launched % start_.eval_steps == 0);
      const bool saves = start_.save_steps > 0 && steps_launched % start_.save_steps == 0 && !at_end;
      // A device that is behind the host always has its next step waiting.
      const bool goes_on = device_->is_asynchronous() && !evaluates && !saves && !traces && !profiles();
      TACC_RETURN_IF_ERROR(FinishSteps(goes_on ? Executor::kMaxInFlight - 1 : 0));
      if (traces) TACC_RETURN_IF_ERROR(FinishTrace());
      if (evaluates) TACC_RETURN_IF_ERROR(Evaluate());
      if (saves) TACC_RETURN_IF_ERROR(StartCheckpoint());
    }
  }

  // The ranks tell each other what they were asked for, what they read, and how far their part of a checkpoint is.
  absl::Status Agree(const absl::Status& data) {
    const CommandCounts counts = commands_.counts();
    const uint64_t hash = data.ok() ? train_batches_->hash() : 0;
    const uint64_t progress = static_cast<uint64_t>(checkpointer_->progress());
    TACC_ASSIGN_OR_RETURN(const auto all, collectives_.GatherHost(
                                              {counts.checkpoints, counts.stops, hash, data.ok() ? 0u : 1u, progress}));
    if (std::any_of(all.begin(), all.end(), [](const auto& values) { return values[3] != 0; }))
      return AgreeOnStatus(collectives_, data);
    uint64_t checkpoints = 0;
    std::vector<Checkpointer::Progress> saving;
    batch_hash_ = 0;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      checkpoints = std::max(checkpoints, all[rank][0]);
      stopped_ = stopped_ || all[rank][1] > 0;
      batch_hash_ += all[rank][2];
      saving.push_back(static_cast<Checkpointer::Progress>(all[rank][4]));
    }
    checkpointer_->Advance(saving);
    checkpoint_wanted_ = checkpoints > checkpoints_done_;
    checkpoints_done_ = checkpoints;
    return absl::OkStatus();
  }

  // Ends the oldest steps until at most `num_in_flight` are left.
  absl::Status FinishSteps(int64_t num_in_flight) {
    while (executor_->num_in_flight() > num_in_flight) TACC_RETURN_IF_ERROR(FinishStep());
    return absl::OkStatus();
  }

  bool profiles() const { return !options_.profile_path.empty(); }

  absl::Status TakeTimes() {
    TACC_ASSIGN_OR_RETURN(times_, timer_->Take());
    if (profiles()) profile_.Add(program_, times_);
    return absl::OkStatus();
  }

  absl::Status FinishTrace() {
    if (!profiles()) executor_->SetTimer(nullptr);
    return trace_->Finish(times_);
  }

  absl::Status FinishStep() {
    TACC_RETURN_IF_ERROR(executor_->Finish());
    TACC_RETURN_IF_ERROR(TakeTimes());
    const Launched step = launched_.front();
    launched_.pop_front();
    ++steps_done_;
    if (status_block_ != nullptr) status_block_->SetStep(steps_done_);
    // Of steps that follow each other without a gap, the time from one's end to the next one's.
    const double now = SteadySeconds(), seconds = now - std::max(step.begin, last_finish_seconds_);
    last_finish_seconds_ = now;
    const double waited = collectives_.stats().wait_seconds, communication = waited - communication_seconds_;
    communication_seconds_ = waited;
    TACC_ASSIGN_OR_RETURN(const double loss, executor_->Output("loss"));
    TACC_ASSIGN_OR_RETURN(const double grad_norm, executor_->Output("grad_norm"));
    TACC_ASSIGN_OR_RETURN(const double learning_rate, executor_->Output("learning_rate"));
    TACC_ASSIGN_OR_RETURN(const double target_tokens, executor_->Output("target_tokens"));
    TACC_ASSIGN_OR_RETURN(const double skipped, executor_->Output("skipped"));
    const absl::StatusOr<double> loss_scale = executor_->Output("loss_scale");
    const int64_t tokens = start_.global_batch_size * start_.seq_len;
    if (start_.rank == 0) {
      nlohmann::json event = {{"step", steps_done_},
                              {"loss", loss},
                              {"grad_norm", grad_norm},
                              {"learning_rate", learning_rate},
                              {"tokens", tokens},
                              {"target_tokens", static_cast<int64_t>(target_tokens)},
                              {"seconds", seconds},
                              {"data_wait_seconds", step.data_wait},
                              {"communication_seconds", communication},
                              {"tokens_per_second", static_cast<double>(tokens) / seconds},
                              {"batch_hash", HashText(step.batch_hash)},
                              {"skipped", skipped != 0 ? 1 : 0}};
      const absl::StatusOr<double> overflow = executor_->Output("expert_overflow");
      if (overflow.ok()) event["expert_overflow"] = static_cast<int64_t>(*overflow);
      if (loss_scale.ok()) event["loss_scale"] = *loss_scale;
      metrics_->AddToStep(executor_->busy_seconds(), seconds, &event);
      events_.Write("step", std::move(event));
    }
    // A skipped step is nothing to speak of while it can be the loss scale's fault.
    const bool halves_scale = loss_scale.ok() && *loss_scale > graph::kLeastLossScale;
    skipped_in_a_row_ = skipped != 0 && !halves_scale ? skipped_in_a_row_ + 1 : 0;
    if (skipped_in_a_row_ == 0) return absl::OkStatus();
    if (start_.rank == 0) {
      events_.Warning("nonfinite",
                      absl::StrCat("step ", steps_done_, ": the gradient norm is not finite; the update was skipped (",
                                   skipped_in_a_row_, " in a row)"));
    }
    return skipped_in_a_row_ < kMaxSkippedInARow ? absl::OkStatus() : StopAsNonfinite(step.batch_hash);
  }

  // Every rank sees the same norm; the one to name is the first whose own part of the loss or of the gradients is not
  // finite.
  absl::Status StopAsNonfinite(uint64_t batch_hash) {
    bool loss_ok = true, gradients_ok = true;
    for (const graph::State& state : program_.states) {
      if (state.kind != graph::StateKind::kCounter && state.kind != graph::StateKind::kGradient) continue;
      TACC_ASSIGN_OR_RETURN(const bool is_finite, states_->IsFinite(state.name));
      if (!is_finite) (state.kind == graph::StateKind::kCounter ? loss_ok : gradients_ok) = false;
    }
    TACC_ASSIGN_OR_RETURN(const auto all, collectives_.GatherHost({loss_ok ? 0u : 1u, gradients_ok ? 0u : 1u}));
    std::string place = "every rank's loss and gradients are finite, their sum is not";
    for (const int what : {1, 0}) {
      for (size_t rank = all.size(); rank-- > 0;) {
        if (all[rank][what] != 0)
          place = absl::StrCat("first on rank ", rank, ", in its ", what == 0 ? "loss" : "gradients");
      }
    }
    // The states of the one under way are good ones.
    TACC_RETURN_IF_ERROR(checkpointer_->Wait());
    failure_code_ = "nonfinite";
    return absl::InternalError(absl::StrCat(
        "the gradient norm was not finite in ", kMaxSkippedInARow, " steps in a row, the last is step ", steps_done_,
        ", batch ", HashText(batch_hash), "; ", place,
        ". The last checkpoint is from before; lower the learning rate or look at the batch with `taccctl data show`"));
  }

  absl::Status Evaluate() {
    if (eval_batches_ == nullptr) return absl::OkStatus();
    const double begin = SteadySeconds();
    double loss = 0, target_tokens = 0;
    for (int64_t i = 0; i < eval_batches_->num_batches(); ++i) {
      TACC_ASSIGN_OR_RETURN(const std::vector<const void*>* inputs, eval_batches_->Read(i));
      TACC_RETURN_IF_ERROR(executor_->RunEval(*inputs));
      TACC_RETURN_IF_ERROR(TakeTimes());
      TACC_ASSIGN_OR_RETURN(const double batch_loss, executor_->Output("loss"));
      TACC_ASSIGN_OR_RETURN(const double batch_tokens, executor_->Output("target_tokens"));
      loss += batch_loss;
      target_tokens += batch_tokens;
    }
    if (start_.rank == 0 && target_tokens > 0) {
      events_.Write("eval", {{"step", steps_done_},
                             {"eval_loss", loss / target_tokens},
                             {"target_tokens", static_cast<int64_t>(target_tokens)},
                             {"seconds", SteadySeconds() - begin}});
    }
    return absl::OkStatus();
  }

  bool SavesCheckpoints() const { return !start_.checkpoint_dir.empty(); }

  // A checkpoint of the states as they are, written while training goes on.
  absl::Status StartCheckpoint() { return SavesCheckpoints() ? checkpointer_->Start(steps_done_) : absl::OkStatus(); }

  absl::Status Finish(int64_t first_step) {
    if (!SavesCheckpoints()) return absl::OkStatus();
    std::string checkpoint = start_.resume.empty() ? "" : ResumePath();
    if (steps_done_ > first_step || checkpoint.empty()) {
      TACC_RETURN_IF_ERROR(checkpointer_->Save(steps_done_));
      if (checkpointer_->last_saved_step() != steps_done_) {
        return absl::InternalError(absl::StrCat("the last checkpoint, of step ", steps_done_,
                                                ", could not be written; see the warning before"));
      }
      checkpoint = checkpointer_->last_saved_path();
    }
    if (start_.rank != 0 || start_.export_dir.empty()) return absl::OkStatus();
    ExportRequest request;
    request.checkpoint = checkpoint;
    request.model_dir = start_.model_dir;
    request.out_dir = start_.export_dir;
    TACC_RETURN_IF_ERROR(ExportCheckpoint(request).status());
    events_.Write("exported", {{"path", start_.export_dir}});
    return absl::OkStatus();
  }

  const RunOptions& options_;
  StartFile start_;
  EventWriter& events_;
  CommandReader& commands_;
  std::unique_ptr<StatusBlock> status_block_;
  graph::Program program_;
  Device* device_ = nullptr;
  std::unique_ptr<DeviceMetrics> metrics_;  // Of device_.
  std::unique_ptr<RendezvousServer> server_;
  std::unique_ptr<Transport> transport_;
  Collectives collectives_;
  std::unique_ptr<Arena> arena_;
  RankTalk talk_;  // Of ranks on asynchronous devices.
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<StepTimer> timer_;
  std::unique_ptr<RankTrace> trace_;
  StepTimes times_;  // Of the step that was timed last.
  Profile profile_;
  std::unique_ptr<RankStates> states_;
  std::unique_ptr<Checkpointer> checkpointer_;
  std::unique_ptr<Dataset> dataset_;
  std::unique_ptr<TrainBatches> train_batches_;
  std::unique_ptr<Dataset> eval_dataset_;
  std::unique_ptr<EvalBatches> eval_batches_;

  int64_t steps_done_ = 0;
  std::string resumed_from_;
  uint64_t batch_hash_ = 0;           // Of the batch that was read last.
  std::deque<Launched> launched_;     // And not finished.
  double last_finish_seconds_ = 0;    // When a step ended last.
  double communication_seconds_ = 0;  // In which the steps until then have waited for others.
  uint64_t checkpoints_done_ = 0;     // Of the checkpoint commands.
  bool checkpoint_wanted_ = false;
  bool stopped_ = false;
  int skipped_in_a_row_ = 0;
  const char* failure_code_ = nullptr;
};

}  // namespace

int RunRank(const RunOptions& options) {
  EventWriter events(options.event_fd);
  events.Write("started", {{"pid", getpid()}, {"version", options.version}});
  absl::StatusOr<StartFile> start = ReadStartFile(options.start_file);
  if (!start.ok()) {
    events.Failed("bad_input", std::string(start.status().message()));
    return kExitBadInput;
  }
  if (start->version != options.version) {
    events.Failed("bad_input", absl::StrCat("the start file is of version ", start->version, ", tacc-rank is ",
                                            options.version, "; install the same version everywhere"));
    return kExitBadInput;
  }
  // Outlives the run by design: its thread may be in read() until the process ends.
  CommandReader commands(options.command_fd, &events, [] { _exit(kExitError); });
  auto run = std::make_unique<RankRun>(options, *std::move(start), &events, &commands);
  const int code = run->Run();
  if (code == kExitOk) return code;
  // Nothing is taken apart that may wait for a GPU that has failed or a rank that has gone: the process ends.
  run->FinishWriting();
  (void)run.release();
  return code;
}

}  // namespace tacc::worker
