#include "worker/daemon/host/rank_host.h"

#include <signal.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "json/parse_json.h"
#include "machine/clock.h"
#include "machine/machine.h"
#include "machine/unix_socket.h"
#include "nlohmann/json.hpp"
#include "proto/tacc/v1/upload_name.h"
#include "protocol/rank_events.h"
#include "protocol/start_file.h"
#include "worker/daemon/host/rank_environment.h"

namespace tacc::worker {
namespace {

// An event is a few hundred bytes; this bounds a message to the coordinator.
constexpr size_t kMaxEventBytes = 1 << 20;
constexpr size_t kMaxLogLineBytes = 4096;

// VmHWM of a process; 0: not known.
int64_t PeakMemoryBytes(pid_t pid) {
  std::ifstream stream(absl::StrCat("/proc/", pid, "/status"));
  std::string word;
  int64_t kibibytes = 0;
  while (stream >> word) {
    if (word == "VmHWM:" && stream >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

// For people, and another one in each attempt.
std::string CgroupName(const RankKey& key) {
  return absl::StrCat(key.job, ".attempt-", key.attempt, ".rank-", key.rank);
}

// What a line of stdout says in a log: the message of an event that has one, and what a library printed. Empty:
// nothing.
std::string LogWords(const std::string& line) {
  const nlohmann::json event = ParseJson(line);
  const auto text = [&event](const char* field) {
    const auto value = event.find(field);
    return value != event.end() && value->is_string() ? value->get<std::string>() : "";
  };
  if (!event.is_object() || text("event").empty()) return line;
  const std::string message = text("message"), code = text("code");
  if (message.empty()) return "";
  return absl::StrCat(text("event"), code.empty() ? "" : absl::StrCat(" (", code, ")"), ": ", message);
}

// The upload that a line of stdout asks the daemon for.
absl::optional<std::string> FetchOf(const std::string& line) {
  using protocol::FetchEvent;
  if (line.find(absl::StrCat("\"", FetchEvent::kName, "\"")) == std::string::npos) return absl::nullopt;
  const nlohmann::json json = ParseJson(line);
  if (!json.is_object() || json.value("event", nlohmann::json()) != FetchEvent::kName) return absl::nullopt;
  const absl::StatusOr<FetchEvent> event = protocol::ReadEvent<FetchEvent>(json);
  return event.ok() ? absl::optional<std::string>(event->upload) : absl::nullopt;
}

}  // namespace

absl::StatusOr<std::string> CompleteStart(const std::string& start_json, const std::string& program_path,
                                          const RankPlace& place) {
  nlohmann::ordered_json start = ParseOrderedJson(start_json);
  if (!start.is_object()) return absl::InvalidArgumentError("the start file is not a JSON object");
  protocol::SetStartField(&start, &protocol::StartFile::program, program_path);
  protocol::SetStartField(&start, &protocol::StartFile::device, place.device);
  // The program is planned for the threads of the weakest worker of its gang.
  const int planned = protocol::StartFieldOf(start, &protocol::StartFile::threads).value_or(place.num_threads);
  protocol::SetStartField(&start, &protocol::StartFile::threads, std::min(planned, place.num_threads));
  protocol::SetStartField(&start, &protocol::StartFile::memory_bytes, place.memory_bytes);
  protocol::SetStartField(&start, &protocol::StartFile::advertise, place.advertise);
  if (!place.local_folder.empty())
    protocol::SetStartField(&start, &protocol::StartFile::local_folder, place.local_folder);
  const std::string model_dir = protocol::StartFieldOf(start, &protocol::StartFile::model_dir).value_or("");
  if (const std::string upload = UploadId(model_dir); !upload.empty())
    protocol::SetStartField(&start, &protocol::StartFile::model_dir, place.upload_path(upload));
  return start.dump() + "\n";
}

RankHost::~RankHost() {
  if (child_ == nullptr) return;
  status_block_.reset();
  if (supervisor_->process() == Supervisor::Process::kStuck) {
    child_->Abandon();
    return;
  }
  child_.reset();
  state_->ClearRank();
}

std::string RankHost::StatusBlockName(const RankKey& key) const {
  return absl::StrCat(state_->status_block_prefix(), key.attempt, "-", key.rank);
}

nlohmann::json RankHost::HandOver() {
  if (child_ == nullptr) return nullptr;
  ChildProcess::Held child = child_->Release();
  nlohmann::json handed = {{"pid", child.pid},
                           {"stdin_fd", child.stdin_fd},
                           {"stdout_fd", child.stdout_fd},
                           {"stderr_fd", child.stderr_fd},
                           {"unwritten", std::move(child.unwritten)},
                           {"partial_event", out_lines_->partial()},
                           {"partial_line", err_lines_->partial()},
                           {"checkpoint_dir", log_place_.checkpoint_dir},
                           {"is_claimed", log_place_.is_claimed}};
  if (cgroup_ != nullptr) {
    cgroup_->Release();
    handed["cgroup"] = cgroup_->path();
  }
  child_.reset();
  cgroup_.reset();
  status_block_->Release();
  status_block_.reset();
  return handed;
}

absl::Status RankHost::TakeOver(const nlohmann::json& handed) {
  if (handed.is_null()) return absl::OkStatus();
  const RankKey& key = *supervisor_->running();
  child_ = ChildProcess::TakeOver({handed.at("pid").get<pid_t>(), handed.at("stdin_fd").get<int>(),
                                   handed.at("stdout_fd").get<int>(), handed.at("stderr_fd").get<int>(),
                                   handed.at("unwritten").get<std::string>()});
  absl::StatusOr<std::unique_ptr<StatusBlock>> block = StatusBlock::TakeOver(StatusBlockName(key));
  if (!block.ok()) return block.status();
  status_block_ = *std::move(block);
  if (handed.contains("cgroup")) cgroup_ = std::make_unique<Cgroup>(handed["cgroup"].get<std::string>());
  BeginLines();
  const auto feed = [](const std::string& partial, LineSplitter* lines) { lines->Add(partial.data(), partial.size()); };
  feed(handed.at("partial_event").get<std::string>(), &*out_lines_);
  feed(handed.at("partial_line").get<std::string>(), &*err_lines_);
  log_place_ = {handed.at("checkpoint_dir").get<std::string>(), handed.at("is_claimed").get<bool>(), key.attempt,
                key.rank, key.job};
  run_log_->Begin(log_place_);
  LogLines({absl::StrCat("--- ", place_.worker, " was replaced and goes on with pid ", child_->pid())});
  return absl::OkStatus();
}

void RankHost::BeginLines() {
  out_lines_.emplace(kMaxEventBytes);
  err_lines_.emplace(kMaxLogLineBytes);
  last_status_ = RankStatus();
  still_since_.reset();
}

absl::Status RankHost::Spawn(const RankStart& start) {
  const absl::StatusOr<std::string> start_text = CompleteStart(start.start_json, state_->ProgramPath(), place_);
  if (!start_text.ok()) return start_text.status();
  if (absl::Status status = state_->WriteStartFiles(*start_text, start.program_text); !status.ok()) return status;
  if (!place_.local_folder.empty()) {
    if (absl::Status status = MakePrivateFolder(place_.local_folder); !status.ok()) return status;
  }
  const std::string block_name = StatusBlockName(start.key);
  absl::StatusOr<std::unique_ptr<StatusBlock>> block = StatusBlock::Create(block_name, start.key.attempt);
  if (!block.ok()) return block.status();
  ProcessOptions options = {.argv = {place_.rank_path, "--start", state_->StartPath(), "--status-shm", block_name},
                            .inherits = RankInherits,
                            .environment = RankEnvironment(place_.num_threads)};
  options.environment.merge(NetworkEnvironment(place_.interface));
  for (std::string& argument : ConfinementArguments(place_.confinement)) options.argv.push_back(std::move(argument));
  for (const std::string& library : place_.op_libraries)
    options.argv.insert(options.argv.end(), {"--op-library", library});
  if (const std::optional<User>& user = place_.confinement.user; user.has_value()) {
    std::vector<std::string> paths = {StatusBlockPath(block_name)};
    if (!place_.local_folder.empty()) paths.push_back(place_.local_folder);
    for (const std::string& path : paths) {
      if (absl::Status status = GiveTo(*user, path); !status.ok()) return status;
    }
    options.environment.insert({{"HOME", user->home}, {"USER", user->name}, {"LOGNAME", user->name}});
  }
  std::unique_ptr<Cgroup> cgroup;
  if (place_.cgroups != nullptr) {
    absl::StatusOr<std::unique_ptr<Cgroup>> made = place_.cgroups->Make(CgroupName(start.key));
    if (!made.ok()) return made.status();
    cgroup = *std::move(made);
    options.cgroup_procs = cgroup->ProcsPath();
  }
  absl::StatusOr<std::unique_ptr<ChildProcess>> child = start_process_(options);
  if (!child.ok()) return child.status();
  cgroup_ = std::move(cgroup);
  // Without the record a daemon that is killed relies on the rank seeing its stdin close.
  (void)state_->RecordRank((*child)->pid());
  child_ = *std::move(child);
  status_block_ = *std::move(block);
  BeginLines();
  ++ranks_started_;
  LogLines({absl::StrCat("--- ", start.key.Text(), " on ", place_.worker, " (", place_.device, " of ", place_.advertise,
                         ") pid ", child_->pid())});
  return absl::OkStatus();
}

void RankHost::Do(Supervisor::Actions actions) {
  std::deque<Action> queue(std::make_move_iterator(actions.begin()), std::make_move_iterator(actions.end()));
  while (!queue.empty()) {
    const Action action = std::move(queue.front());
    queue.pop_front();
    switch (action.kind) {
      case Action::Kind::kSpawn: {
        BeginLog(action.start);
        const absl::Status status = Spawn(action.start);
        if (status.ok()) break;
        LogLines({absl::StrCat("--- ", action.start.key.Text(), " did not start on ", place_.worker, ": ",
                               status.message())});
        state_->ClearRank();
        // What was to follow was for the rank that did not start.
        queue.clear();
        for (Action& next : supervisor_->StartFailed(std::string(status.message()), WallSeconds()))
          queue.push_back(std::move(next));
        break;
      }
      case Action::Kind::kKill:
        if (child_ == nullptr) break;
        LogLines({absl::StrCat("--- killed by ", place_.worker)});
        Kill();
        break;
      case Action::Kind::kCloseStdin:
        if (child_ != nullptr) child_->CloseStdin();
        break;
      case Action::Kind::kWriteLine:
        if (child_ != nullptr) child_->WriteLine(action.line);
        break;
    }
  }
}

void RankHost::Kill() {
  // First all at once, so that none can start another meanwhile.
  if (cgroup_ != nullptr) cgroup_->Kill();
  child_->Kill();
}

void RankHost::KillRank(const RankKey& key) {
  Turn();
  Do(supervisor_->KillRank(key, WallSeconds()));
}

std::vector<pollfd> RankHost::PollDescriptors() const {
  std::vector<pollfd> descriptors;
  if (child_ == nullptr) return descriptors;
  if (child_->stdout_fd() >= 0) descriptors.push_back({child_->stdout_fd(), POLLIN, 0});
  if (child_->stderr_fd() >= 0) descriptors.push_back({child_->stderr_fd(), POLLIN, 0});
  if (child_->WantsToWrite()) descriptors.push_back({child_->stdin_fd(), POLLOUT, 0});
  return descriptors;
}

void RankHost::LogLines(const std::vector<std::string>& lines) {
  const double now = WallSeconds();
  for (const std::string& line : lines) {
    log_->Line(line);
    run_log_->Line(line, now);
  }
}

void RankHost::BeginLog(const RankStart& start) {
  const nlohmann::json file = ParseJson(start.start_json);
  RunLog::Place place;
  place.attempt = start.key.attempt;
  place.rank = start.key.rank;
  place.job = start.key.job;
  place.checkpoint_dir = protocol::StartFieldOf(file, &protocol::StartFile::checkpoint_dir).value_or("");
  place.is_claimed = protocol::StartFieldOf(file, &protocol::StartFile::checkpoint_claimed).value_or(false);
  log_place_ = place;
  run_log_->Begin(std::move(place));
  // The coordinator's word about the attempt before, which rank 0 is told for the page about the run.
  const nlohmann::json run = protocol::StartFieldOf(file, &protocol::StartFile::run).value_or(nlohmann::json::object());
  const auto restarts = run.find("restarts");
  if (restarts == run.end() || !restarts->is_array() || restarts->empty()) return;
  const nlohmann::json& last = restarts->back();
  if (last.contains("attempt") && last["attempt"].is_number_integer() && last.contains("cause") &&
      last["cause"].is_string()) {
    LogLines(
        {absl::StrCat("--- attempt ", last["attempt"].get<int64_t>(), " ended: ", last["cause"].get<std::string>())});
  }
}

void RankHost::HandleOutput(const std::string& out, const std::string& err) {
  const std::vector<std::string> log_lines = err_lines_->Add(err.data(), err.size());
  LogLines(log_lines);
  for (const std::string& line : log_lines) supervisor_->LogLine(line, WallSeconds());
  EventLines(out_lines_->Add(out.data(), out.size()));
}

void RankHost::EventLines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    // This one is for the daemon itself.
    if (const absl::optional<std::string> upload = FetchOf(line); upload.has_value() && fetch_) {
      fetch_(*upload);
      continue;
    }
    supervisor_->EventLine(line, WallSeconds());
    if (const std::string words = LogWords(line); !words.empty()) LogLines({words});
  }
}

void RankHost::Turn() {
  if (child_ == nullptr) return;
  child_->FlushStdin();
  // Asked before reading: what a process wrote before its end is then read in this turn.
  const absl::optional<ProcessEnd> end = child_->TryReap();
  while (true) {
    std::string out, err;
    child_->ReadStdout(&out);
    child_->ReadStderr(&err);
    HandleOutput(out, err);
    if (!end.has_value() || (out.empty() && err.empty())) break;
  }
  if (!end.has_value()) return;
  const std::vector<std::string> last_log_lines = err_lines_->Finish();
  LogLines(last_log_lines);
  for (const std::string& line : last_log_lines) supervisor_->LogLine(line, WallSeconds());
  EventLines(out_lines_->Finish());
  TellOutOfMemory(*end);
  LogLines({end->exit_code.has_value() ? absl::StrCat("--- exit code ", *end->exit_code)
                                       : absl::StrCat("--- signal ", end->signal)});
  child_.reset();
  cgroup_.reset();
  status_block_.reset();
  state_->ClearRank();
  Do(supervisor_->Exited(*end, WallSeconds()));
}

void RankHost::TellOutOfMemory(const ProcessEnd& end) {
  if (cgroup_ == nullptr || end.signal != SIGKILL || cgroup_->NumOutOfMemory() == 0) return;
  const int64_t limit = place_.cgroups->limits().memory_bytes;
  const std::string message = absl::StrCat(
      "the kernel has ended it for want of memory: ",
      limit > 0
          ? absl::StrCat("it and what it had started took more than ", SizeText(limit), " (tacc-worker --rank-memory)")
          : "its machine, or the cgroup of its worker, has no more",
      "; let the job use less (a smaller train.per_device_train_batch_size), or give it more");
  supervisor_->Fail("memory", message, WallSeconds());
  LogLines({message});
}

absl::optional<RankHost::Sample> RankHost::TakeSample(double now) {
  if (status_block_ == nullptr) return absl::nullopt;
  Sample sample;
  sample.status = status_block_->Sample();
  if (!still_since_.has_value() || sample.status.heartbeat != last_status_.heartbeat) still_since_ = now;
  last_status_ = sample.status;
  sample.still_seconds = now - *still_since_;
  sample.peak_memory_bytes = PeakMemoryBytes(child_->pid());
  return sample;
}

}  // namespace tacc::worker
