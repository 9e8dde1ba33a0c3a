#include "coordinator/service/loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/core/start_file.h"
#include "spdlog/spdlog.h"

namespace tacc::coordinator {
namespace {

constexpr double kTickSeconds = 0.5;
// A longer time without a tick is said in the log.
constexpr double kStallSeconds = 5;
// Metric points that nobody waits for are stored together, one disk flush for all that come in this time.
constexpr double kGroupCommitSeconds = 0.1;

bool Urgent(const Decision& decision) {
  if (const auto* send = std::get_if<SendToWorker>(&decision)) return !send->message.has_ack();
  return std::holds_alternative<LogFact>(decision) || std::holds_alternative<Reply>(decision) ||
         std::holds_alternative<StartCompile>(decision) || std::holds_alternative<StopCompile>(decision) ||
         std::holds_alternative<CloseSession>(decision);
}

bool Stored(const Decision& decision) {
  return std::holds_alternative<LogFact>(decision) || std::holds_alternative<StoreStep>(decision) ||
         std::holds_alternative<StoreEval>(decision) || std::holds_alternative<StoreEvent>(decision) ||
         std::holds_alternative<StoreSequence>(decision) || std::holds_alternative<ForgetJob>(decision);
}

// An event of a job among the log lines of its ranks, in the order in which they came.
v1::RankId IdOfEvent(const StoreEvent& event) {
  v1::RankId id;
  id.set_job(event.job);
  id.set_attempt(event.event.attempt());
  id.set_rank(-1);
  return id;
}

v1::RankLog LogOfEvent(const v1::JobEvent& event) {
  v1::RankLog log;
  log.set_time(event.time());
  const bool is_warning = event.type() == "warning";
  for (absl::string_view line : absl::StrSplit(event.message(), '\n'))
    log.add_lines(absl::StrCat(is_warning ? "warning: " : "", line));
  return log;
}

}  // namespace

Loop::Loop(Parts parts) : parts_(std::move(parts)) {}

Loop::~Loop() { Stop(); }

void Loop::Start() {
  parts_.core->Resume(parts_.clock());
  thread_ = std::thread([this] { Run(); });
}

void Loop::Close() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
}

void Loop::Stop() {
  Close();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Loop::Post(Input input) { Post(std::move(input), nullptr); }

void Loop::Post(Input input, std::function<void()> then) {
  std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back({std::move(input), std::move(then), nullptr});
  wake_.notify_one();
}

void Loop::Ask(Input input, std::function<void(const Reply&)> reply) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t tag = ++last_tag_;
  if (auto* submit = std::get_if<SubmitJob>(&input)) submit->tag = tag;
  if (auto* cancel = std::get_if<CancelJob>(&input)) cancel->tag = tag;
  replies_[tag] = std::move(reply);
  queue_.push_back({std::move(input), nullptr, nullptr});
  wake_.notify_one();
}

void Loop::Read(std::function<void(const View&)> read) {
  std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back({Tick{}, nullptr, std::move(read)});
  wake_.notify_one();
}

void Loop::Watch(const std::string& job, std::weak_ptr<Watcher> watcher) {
  std::lock_guard<std::mutex> lock(mutex_);
  watchers_.emplace(job, std::move(watcher));
}

void Loop::Run() {
  using Seconds = std::chrono::duration<double>;
  last_tick_ = parts_.clock().steady;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    const double now = parts_.clock().steady;
    double until = last_tick_ + kTickSeconds;
    if (!pending_.empty()) until = std::min(until, pending_since_ + kGroupCommitSeconds);
    if (queue_.empty() && !stopping_ && until > now) wake_.wait_for(lock, Seconds(until - now));
    std::deque<Item> items;
    items.swap(queue_);
    const bool stop = stopping_;
    lock.unlock();
    for (Item& item : items) Handle(&item);
    const double after = parts_.clock().steady;
    if (after - last_tick_ >= kTickSeconds) {
      if (after - last_tick_ >= kStallSeconds) {
        spdlog::warn(
            "this process was stopped or waited for its disk for {:.0f} s, which its workers' leases do not count",
            after - last_tick_);
      }
      last_tick_ = after;
      Item tick{Tick{}, nullptr, nullptr};
      Handle(&tick);
    }
    if (!pending_.empty() && (urgent_ || stop || after - pending_since_ >= kGroupCommitSeconds)) Flush();
    lock.lock();
    if (stop && queue_.empty()) return;
  }
}

void Loop::Handle(Item* item) {
  if (item->read) {
    if (!pending_.empty()) Flush();
    item->read(MakeView());
    return;
  }
  ++stats_.inputs;
  Decisions decisions = parts_.core->Handle(parts_.clock(), item->input);
  if (pending_.empty()) pending_since_ = parts_.clock().steady;
  for (Decision& decision : decisions) {
    urgent_ = urgent_ || Urgent(decision);
    pending_.push_back(std::move(decision));
  }
  if (item->then) item->then();
}

void Loop::Flush() {
  Decisions decisions;
  decisions.swap(pending_);
  urgent_ = false;
  if (broken_) return RefuseAll(decisions);
  std::set<std::string> touched;
  bool any = false;
  const auto append = [&](const v1::RankId& id, const v1::RankLog& log) {
    const absl::Status status = parts_.logs->Append(id, log);
    if (!status.ok()) spdlog::warn("log lines of {} are lost: {}", id.job(), std::string(status.message()));
    touched.insert(id.job());
  };
  for (const Decision& decision : decisions) {
    any = any || Stored(decision);
    if (const auto* log = std::get_if<StoreLog>(&decision)) append(log->id, log->log);
    if (const auto* event = std::get_if<StoreEvent>(&decision)) append(IdOfEvent(*event), LogOfEvent(event->event));
  }
  if (any) {
    const double before = parts_.clock().steady;
    if (absl::Status status = WriteDown(decisions); !status.ok()) {
      broken_ = true;
      parts_.fatal(status);
      return RefuseAll(decisions);
    }
    ++stats_.commits;
    stats_.commit_seconds += parts_.clock().steady - before;
    KeepNumbers(decisions);
  }
  for (Decision& decision : decisions) CarryOut(&decision, &touched);
  if (touched.empty()) return;
  std::vector<std::shared_ptr<Watcher>> woken;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = watchers_.begin(); it != watchers_.end();) {
      std::shared_ptr<Watcher> watcher = it->second.lock();
      if (watcher == nullptr) {
        it = watchers_.erase(it);
        continue;
      }
      if (touched.count(it->first) != 0) woken.push_back(std::move(watcher));
      ++it;
    }
  }
  for (const auto& watcher : woken) watcher->Wake();
}

void Loop::KeepNumbers(const Decisions& decisions) {
  int64_t number = 0;
  for (const Decision& decision : decisions) {
    const auto* log = std::get_if<LogFact>(&decision);
    if (log != nullptr && log->fact.has_job_accepted()) number = std::max(number, IdNumber(log->fact.job()));
  }
  if (number == 0) return;
  if (absl::Status status = parts_.job_number->Raise(number); !status.ok())
    spdlog::warn("ids of jobs may come back with another state directory: {}", std::string(status.message()));
}

absl::Status Loop::WriteDown(const Decisions& decisions) {
  for (int tries = 0;; ++tries) {
    absl::Status status = parts_.store->Commit(decisions);
    if (!absl::IsResourceExhausted(status)) return status;
    if (tries % 10 == 0)
      spdlog::error("{}; training goes on, and nothing is decided until there is room", std::string(status.message()));
    std::unique_lock<std::mutex> lock(mutex_);
    if (closing_ || wake_.wait_for(lock, std::chrono::seconds(1), [this] { return closing_; })) return status;
  }
}

void Loop::Answer(const Reply& reply) {
  std::function<void(const Reply&)> call;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto it = replies_.find(reply.tag);
    if (it == replies_.end()) return;
    call = std::move(it->second);
    replies_.erase(it);
  }
  call(reply);
}

void Loop::RefuseAll(const Decisions& decisions) {
  for (const Decision& decision : decisions) {
    const auto* reply = std::get_if<Reply>(&decision);
    if (reply != nullptr)
      Answer({reply->tag, absl::UnavailableError("the coordinator cannot store anything and is stopping"), "", false});
  }
}

void Loop::AddPredictedTrace(const JobState& job, v1::StartRank* start) const {
  if (start->id().rank() != 0 || !job.spec.train().has_trace_step()) return;
  const absl::StatusOr<std::string> trace = parts_.compiler->ReadPredictedTrace(job.id, job.compile);
  if (trace.ok()) {
    start->set_start(WithPredictedTrace(start->start(), *trace));
  } else {
    spdlog::warn("{} runs without its predicted trace: {}", job.id, std::string(trace.status().message()));
  }
}

void Loop::CarryOut(Decision* decision, std::set<std::string>* touched) {
  if (auto* send = std::get_if<SendToWorker>(decision)) {
    if (send->message.has_start_rank()) {
      const std::string& job = send->message.start_rank().id().job();
      const JobState* state = parts_.core->Find(job, {.all = true});
      if (state == nullptr) return;  // Ended and forgotten since.
      absl::StatusOr<std::string> program = parts_.compiler->ReadProgram(
          job, state->compile, state->summary.StageOf(send->message.start_rank().id().rank()));
      if (!program.ok()) {
        return Post(ProgramUnread{send->message.start_rank().id(), std::string(program.status().message()),
                                  /*is_lost=*/!absl::IsUnavailable(program.status())});
      }
      send->message.mutable_start_rank()->set_program(*std::move(program));
      AddPredictedTrace(*state, send->message.mutable_start_rank());
    }
    parts_.workers->Send(send->session, std::move(send->message));
  } else if (const auto* close = std::get_if<CloseSession>(decision)) {
    parts_.workers->Close(close->session, close->status);
  } else if (const auto* reply = std::get_if<Reply>(decision)) {
    Answer(*reply);
  } else if (const auto* compile = std::get_if<StartCompile>(decision)) {
    const JobState* job = parts_.core->Find(compile->job, {.all = true});
    if (job == nullptr) return;  // Ended and forgotten since.
    parts_.compiler->Start(*compile, job->spec, [this](Input done) { Post(std::move(done)); });
  } else if (const auto* forget = std::get_if<ForgetJob>(decision)) {
    parts_.logs->Forget(forget->job);
    parts_.compiler->Forget(forget->job);
    touched->insert(forget->job);
    spdlog::info("{} is forgotten: it ended before the jobs that are kept", forget->job);
  } else if (const auto* stop = std::get_if<StopCompile>(decision)) {
    parts_.compiler->Stop(stop->job);
  } else if (const auto* event = std::get_if<StoreEvent>(decision)) {
    spdlog::info("{} {}: {}", event->job, event->event.type(), event->event.message());
    touched->insert(event->job);
  } else if (const auto* step = std::get_if<StoreStep>(decision)) {
    touched->insert(step->job);
  } else if (const auto* eval = std::get_if<StoreEval>(decision)) {
    touched->insert(eval->job);
  }
}

}  // namespace tacc::coordinator
