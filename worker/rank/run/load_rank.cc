#include "worker/rank/run/load_rank.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "graph/ops/torch/aten_call.h"
#include "machine/device_name.h"
#include "machine/machine.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/export.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/rank/collectives/agreement.h"
#include "worker/rank/protocol/failure_codes.h"
#include "worker/rank/run/client_source.h"
#include "worker/rank/run/data_source.h"
#include "worker/rank/state/model_check.h"
#include "worker/rank/torch/op_libraries.h"
#include "worker/rank/torch/runtime.h"
#include "worker/rank/tuning/attention_choice.h"
#include "worker/rank/tuning/product_choice.h"

namespace tacc::worker {
namespace {

constexpr int64_t kMaxProgramBytes = 512 << 20;

absl::Duration Timeout(const StartFile& start) { return absl::Seconds(start.collective_timeout_seconds); }

absl::Status Hit(const RankParts& parts, const char* failpoint) {
  return parts.options.failpoints == nullptr ? absl::OkStatus() : parts.options.failpoints->Hit(failpoint);
}

absl::StatusOr<graph::Program> ParseProgram(const RankParts& parts, absl::string_view text) {
  const StartFile& start = parts.start;
  graph::ParseOptions parse;
  parse.file = start.program;
  TACC_ASSIGN_OR_RETURN(graph::Program program, graph::ParseProgram(text, parse));
  if (program.mesh.num_ranks() != start.world) {
    return absl::InvalidArgumentError(absl::StrCat(start.program, ": its mesh ", program.mesh.ToString(), " has ",
                                                   program.mesh.num_ranks(), " ranks, but world = ", start.world));
  }
  const int64_t stage = program.num_stages > 1 ? graph::StageOf(program.mesh, start.rank) : 0;
  if (program.stage != stage) {
    return absl::InvalidArgumentError(absl::StrCat(start.program, ": it is stage ", program.stage, " of ",
                                                   program.num_stages, ", but rank ", start.rank, " of ", start.world,
                                                   " runs stage ", stage));
  }
  if (absl::Status status = parts.options.verify(program); !status.ok())
    return absl::InvalidArgumentError(absl::StrCat(start.program, ": ", status.message()));
  return program;
}

absl::Status LoadProgram(RankParts& parts) {
  TACC_ASSIGN_OR_RETURN(const std::string text, OfFiles(ReadSmallFile(parts.start.program, kMaxProgramBytes)));
  const std::vector<absl::string_view> texts = graph::SplitPrograms(text);
  TACC_ASSIGN_OR_RETURN(parts.program, ParseProgram(parts, texts[0]));
  for (size_t i = 1; i < texts.size(); ++i) {
    TACC_ASSIGN_OR_RETURN(graph::Program other, ParseProgram(parts, texts[i]));
    parts.others.push_back(std::move(other));
  }
  return absl::OkStatus();
}

absl::Status StartServer(RankParts& parts) {
  const StartFile& start = parts.start;
  if (start.world == 1 || start.rank != 0) return absl::OkStatus();
  TACC_ASSIGN_OR_RETURN(parts.server,
                        RendezvousServer::Start({start.advertise, start.local_folder, start.world, Timeout(start)}));
  const Endpoint& endpoint = parts.server->endpoint();
  parts.events.Write(protocol::ListeningEvent{.port = endpoint.port, .file = endpoint.file, .secret = endpoint.secret});
  return absl::OkStatus();
}

absl::Status OpenDevice(RankParts& parts) {
  ConfigureThreads(parts.start.threads);
  const absl::StatusOr<Device*> device = parts.options.open_device(parts.start);
  if (!device.ok()) {
    const bool is_other_fault = absl::IsNotFound(device.status()) || absl::IsResourceExhausted(device.status());
    return is_other_fault ? device.status() : WithFailureCode(device.status(), "device");
  }
  parts.device = *device;
  parts.metrics = std::make_unique<DeviceMetrics>(parts.device);
  return absl::OkStatus();
}

absl::Status Connect(RankParts& parts) {
  const StartFile& start = parts.start;
  GlooOptions gloo;
  gloo.rank = start.rank;
  gloo.world = start.world;
  gloo.attempt = start.attempt;
  gloo.advertise = start.advertise;
  gloo.store = start.rank == 0 ? parts.server->endpoint() : parts.commands.WaitForRendezvous();
  gloo.timeout = Timeout(start);
  TACC_ASSIGN_OR_RETURN(parts.transport, ConnectGloo(gloo));
  parts.collectives.Connect(parts.transport.get());
  return absl::OkStatus();
}

absl::Status CreateArena(RankParts& parts) {
  if (parts.program.level != graph::Level::kPlanned) return absl::OkStatus();
  int64_t arena_bytes = parts.program.arena_bytes, workspace_bytes = parts.program.workspace_bytes;
  for (const graph::Program& other : parts.others) {
    arena_bytes = std::max(arena_bytes, other.arena_bytes);
    workspace_bytes = std::max(workspace_bytes, other.workspace_bytes);
  }
  const int64_t needed = arena_bytes + workspace_bytes;
  if (parts.start.memory_bytes > 0 && needed > parts.start.memory_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the program needs ", needed, " bytes (arena ", arena_bytes,
                                                     ", workspace ", workspace_bytes, "), but this rank has ",
                                                     parts.start.memory_bytes));
  }
  TACC_ASSIGN_OR_RETURN(parts.arena, parts.device->CreateArena(arena_bytes, workspace_bytes));
  return absl::OkStatus();
}

// Memory of the host that this rank may take beside its libraries and its program.
int64_t SpareBytes(const RankParts& parts) {
  // All ranks may be on this machine; half of what it has is left to others.
  if (parts.device->is_asynchronous()) return ThisMachine().available_memory_bytes / 2 / parts.start.world;
  if (parts.start.memory_bytes == 0) return std::numeric_limits<int64_t>::max();
  // Nothing has touched the arena yet.
  const int64_t planned = parts.arena == nullptr ? 0 : parts.program.arena_bytes + parts.program.workspace_bytes;
  return parts.start.memory_bytes - planned - ResidentBytes();
}

// Before the time-out of the collectives, by which other ranks would only say that this one did not answer.
constexpr double kPatienceOfTimeout = 0.75;

absl::Status WatchDevice(RankParts& parts, const CollectiveQueue* collectives) {
  if (!parts.device->is_asynchronous()) return absl::OkStatus();
  DeviceWatch::Options watch;
  watch.patience = kPatienceOfTimeout * Timeout(parts.start);
  watch.collectives = [collectives] { return collectives->Progress(); };
  watch.on_stop = parts.end_process;
  TACC_ASSIGN_OR_RETURN(parts.watch, DeviceWatch::Create(parts.device, std::move(watch)));
  return absl::OkStatus();
}

// Of NCCL's, LibTorch's and CUDA's own memory nothing else tells: what a plan's reserve must have room for.
void LogMemory(RankParts& parts, const char* when) {
  const std::optional<int64_t> bytes = parts.device->MemoryUsedBytes();
  if (bytes.has_value()) parts.events.Log(absl::StrCat(when, " this rank holds ", *bytes, " bytes of its device"));
}

// The parts that work on the program's memory. `collectives`: the program's.
absl::Status BindProgram(RankParts& parts, CollectiveQueue* collectives) {
  const RunOptions& options = parts.options;
  TACC_RETURN_IF_ERROR(CreateArena(parts));
  TACC_RETURN_IF_ERROR(WatchDevice(parts, collectives));
  ExecutorOptions executor;
  executor.program = &parts.program;
  for (const graph::Program& other : parts.others) executor.others.push_back(&other);
  executor.rank = parts.start.rank;
  executor.device = parts.device;
  executor.aliases = options.aliases;
  executor.collectives = collectives;
  executor.arena = parts.arena.get();
  executor.watch = parts.watch.get();
  executor.status = parts.status_block.get();
  executor.failpoints = options.failpoints;
  TACC_ASSIGN_OR_RETURN(parts.executor, Executor::Create(executor));
  const std::string& trace_path = options.trace_path.empty() ? parts.start.trace_path : options.trace_path;
  parts.measurement = std::make_unique<StepMeasurement>(
      options.profile_path, &parts.program, parts.executor.get(), &parts.collectives,
      StepTimer(parts.device, collectives),
      RankTrace({trace_path, parts.start.trace_step, std::move(parts.start.predicted_trace)}, &parts.program,
                options.ops, &parts.collectives, &parts.events));
  parts.states = std::make_unique<RankStates>(
      &parts.program, parts.start.rank, parts.device,
      [&executor = *parts.executor](const std::string& name) { return executor.state(name); },
      [&parts] { parts.Beat(); });
  parts.checkpointer =
      std::make_unique<Checkpointer>(&parts.start, &parts.program, parts.device, parts.states.get(), &parts.collectives,
                                     &parts.events, options.failpoints, SpareBytes(parts), parts.claim);
  return absl::OkStatus();
}

absl::Status MeetAndBind(RankParts& parts) {
  parts.Show(Activity::kMeeting);
  TACC_RETURN_IF_ERROR(Connect(parts));
  TACC_ASSIGN_OR_RETURN(parts.talk, parts.options.choose_talk({&parts.collectives, Timeout(parts.start),
                                                               parts.status_block.get(), parts.start.deterministic}));
  if (parts.start.rank == 0 && !parts.talk.detour.empty()) parts.events.Warning("shared_gpu", parts.talk.detour);
  parts.Show(Activity::kBinding);
  const absl::Status bound = BindProgram(parts, parts.talk.queue.get());
  parts.Show(Activity::kMeeting);
  TACC_RETURN_IF_ERROR(AgreeOnStatus(parts.collectives, bound));
  LogMemory(parts, "before the ranks connect");
  TACC_RETURN_IF_ERROR(parts.talk.queue->Open());
  LogMemory(parts, "when the ranks are connected");
  parts.Show(Activity::kBinding);
  return absl::OkStatus();
}

// Before any kernel runs.
absl::Status ChooseAttention(RankParts& parts) {
  AttentionRule rule;
  rule.order = parts.start.deterministic ? AttentionOrder::kFixed : AttentionOrder::kFastest;
  rule.earlier = parts.start.attention;
  rule.wanted = parts.options.attention;
  parts.Show(Activity::kMeeting);
  TACC_ASSIGN_OR_RETURN(parts.attention, AgreeOnAttention(parts.collectives, parts.device->MeasuredAttention(), rule));
  parts.device->TakeAttention(parts.attention);
  if (parts.start.rank == 0) {
    for (const std::string& warning : AttentionWarnings(parts.attention, rule.wanted))
      parts.events.Warning("attention", warning);
  }
  parts.Show(Activity::kBinding);
  return absl::OkStatus();
}

absl::Status ChooseProducts(RankParts& parts) {
  const ProductRule rule{parts.start.deterministic ? ProductOrder::kFixed : ProductOrder::kFastest,
                         parts.start.products};
  parts.Show(Activity::kMeeting);
  TACC_ASSIGN_OR_RETURN(parts.products, AgreeOnProducts(parts.collectives, parts.device->MeasuredProducts(), rule));
  if (const auto changed = ChangedProducts(parts.products, rule.earlier); !changed.empty()) {
    parts.Show(Activity::kBinding);
    parts.device->MeasureProducts(changed);
    parts.Show(Activity::kMeeting);
    TACC_ASSIGN_OR_RETURN(parts.products, AgreeOnProducts(parts.collectives, parts.device->MeasuredProducts(), rule));
  }
  parts.device->TakeProducts(parts.products);
  if (parts.start.rank == 0) {
    for (const std::string& warning : ProductWarnings(parts.products, rule.earlier))
      parts.events.Warning("products", warning);
  }
  parts.Show(Activity::kBinding);
  return absl::OkStatus();
}

bool HasOthersThanLibTorchs(const graph::Program& program) {
  return std::any_of(program.graphs.begin(), program.graphs.end(), [](const graph::Graph& graph) {
    return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const graph::Node& node) {
      return (node.op == "aten" || node.op == "aten_vjp") &&
             !graph::IsOfLibTorch(graph::GetAttr<std::string>(node.attrs, "schema"));
    });
  });
}

// What the worker's --op-library lists, where the program has a use for it. Behind the device: on a GPU LibTorch has
// its part for GPUs then.
absl::Status LoadOperators(RankParts& parts) {
  if (!HasOthersThanLibTorchs(parts.program) &&
      std::none_of(parts.others.begin(), parts.others.end(), HasOthersThanLibTorchs))
    return absl::OkStatus();
  return LoadOpLibraries(parts.options.op_libraries, IsGpu(parts.start.device) ? Gpus::kVisible : Gpus::kHidden);
}

absl::Status Bind(RankParts& parts) {
  parts.Show(Activity::kBinding);
  TACC_RETURN_IF_ERROR(Hit(parts, "before_load"));
  TACC_RETURN_IF_ERROR(OpenDevice(parts));
  TACC_RETURN_IF_ERROR(LoadOperators(parts));
  const bool meets_first = parts.device->is_asynchronous() && parts.start.world > 1;
  TACC_RETURN_IF_ERROR(meets_first ? MeetAndBind(parts) : BindProgram(parts, &parts.collectives));
  // Ranks on CPUs have not met yet, and have nothing to choose.
  if (parts.device->is_asynchronous()) {
    TACC_RETURN_IF_ERROR(ChooseAttention(parts));
    TACC_RETURN_IF_ERROR(ChooseProducts(parts));
  }
  TACC_RETURN_IF_ERROR(parts.executor->WarmUp());
  LogMemory(parts, "after the warm-up");
  if (parts.device->is_asynchronous() && parts.start.rank == 0 && parts.options.traces_gaps) {
    parts.gaps = std::make_unique<GapTrace>(parts.device, &parts.events);
    parts.gaps->WarmUp();
  }
  return absl::OkStatus();
}

absl::Status Meet(RankParts& parts) {
  parts.Show(Activity::kMeeting);
  if (parts.start.world == 1) return absl::OkStatus();
  return parts.transport == nullptr ? Connect(parts) : parts.transport->WaitForAll();
}

// What has been put where the job's data was is not trained on. A start file may name no data.
absl::Status CheckIsTheJobs(const Dataset& dataset, const StartFile& start) {
  const nlohmann::json& identity = start.identity;
  const auto wanted = identity.find("data");
  const std::string got = IdentityOf(dataset.info());
  if (wanted == identity.end() || *wanted == got) return absl::OkStatus();
  return WithFailureCode(absl::FailedPreconditionError(absl::StrCat(
                             "the data at ", dataset.dir(), " is now ", got, ", but the job was compiled for ",
                             wanted->is_string() ? wanted->get<std::string>() : wanted->dump(),
                             "; put the data back, or cancel the job and submit again")),
                         "unavailable");
}

// Rank 0's, of a job with a folder. `num_samples`: of the data.
void OpenRecord(RankParts& parts, int64_t first_step, int64_t num_samples) {
  if (parts.start.rank != 0 || !parts.saves_checkpoints()) return;
  parts.record = std::make_unique<RunRecord>(&parts.start, &parts.events, parts.claim, first_step, num_samples);
}

absl::Status OpenClient(RankParts& parts, const StartPoint& begin) {
  OpenRecord(parts, begin.step, 0);
  TACC_ASSIGN_OR_RETURN(parts.source, ClientSource::Open(&parts, begin));
  return absl::OkStatus();
}

absl::Status OpenData(RankParts& parts, const StartPoint& begin) {
  const StartFile& start = parts.start;
  const int64_t first_step = begin.step;
  parts.Show(Activity::kOpeningData);
  if (start.has_client()) return OpenClient(parts, begin);
  BatchOptions batches;
  batches.program = &parts.program;
  batches.rank = start.rank;
  batches.num_micro_batches = parts.executor->num_micro_batches();
  batches.inputs = &parts.executor->inputs();
  batches.seq_len = start.seq_len;
  batches.global_batch_size = start.global_batch_size;
  batches.seed = start.seed;
  TACC_ASSIGN_OR_RETURN(parts.dataset, OfFiles(Dataset::Open(start.data_path, parts.options.failpoints)));
  TACC_RETURN_IF_ERROR(CheckIsTheJobs(*parts.dataset, start));
  const bool is_of_language = !start.identity.value("config_json", std::string()).empty();  // Not a graph.
  if (start.rank == 0 && is_of_language && FindTokenizer(start.model_dir, start.data_path).empty()) {
    parts.events.Warning("no_tokenizer",
                         absl::StrCat("the exported model will have no tokenizer: neither ", start.model_dir, " nor ",
                                      start.data_path, "/tokenizer has one; copy its files into the model's folder"));
  }
  TACC_ASSIGN_OR_RETURN(auto train_batches, TrainBatches::Create(batches, parts.dataset.get(), first_step));
  parts.source = std::make_unique<DataSource>(std::move(train_batches), parts.executor.get(), start.max_steps);
  if (start.rank == 0 && !start.model_dir.empty()) {
    const std::string mismatch = EosMismatch(start.model_dir, start.data_path, parts.dataset->info().eos_token_id);
    if (!mismatch.empty()) parts.events.Warning("eos_mismatch", mismatch);
  }
  OpenRecord(parts, first_step, parts.dataset->NumSamples(start.seq_len));
  if (!parts.executor->has_eval() || start.eval_path.empty()) return absl::OkStatus();
  TACC_ASSIGN_OR_RETURN(parts.eval_dataset, OfFiles(Dataset::Open(start.eval_path)));
  TACC_ASSIGN_OR_RETURN(parts.eval_batches, EvalBatches::Create(batches, parts.eval_dataset.get(),
                                                                start.max_eval_batches * start.global_batch_size));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StartPoint> LoadRank(RankParts& parts) {
  if (!parts.options.status_shm.empty()) {
    TACC_ASSIGN_OR_RETURN(parts.status_block, StatusBlock::Open(parts.options.status_shm));
  }
  TACC_RETURN_IF_ERROR(LoadProgram(parts));
  TACC_RETURN_IF_ERROR(StartServer(parts));
  TACC_RETURN_IF_ERROR(Bind(parts));
  const absl::StatusOr<StartPoint> loaded = LoadStates(parts);
  TACC_RETURN_IF_ERROR(Meet(parts));
  TACC_RETURN_IF_ERROR(AgreeOnStatus(parts.collectives, loaded.status()));
  TACC_RETURN_IF_ERROR(Hit(parts, "after_load"));
  const absl::Status opened = OpenData(parts, *loaded);
  parts.Show(Activity::kMeeting);
  TACC_RETURN_IF_ERROR(AgreeOnStatus(parts.collectives, opened));
  parts.Show(Activity::kBetweenSteps);
  return loaded;
}

}  // namespace tacc::worker
