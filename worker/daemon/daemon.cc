#include "worker/daemon/daemon.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "machine/clock.h"
#include "nlohmann/json.hpp"
#include "protocol/attach_protocol.h"
#include "text/utf8.h"
#include "worker/daemon/answers/path_answers.h"
#include "worker/daemon/answers/path_thread.h"
#include "worker/daemon/answers/upload_cache.h"
#include "worker/daemon/coordinator_link.h"
#include "worker/daemon/host/rotating_log.h"
#include "worker/daemon/host/run_log.h"
#include "worker/daemon/inbox.h"
#include "worker/daemon/messages.h"
#include "worker/daemon/metrics_server.h"
#include "worker/daemon/supervision/supervisor.h"

namespace tacc::worker {
namespace {

// Two files of this size at most.
constexpr int64_t kMaxLogBytes = 16 << 20;
// Log lines wait this long for company; also the longest the loop sleeps.
constexpr double kLogFlushSeconds = 0.2;
// Of the time between two turns of the loop, so much counts as time in which a rank could go on.
constexpr double kLongestTickSeconds = 1;
// A process that has closed its pipes is about to be reaped.
constexpr double kReapSeconds = 0.005;
constexpr double kMaxLoopSilenceSeconds = 10;

class Daemon {
 public:
  Daemon(const DaemonOptions& options, StateDirectory* state, spdlog::logger* logger, RotatingLog* rank_log,
         RunLog* run_log, MetricsServer* metrics)
      : options_(options),
        logger_(logger),
        run_log_(run_log),
        metrics_(metrics),
        instance_(NewInstance()),
        device_(options.device),
        supervisor_({}),
        uploads_(UploadOptions(options)),
        host_(WithUploads(options.place, &uploads_), options.start_process, state, &supervisor_, rank_log, run_log),
        link_(options.coordinator, options.tls, [this] { inbox_.Post({}); }) {
    host_.OnFetch([this](const std::string& id) { FetchForRank(id); });
  }

  ~Daemon() { is_ending_ = true; }

  // What `handed` says was this device's until now. Errors: as RunDaemon.
  absl::Status TakeOver(const nlohmann::json& handed) {
    try {
      handed.at("instance").get_to(instance_);
      handed.at("trouble").get_to(trouble_);
      supervisor_.TakeOver(handed.at("supervisor"));
      return host_.TakeOver(handed.at("rank"));
    } catch (const nlohmann::json::exception& error) {
      return absl::InvalidArgumentError(absl::StrCat("what was handed over cannot be read: ", error.what()));
    }
  }

  // `handed` is set when it ends because another takes its place.
  absl::Status Run(nlohmann::json* handed) {
    while (!IsOver()) {
      Wait();
      const double now = SteadySeconds();
      awake_.Tick(now);
      host_.Turn();
      WatchLog();
      WatchEnd(now);
      WatchDevice(now);
      if (CanBeReplaced(now)) {
        *handed = HandOver();
        return absl::OkStatus();
      }
      TakeAnswers(now);
      for (CoordinatorLink::Event& event : link_.Poll(now, [this] { return Registration(); })) Handle(std::move(event));
      supervisor_.FlushLogs(WallSeconds());
      KeepStopping(now);
      SendNext(now);
      Publish(now);
    }
    return result_;
  }

 private:
  // What another thread tells the loop: an answer about paths, how the device looks, or nothing but "look here".
  struct Letter {
    uint64_t registration = 0;  // During which it was asked.
    absl::optional<v1::AttachRequest> answer;
    absl::optional<absl::StatusOr<v1::DeviceProfile>> device;
    absl::optional<std::pair<RankKey, std::string>> rank_line;  // For its stdin.
  };

  static UploadCache::Options UploadOptions(const DaemonOptions& options) {
    return {.coordinator = options.coordinator,
            .tls = options.tls,
            .directory = options.upload_dir,
            .limits = {.max_bytes = options.max_upload_bytes},
            .user = options.place.confinement.user};
  }

  static RankPlace WithUploads(RankPlace place, const UploadCache* uploads) {
    place.upload_path = [uploads](const std::string& id) { return uploads->Path(id); };
    return place;
  }

  // Tells the rank that asks when it can be read.
  void FetchForRank(const std::string& id) {
    if (!supervisor_.running().has_value()) return;
    uploads_.Fetch(id);
    fetches_.Run([this, id, key = *supervisor_.running()] {
      nlohmann::json line = {{"command", "fetched"}, {"upload", id}};
      // Not held: it is read at once. A daemon that ends waits for nothing.
      while (!is_ending_) {
        const absl::Status status = uploads_.Wait(id, /*seconds=*/1);
        if (absl::IsDeadlineExceeded(status)) continue;
        if (status.ok()) line["path"] = uploads_.Path(id);
        if (!status.ok()) line["error"] = ValidUtf8(std::string(status.message()));
        return inbox_.Post({0, absl::nullopt, absl::nullopt, {{key, line.dump()}}});
      }
    });
  }

  // True once, when another is to take this one's place and can.
  bool CanBeReplaced(double now) {
    const bool is_quiet =
        supervisor_.CanHandOver() && !host_.IsEnding() && paths_.IsIdle() && looks_.IsIdle() && fetches_.IsIdle();
    if (!is_to_be_replaced_ || IsStopping() || !is_quiet) return false;
    is_to_be_replaced_ = false;
    TakeAnswers(now);  // For the rank: nothing more comes from those threads.
    const absl::Status status = options_.check_replacement();
    if (!status.ok()) logger_->error("not replaced, and goes on: {}", std::string(status.message()));
    return status.ok();
  }

  nlohmann::json HandOver() {
    logger_->info("another takes this one's place{}",
                  supervisor_.running().has_value() ? absl::StrCat(", with ", supervisor_.running()->Text()) : "");
    return {{"instance", instance_},
            {"trouble", trouble_},
            {"device", device_.SerializeAsString()},
            {"supervisor", supervisor_.HandOver()},
            {"rank", host_.HandOver()}};
  }

  bool IsStopping() const { return stop_at_.has_value(); }

  bool IsOver() const {
    if (!IsStopping() || supervisor_.running().has_value()) return false;
    return !link_.IsRegistered() || supervisor_.reports().IsEmpty() ||
           SteadySeconds() >= *stop_at_ + options_.stop_seconds + options_.flush_seconds;
  }

  void Wait() {
    const double now = SteadySeconds();
    double wait = host_.IsEnding() ? kReapSeconds : kLogFlushSeconds;
    wait = std::min(wait, link_.NextDue() - now);
    if (link_.IsRegistered()) wait = std::min(wait, next_heartbeat_ - now);
    std::vector<pollfd> descriptors = host_.PollDescriptors();
    descriptors.push_back({inbox_.fd(), POLLIN, 0});
    const size_t replace = descriptors.size();
    descriptors.push_back({options_.replace_descriptor, POLLIN, 0});  // -1 is never readable.
    const size_t first_end = descriptors.size();
    if (!IsStopping()) {
      for (int fd : options_.end_descriptors) descriptors.push_back({fd, POLLIN, 0});
    }
    // Rounded up: waking a moment too early would turn in vain.
    const int timeout_millis = static_cast<int>(std::max(0.0, wait) * 1000) + 1;
    if (poll(descriptors.data(), descriptors.size(), timeout_millis) < 0) return;
    char buffer[1024];  // More requests are one.
    if (descriptors[replace].revents != 0 && read(options_.replace_descriptor, buffer, sizeof(buffer)) > 0)
      is_to_be_replaced_ = true;
    for (size_t i = first_end; i < descriptors.size(); ++i) {
      if (descriptors[i].revents != 0 && !IsStopping()) Stop("asked to end", absl::OkStatus());
    }
  }

  void Stop(const std::string& why, absl::Status result) {
    if (IsStopping()) return;
    logger_->info("ending: {}", why);
    result_ = std::move(result);
    stop_at_ = SteadySeconds();
    host_.Do(supervisor_.Stop(WallSeconds()));
  }

  void KeepStopping(double now) {
    if (IsStopping() && now >= *stop_at_ + options_.stop_seconds) host_.Do(supervisor_.Kill());
  }

  v1::Register Registration() {
    v1::Register registration;
    registration.set_name(options_.name);
    registration.set_instance(instance_);
    registration.set_version(options_.version);
    registration.set_protocol(protocol::kAttachProtocol);
    *registration.mutable_device() = device_;
    registration.set_device_trouble(trouble_);
    registration.set_advertise(options_.place.advertise);
    for (const HeldRank& held : supervisor_.Held()) {
      v1::HeldRank* rank = registration.add_ranks();
      *rank->mutable_id() = ToRankId(held.key);
      rank->set_running(!held.has_exited);
    }
    return registration;
  }

  // Ends a process that does not end by itself, and gives up one that cannot be ended: no rank starts here until it has
  // gone.
  void WatchEnd(double now) {
    const std::pair<Supervisor::Process, uint64_t> process(supervisor_.process(), host_.ranks_started());
    if (process != process_) process_since_ = now;
    process_ = process;
    const double seconds = now - process_since_;
    if (process.first == Supervisor::Process::kFailed && seconds > options_.last_words_seconds)
      host_.Do(supervisor_.Kill());
    if (process.first != Supervisor::Process::kKilled || seconds <= options_.reap_seconds) return;
    const std::string trouble = absl::StrCat(
        device_.name(), " cannot be used: the process of ", supervisor_.running()->Text(), " (", host_.Process(),
        ") was killed ", static_cast<int64_t>(seconds), " s ago and has not ended; if it does not end by itself, ",
        options_.look ? "reset the GPU or " : "", "restart the machine");
    logger_->error("{}", trouble);
    // Sent before the report of the rank's end, on which the coordinator would start the next one.
    SetTrouble(trouble);
    supervisor_.GiveUp(trouble, WallSeconds());
  }

  // What keeps the logs of all ranks from their folder is one warning, of rank 0, and a line in the log of each daemon.
  // An attempt that is over is told by the one that follows it here, if any does.
  void WatchLog() {
    const RunLog::Trouble trouble = run_log_->TakeTrouble();
    if (trouble.status.ok()) return;
    const std::string words = absl::StrCat("the ranks' logs of attempt ", trouble.place.attempt,
                                           " cannot be written to the run's folder: ", trouble.status.message(),
                                           "; training goes on, and `taccctl logs` has them");
    logger_->warn("{}", words);
    if (trouble.place.rank == 0 && trouble.place.job == supervisor_.running().value_or(RankKey()).job)
      supervisor_.Warn("logs_failed", words, WallSeconds());
  }

  // After a failure no rank starts here until the device has been looked at.
  void WatchDevice(double now) {
    if (supervisor_.process() == Supervisor::Process::kStuck) return;
    const absl::optional<std::string> failure = supervisor_.TakeFailure();
    // A CPU without a process that is stuck can be used.
    if (!options_.look) SetTrouble("");
    if (!options_.look || IsStopping()) return;
    if (failure.has_value()) {
      logger_->error("on {} ({}): {}", device_.name(), device_.model(), *failure);
      // Sent before the report of the rank's end, on which the coordinator would start the next one.
      if (trouble_.empty())
        SetTrouble(absl::StrCat(device_.name(), " is being looked at after a rank has failed on it"));
      next_look_ = now;
    }
    if (trouble_.empty() || is_looking_ || now < next_look_) return;
    is_looking_ = true;
    looks_.Run([this] { inbox_.Post({0, absl::nullopt, options_.look(), absl::nullopt}); });
  }

  void TakeLook(const absl::StatusOr<v1::DeviceProfile>& look, double now) {
    is_looking_ = false;
    if (absl::IsCancelled(look.status()) || supervisor_.process() == Supervisor::Process::kStuck) return;
    next_look_ = now + options_.look_again_seconds;
    if (!look.ok()) {
      SetTrouble(absl::StrCat(device_.name(), " cannot be used: ", std::string(look.status().message())));
      return;
    }
    device_ = *look;
    host_.SetMemoryBytes(device_.memory_bytes());
    SetTrouble("");
  }

  void SetTrouble(const std::string& trouble) {
    if (trouble == trouble_) return;
    logger_->warn("{}", trouble.empty() ? absl::StrCat(device_.name(), " can be used") : trouble);
    trouble_ = trouble;
    TellDeviceState();
  }

  void TellDeviceState() {
    v1::AttachRequest message;
    message.mutable_device_state()->set_trouble(trouble_);
    *message.mutable_device_state()->mutable_device() = device_;
    answers_.push_back(std::move(message));
  }

  void TakeAnswers(double now) {
    for (Letter& letter : inbox_.Take()) {
      if (letter.device.has_value()) TakeLook(*letter.device, now);
      if (letter.rank_line.has_value())
        host_.Do(supervisor_.RankCommand(letter.rank_line->first, letter.rank_line->second));
      // A question of an earlier stream is asked again if it still matters.
      if (letter.answer.has_value() && letter.registration == num_registrations_)
        answers_.push_back(*std::move(letter.answer));
    }
  }

  void Handle(CoordinatorLink::Event event) {
    switch (event.kind) {
      case CoordinatorLink::Event::Kind::kRegistered:
        ++num_registrations_;
        answers_.clear();
        // The registration was written when the stream was dialled.
        if (options_.look) TellDeviceState();
        supervisor_.reports().Rewind();
        heartbeat_seconds_ =
            event.response.registered().heartbeat_seconds() > 0 ? event.response.registered().heartbeat_seconds() : 1;
        next_heartbeat_ = SteadySeconds();
        last_trouble_.clear();
        // What the one before had other than now depends on it. A coordinator of protocol 1 says none.
        logger_->info("registered with the coordinator at {} as {}, by protocol {}", options_.coordinator,
                      options_.name, std::max(event.response.registered().protocol(), 1));
        if (num_registrations_ == 1 && options_.on_attached) options_.on_attached();
        break;
      case CoordinatorLink::Event::Kind::kDisconnected: {
        const std::string trouble = std::string(event.status.message());
        // The same trouble at each of many tries is one line.
        if (trouble != last_trouble_)
          logger_->warn("no coordinator at {}: {}; trying again", options_.coordinator, trouble);
        last_trouble_ = trouble;
        break;
      }
      case CoordinatorLink::Event::Kind::kRefused:
        Stop("the coordinator refuses this worker", event.status);
        break;
      case CoordinatorLink::Event::Kind::kMessage:
        HandleMessage(std::move(event.response));
        break;
    }
  }

  void HandleMessage(v1::AttachResponse message) {
    switch (message.message_case()) {
      case v1::AttachResponse::kStartRank: {
        RankStart start;
        start.key = FromRankId(message.start_rank().id());
        start.start_json = std::move(*message.mutable_start_rank()->mutable_start());
        start.program_text = std::move(*message.mutable_start_rank()->mutable_program());
        logger_->info("asked to start {}", start.key.Text());
        host_.Do(supervisor_.StartRank(std::move(start), WallSeconds()));
        break;
      }
      case v1::AttachResponse::kRankCommand:
        host_.Do(supervisor_.RankCommand(FromRankId(message.rank_command().id()), message.rank_command().line()));
        break;
      case v1::AttachResponse::kKillRank: {
        const RankKey key = FromRankId(message.kill_rank().id());
        logger_->info("asked to kill {}", key.Text());
        host_.KillRank(key);
        break;
      }
      case v1::AttachResponse::kAck:
        supervisor_.reports().Acknowledge(FromRankId(message.ack().id()), message.ack().sequence());
        break;
      case v1::AttachResponse::kFetchUpload:
        uploads_.Fetch(message.fetch_upload().id());
        break;
      case v1::AttachResponse::kCheckPaths:
      case v1::AttachResponse::kDeleteCheckpoints:
      case v1::AttachResponse::kWriteReport:
      case v1::AttachResponse::kLeaveFolder: {
        const uint64_t registration = num_registrations_;
        paths_.Take(
            message, [this, registration] { return registration == num_registrations_; },
            [this, registration](v1::AttachRequest answer) {
              inbox_.Post({registration, std::move(answer), absl::nullopt, absl::nullopt});
            });
        break;
      }
      case v1::AttachResponse::kRegistered:  // Handled as its own kind of event.
      case v1::AttachResponse::MESSAGE_NOT_SET:
        break;
    }
  }

  // Sends one message if the stream takes one: the stream wakes the loop when it takes the next.
  void SendNext(double now) {
    if (!link_.CanSend()) return;
    v1::AttachRequest message;
    if (now >= next_heartbeat_) {
      next_heartbeat_ = now + heartbeat_seconds_;
      *message.mutable_heartbeat() = HeartbeatNow(now);
    } else if (!answers_.empty()) {
      message = std::move(answers_.front());
      answers_.pop_front();
    } else if (const Report* report = supervisor_.reports().Next()) {
      *message.mutable_rank_report() = ToRankReport(*report);
    } else {
      return;
    }
    link_.Send(std::move(message));
  }

  v1::Heartbeat HeartbeatNow(double now) {
    v1::Heartbeat heartbeat;
    const absl::optional<RankHost::Sample> sample = host_.TakeSample(awake_.At(now));
    if (sample.has_value() && supervisor_.running().has_value())
      *heartbeat.mutable_sample() = ToRankSample(*supervisor_.running(), *sample);
    return heartbeat;
  }

  void Publish(double now) {
    if (metrics_ == nullptr || now < next_publish_) return;
    next_publish_ = now + kLogFlushSeconds;
    DaemonSnapshot snapshot;
    snapshot.version = options_.version;
    snapshot.worker = options_.name;
    snapshot.is_attached = link_.IsRegistered();
    snapshot.loop_time = now;
    snapshot.num_threads = options_.place.num_threads;
    snapshot.memory_bytes = options_.look ? device_.memory_bytes() : options_.place.memory_bytes;
    snapshot.is_device_usable = trouble_.empty();
    snapshot.held_report_bytes = supervisor_.reports().num_bytes();
    snapshot.dropped_reports = supervisor_.reports().num_dropped();
    snapshot.ranks_started = host_.ranks_started();
    if (supervisor_.running().has_value()) {
      snapshot.job = supervisor_.running()->job;
      snapshot.rank = supervisor_.running()->rank;
      snapshot.rank_metrics = supervisor_.metrics();
    }
    if (const absl::optional<RankHost::Sample> sample = host_.TakeSample(awake_.At(now)); sample.has_value()) {
      snapshot.steps_done = sample->status.step;
      snapshot.still_seconds = sample->still_seconds;
      snapshot.peak_memory_bytes = sample->peak_memory_bytes;
    }
    metrics_->Publish(std::move(snapshot));
  }

  const DaemonOptions& options_;
  spdlog::logger* const logger_;
  RunLog* const run_log_;
  MetricsServer* const metrics_;
  std::string instance_;
  v1::DeviceProfile device_;  // As last looked at.
  std::string trouble_;       // Why no rank can run on it; empty: one can.
  bool is_looking_ = false;
  double next_look_ = 0;
  Supervisor supervisor_;
  UploadCache uploads_;
  RankHost host_;
  AwakeClock awake_{kLongestTickSeconds};
  std::pair<Supervisor::Process, uint64_t> process_;  // As seen last, and the number of the rank.
  double process_since_ = 0;
  std::atomic<uint64_t> num_registrations_ = 0;  // The thread of paths_ reads it.
  double heartbeat_seconds_ = 1;
  double next_heartbeat_ = 0;
  double next_publish_ = 0;
  std::deque<v1::AttachRequest> answers_;
  std::string last_trouble_;
  bool is_to_be_replaced_ = false;
  absl::optional<double> stop_at_;  // Steady seconds at which the end began.
  absl::Status result_;
  Inbox<Letter> inbox_;
  // After the inbox: they post into it until they are destroyed.
  CoordinatorLink link_;
  std::atomic<bool> is_ending_ = false;
  PathAnswers paths_{&options_.place.confinement, &options_.coordinator, &uploads_, logger_};
  PathThread looks_;
  PathThread fetches_;
};

}  // namespace

absl::Status RunDaemon(const DaemonOptions& options, StateDirectory* state, spdlog::logger* logger,
                       nlohmann::json* handed) {
  absl::StatusOr<std::unique_ptr<RotatingLog>> rank_log = RotatingLog::Open(state->LogPath(), kMaxLogBytes);
  if (!rank_log.ok()) return rank_log.status();
  RunLog run_log(options.run_log, options.place.confinement);
  std::unique_ptr<MetricsServer> metrics;
  if (!options.metrics_listen.empty()) {
    absl::StatusOr<std::unique_ptr<MetricsServer>> started =
        MetricsServer::Start(options.metrics_listen, kMaxLoopSilenceSeconds);
    if (!started.ok()) return started.status();
    metrics = *std::move(started);
    logger->info("metrics at http://{}/metrics", metrics->address());
  }
  Daemon daemon(options, state, logger, rank_log->get(), &run_log, metrics.get());
  nlohmann::json nothing;
  if (handed == nullptr) handed = &nothing;
  if (!handed->is_null()) {
    if (absl::Status status = daemon.TakeOver(*handed); !status.ok()) return status;
    *handed = nullptr;
  }
  return daemon.Run(handed);
}

}  // namespace tacc::worker
