#include "worker/rank/run/run.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/capture.h"
#include "graph/ir/status_macros.h"
#include "json/parse_json.h"
#include "machine/clock.h"
#include "machine/folder_lock.h"
#include "worker/checkpoint/checkpoint_name.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/rank/protocol/failure_codes.h"
#include "worker/rank/protocol/folder_claim.h"
#include "worker/rank/run/finish.h"
#include "worker/rank/run/load_rank.h"
#include "worker/rank/run/rank_parts.h"
#include "worker/rank/run/train_loop.h"
#include "worker/rank/tuning/attention_choice.h"
#include "worker/rank/tuning/product_choice.h"

namespace tacc::worker {
namespace {

absl::Status CheckPaths(const StartFile& start, const AllowedPaths& paths) {
  using Use = AllowedPaths::Use;
  const std::string resume = start.resume.rfind('/', 0) == 0 ? start.resume : "";
  for (const std::string& path : {start.model_dir, start.adapter_dir, start.data_path, start.eval_path, resume}) {
    absl::Status status = path.empty() ? absl::OkStatus() : paths.Check(path, Use::kRead);
    if (absl::IsInvalidArgument(status)) return status;
  }
  for (const std::string& path : {start.checkpoint_dir, start.export_dir, start.trace_path}) {
    absl::Status status = path.empty() ? absl::OkStatus() : paths.Check(path, Use::kWrite);
    if (absl::IsInvalidArgument(status)) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<StartFile> ReadStart(const RunOptions& options) {
  absl::StatusOr<StartFile> start = ReadStartFile(options.start_file);
  if (!start.ok()) return start;
  if (start->version == options.version) {
    absl::Status status = options.paths.IsLimited() ? CheckPaths(*start, options.paths) : absl::OkStatus();
    return status.ok() ? start : status;
  }
  return absl::InvalidArgumentError(absl::StrCat("the start file is of version ", start->version, ", tacc-rank is ",
                                                 options.version, "; install the same version everywhere"));
}

// So that a `submit --local` does not train in the folder of a service's job. A local job has locked it for its
// workers; what a lost mount has left is not touched.
std::unique_ptr<FolderLock> SayInUse(const StartFile& start) {
  constexpr int64_t kMaxOwnerBytes = 1 << 20;
  if (start.rank != 0 || !start.checkpoint_claimed) return nullptr;
  const absl::StatusOr<std::string> owner =
      ReadSmallFile(absl::StrCat(start.checkpoint_dir, "/", kOwnerFileName), kMaxOwnerBytes);
  const nlohmann::json job = ParseJson(owner.value_or(""));
  if (!job.is_object() || !job.contains("job") || !job["job"].is_string()) return nullptr;
  auto lock = FolderLock::Take(start.checkpoint_dir, FolderLock::Kind::kShared,
                               absl::StrCat("job ", job["job"].get<std::string>()));
  return lock.ok() ? *std::move(lock) : nullptr;
}

// So that no other service's job trains in the folder. Who has lost it ends: what it goes on to train could not be
// saved.
std::unique_ptr<FolderClaim> ClaimFolder(const StartFile& start, EventWriter* events) {
  if (start.rank != 0 || !start.checkpoint_claimed || start.service.empty()) return nullptr;
  FolderClaim::Options options;
  options.dir = start.checkpoint_dir;
  options.service = start.service;
  options.job = start.job;
  options.attempt = start.attempt;
  options.on_lost = [events](const absl::Status& lost) {
    events->Failed(kUnavailableCode, std::string(lost.message()));
    _exit(kExitError);
  };
  return std::make_unique<FolderClaim>(std::move(options));
}

// What a failed device leaves behind are errors of whatever was asked of it. It is not waited for: it may itself wait
// for a rank that has gone.
absl::Status BlameDevice(const RankParts& parts, absl::Status status) {
  const bool may_be_device = parts.device != nullptr && !absl::IsResourceExhausted(status);
  return may_be_device && !parts.device->Check().ok() ? WithFailureCode(std::move(status), "device") : status;
}

int Fail(RankParts& parts, const std::string& code, const absl::Status& status) {
  parts.events.Failed(code, std::string(status.message()));
  return ExitCode(code);
}

void WriteReady(RankParts& parts, const StartPoint& begin, double load_seconds) {
  const std::string& checkpoint = begin.checkpoint;
  protocol::ReadyEvent ready = {.step = begin.step,
                                .resumed_from = checkpoint.substr(checkpoint.rfind('/') + 1),
                                .load_seconds = load_seconds,
                                .arena_bytes = parts.arena == nullptr ? 0 : parts.arena->arena_bytes()};
  ready.device_memory_used_bytes = parts.metrics->MemoryUsedBytes().value_or(0);
  if (parts.start.rank == 0 && !parts.attention.empty()) {
    ready.attention = AttentionJson(parts.attention).get<std::vector<nlohmann::json>>();
    for (const AttentionChoice& choice : parts.attention) parts.events.Log(InWords(choice));
  }
  if (parts.start.rank == 0 && !parts.products.empty()) {
    ready.products = ProductsJson(parts.products).get<std::vector<nlohmann::json>>();
    for (const ProductChoice& choice : parts.products) parts.events.Log(InWords(choice));
  }
  if (const std::vector<graph::CapturePart> captured = parts.executor->Parts(); !captured.empty()) {
    ready.capture = CaptureJson(captured);
    parts.events.Log(graph::InWords(captured));
  }
  if (parts.client_link != nullptr) {
    const ClientEndpoint& endpoint = parts.client_link->endpoint();
    ready.client_local = endpoint.local;
    ready.client_host = endpoint.host;
    ready.client_port = endpoint.port;
    ready.client_token = endpoint.token;
  }
  parts.events.Write(ready);
}

int64_t PeakResidentBytes() {
  constexpr int64_t kUnit = 1024;
  rusage usage = {};
  return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_maxrss * kUnit : 0;
}

// `error`: why the attempt ends, with its code; OK: the training has finished or was stopped.
void WriteReport(RankParts& parts, const StartPoint& begin, const TrainLoop& loop, const absl::Status& error) {
  RunReport report;
  report.outcome = !error.ok() ? "failed" : loop.was_stopped() ? "stopped" : "finished";
  if (!error.ok()) report.failure = absl::StrCat(FailureCode(error), ": ", error.message());
  report.may_go_on = !error.ok();
  report.step = loop.step();
  const std::string& saved = parts.checkpointer->last_saved_path();
  report.checkpoint = saved.empty() ? begin.checkpoint : saved;
  // A device that has failed is not asked.
  const bool asks = error.ok() || !parts.device->is_asynchronous();
  report.peak_memory_bytes = asks ? parts.device->MemoryUsedBytes().value_or(PeakResidentBytes()) : 0;
  if (error.ok() && !loop.was_stopped()) report.export_dir = parts.start.export_dir;
  if (!report.export_dir.empty() && parts.dataset != nullptr) {
    // The beginning of a text that the model has not learned from, where there is one.
    const Dataset& dataset = parts.eval_dataset != nullptr ? *parts.eval_dataset : *parts.dataset;
    constexpr int64_t kPromptTokens = 16;
    report.prompt_ids.resize(std::min(kPromptTokens, dataset.info().num_tokens));
    const auto num_ids = static_cast<int64_t>(report.prompt_ids.size());
    if (!dataset.ReadTokens(0, num_ids, report.prompt_ids.data()).ok()) report.prompt_ids.clear();
  }
  parts.record->WriteReport(std::move(report));
}

// Returns the exit code. The reason is told before the page is written, whose folder may be slow or away.
int FailWithReport(RankParts& parts, const StartPoint& begin, const TrainLoop& loop, const absl::Status& error) {
  const std::string code = FailureCode(error);
  const int exit_code = Fail(parts, code, error);
  if (parts.record != nullptr && code != "unavailable") WriteReport(parts, begin, loop, error);
  // All ranks end alike: rank 0 would be killed with its page half written when another is seen to have gone.
  if (code == "nonfinite" || code == "stuck") (void)parts.collectives.Barrier();
  return exit_code;
}

// The exit code; a failure has been reported.
int Run(RankParts& parts) {
  const double loading_since = SteadySeconds();
  const absl::StatusOr<StartPoint> begin = LoadRank(parts);
  if (!begin.ok()) {
    const absl::Status error = BlameDevice(parts, begin.status());
    return Fail(parts, LoadFailureCode(error), error);
  }
  WriteReady(parts, *begin, SteadySeconds() - loading_since);
  TrainLoop loop(&parts, &*begin);
  absl::Status status = loop.Run();
  if (parts.record != nullptr) parts.record->Sync();
  if (status.ok()) status = Finish(parts, *begin, loop);
  parts.measurement->WriteProfile(parts.collectives.stats(), parts.options.workspace);
  if (!status.ok()) return FailWithReport(parts, *begin, loop, BlameDevice(parts, status));
  if (parts.record != nullptr) WriteReport(parts, *begin, loop, absl::OkStatus());
  if (loop.was_stopped()) {
    parts.events.Write(protocol::StoppedEvent{.step = loop.step(), .reason = loop.stop_reason()});
  } else {
    parts.events.Write(protocol::FinishedEvent{.step = loop.step()});
  }
  // What the GPUs have sent each other has come everywhere before the first of them goes.
  if (parts.talk.queue != nullptr) (void)parts.collectives.Barrier();
  return kExitOk;
}

}  // namespace

int RunRank(const RunOptions& options) {
  EventWriter events(options.event_fd);
  events.Write(protocol::StartedEvent{.pid = getpid(), .version = options.version});
  absl::StatusOr<StartFile> start = ReadStart(options);
  if (!start.ok()) {
    const std::string code = LoadFailureCode(OfFiles(start.status()));
    events.Failed(code, std::string(start.status().message()));
    return ExitCode(code);
  }
  const std::unique_ptr<FolderLock> in_use = SayInUse(*start);
  const std::unique_ptr<FolderClaim> claim = ClaimFolder(*start, &events);
  // Outlives the run by design: its thread may be in read() until the process ends.
  CommandReader commands(options.command_fd, &events, [] { _exit(kExitError); });
  const auto end_process = [&events, device = start->device](const absl::Status& error) {
    events.Failed("device", absl::StrCat(device, ": ", error.message()));
    _exit(kExitError);
  };
  auto parts = std::make_unique<RankParts>(&options, *std::move(start), &events, &commands, end_process);
  parts->claim = claim.get();
  const int code = Run(*parts);
  if (code == kExitOk) {
    if (claim != nullptr) claim->End();
    return code;
  }
  if (parts->checkpointer != nullptr) parts->checkpointer->JoinThread();
  // Nothing is taken apart that may wait for a GPU that has failed or a rank that has gone: the process ends.
  (void)parts.release();
  return code;
}

}  // namespace tacc::worker
