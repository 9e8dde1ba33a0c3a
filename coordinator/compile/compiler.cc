#include "coordinator/compile/compiler.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "confinement/confine.h"
#include "coordinator/compile/request.h"
#include "coordinator/core/job_state.h"
#include "coordinator/core/start_file.h"
#include "graph/ir/fingerprint.h"
#include "machine/clock.h"
#include "machine/exit_code.h"
#include "spdlog/spdlog.h"
#include "text/utf8.h"

namespace tacc::coordinator {
namespace {

// That wait: whoever may plan can ask for many, and each keeps its job in memory.
constexpr int kMaxPlans = 100;
constexpr size_t kMaxErrorText = 16 << 10;

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) return absl::InternalError(absl::StrCat("cannot write ", path, ": ", strerror(errno)));
  return absl::OkStatus();
}

// NotFound, or Unavailable with the system's words.
absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::string text;
  ssize_t got = fd;
  char buffer[65536];
  while (got >= 0 && (got = read(fd, buffer, sizeof(buffer))) > 0) text.append(buffer, static_cast<size_t>(got));
  const int error = errno;
  if (fd >= 0) close(fd);
  if (got == 0) return text;
  const std::string message = absl::StrCat("cannot read ", path, ": ", strerror(error));
  return error == ENOENT || error == ENOTDIR ? absl::NotFoundError(message) : absl::UnavailableError(message);
}

absl::Status Sync(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool is_synced = fd >= 0 && fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  return is_synced ? absl::OkStatus()
                   : absl::InternalError(absl::StrCat("cannot force ", path, " to the disk: ", strerror(error)));
}

// Forces the files of a directory to the disk, and its entry in those above it, up to `top`.
absl::Status SyncOutput(const std::string& directory, const std::string& top) {
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (absl::Status status = Sync(it->path()); !status.ok()) return status;
  }
  if (error) return absl::InternalError(absl::StrCat("cannot list ", directory, ": ", error.message()));
  for (std::string path = directory;; path.resize(path.rfind('/'))) {
    if (absl::Status status = Sync(path); !status.ok() || path == top) return status;
  }
}

std::string RequestPath(const std::string& dir) { return absl::StrCat(dir, "/request.json"); }
std::string ProgramName(int stage) { return absl::StrCat("stage", stage, ".program"); }

// The lines "error: ..." of a tool's stderr, without the word, each with the lines that go on with it (a command to
// run, a caret under the place); without such lines, its last lines.
std::string ErrorText(const std::string& err) {
  std::string text;
  for (absl::string_view line : absl::StrSplit(err, '\n', absl::SkipWhitespace())) {
    const bool is_first = absl::ConsumePrefix(&line, "error: ");
    if (is_first || !text.empty()) absl::StrAppend(&text, text.empty() ? "" : "\n", line);
  }
  if (text.empty()) text = err.size() > 2000 ? err.substr(err.size() - 2000) : err;
  text = ValidUtf8(text, kMaxErrorText);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// True when another process ended the child, not a limit of ours nor a fault of its own.
bool WasKilled(const ProgramResult& result) {
  if (result.timed_out || result.cancelled || result.output_too_long) return false;
  switch (result.end.signal) {
    case 0:
    case SIGABRT:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGSEGV:
    case SIGSYS:
    case SIGTRAP:
      return false;
    default:
      return true;
  }
}

// Waits, unless `cancel` becomes true.
void Pause(double seconds, const std::atomic<bool>& cancel) {
  const double end = SteadySeconds() + seconds;
  while (!cancel && SteadySeconds() < end) std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

// InvalidArgument: the first path of the job that may not be read.
absl::Status CheckReadPaths(const v1::JobSpec& spec, const AllowedPaths& paths) {
  const std::pair<const char*, std::string> named[] = {{"model.path", spec.model().path()},
                                                       {"model.graph", spec.model().graph()},
                                                       {"data.path", spec.data().path()},
                                                       {"data.eval_path", spec.data().eval_path()},
                                                       {"train.lr_factors_path", spec.train().lr_factors_path()},
                                                       {"train.lora.init_from", spec.train().lora().init_from()}};
  for (const auto& [field, path] : named) {
    const absl::Status status = path.empty() ? absl::OkStatus() : paths.Check(path, AllowedPaths::Use::kRead);
    if (absl::IsInvalidArgument(status)) return absl::InvalidArgumentError(absl::StrCat(field, ": ", status.message()));
  }
  return absl::OkStatus();
}

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

Compiler::Compiler(Options options) : options_(std::move(options)), thread_([this] { Loop(); }) {}

Compiler::~Compiler() { Shutdown(); }

void Compiler::Shutdown() {
  std::deque<std::shared_ptr<Work>> left;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    left.swap(queue_);
    if (running_ != nullptr) *running_->cancel = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (const auto& work : left) {
    *work->cancel = true;
    work->run(*work->cancel);
  }
}

void Compiler::Loop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    running_ = queue_.front();
    queue_.pop_front();
    lock.unlock();
    running_->run(*running_->cancel);
    lock.lock();
    running_ = nullptr;
  }
}

void Compiler::Start(const StartCompile& start, const v1::JobSpec& spec, Done done) {
  auto work = std::make_shared<Work>();
  work->job = start.job;
  work->run = [this, start, given = spec, done = std::move(done)](const std::atomic<bool>& cancel) {
    if (cancel) return;
    const v1::JobSpec spec = WithUploadsAt(given, options_.upload_path);
    const auto began = std::chrono::steady_clock::now();
    auto compiled = [&]() -> absl::StatusOr<CompileDone> {
      // A new folder each time: what an earlier compilation made stays whole until the log names another.
      const std::string job_dir = absl::StrCat(options_.jobs_dir, "/", start.job);
      std::error_code error;
      std::filesystem::create_directories(job_dir, error);
      std::string directory;
      for (int number = 1; !error && (directory.empty() ||
                                      !std::filesystem::create_directory(absl::StrCat(job_dir, "/", directory), error));
           ++number) {
        directory = absl::StrCat("compile-", number);
      }
      if (error) return absl::InternalError(absl::StrCat("cannot make a folder in ", job_dir, ": ", error.message()));
      const std::string dir = absl::StrCat(job_dir, "/", directory);
      absl::StatusOr<std::string> output =
          CheckAndRun(InPrecision(spec, start.precision, start.residual_dtype), {start.world, start.device, ""}, dir,
                      /*compile=*/true, cancel);
      if (!output.ok()) return output.status();
      CompileDone result;
      result.job = start.job;
      result.directory = directory;
      for (const auto& [name, text] :
           {std::pair{"summary.json", &result.summary}, std::pair{"data.json", &result.data}}) {
        absl::StatusOr<std::string> read = ReadFile(absl::StrCat(dir, "/", name));
        if (!read.ok()) return absl::InternalError(read.status().message());
        *text = *std::move(read);
      }
      Summary summary;
      if (absl::Status status = Summary::Parse(result.summary, &summary); !status.ok())
        return absl::InternalError(status.message());
      IdentityParts parts;
      for (int stage = 0; stage < summary.NumStages(); ++stage) {
        absl::StatusOr<std::string> program = ReadFile(absl::StrCat(dir, "/", ProgramName(stage)));
        if (!program.ok()) return absl::InternalError(program.status().message());
        result.program_fingerprints.push_back(graph::Fingerprint(*program));
        parts.programs.push_back(*std::move(program));
      }
      if (WeightsOf(spec, summary.weights) == absl::string_view("pretrained")) {
        std::vector<std::string> command = {options_.data_binary, "fingerprint", "--model", ModelDir(spec)};
        if (spec.train().lora().has_init_from())
          command.insert(command.end(), {"--adapter", spec.train().lora().init_from()});
        absl::StatusOr<std::string> printed = RunTool(command, dir, cancel);
        if (!printed.ok()) return printed.status();
        parts.weights = std::string(absl::StripTrailingAsciiWhitespace(*printed));
      }
      absl::StatusOr<std::string> config = ReadFile(absl::StrCat(dir, "/config.json"));
      if (!config.ok() && !absl::IsNotFound(config.status())) return absl::InternalError(config.status().message());
      if (config.ok()) parts.config_json = *std::move(config);
      parts.summary = result.summary;
      parts.data = result.data;
      absl::StatusOr<std::string> identity = Identity(given, parts);
      if (!identity.ok()) return identity.status();
      result.identity = *std::move(identity);
      // Before the log names it.
      if (absl::Status status = SyncOutput(dir, options_.jobs_dir); !status.ok()) return status;
      result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
      return result;
    }();
    if (cancel) return;
    if (compiled.ok()) return done(*std::move(compiled));
    const bool bad_input = absl::IsInvalidArgument(compiled.status());
    done(CompileFailed{start.job, std::string(compiled.status().message()),
                       bad_input ? v1::FAILURE_CODE_BAD_INPUT : v1::FAILURE_CODE_COMPILE});
  };
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_) return;
  // Before all plans.
  queue_.insert(std::find_if(queue_.begin(), queue_.end(), [](const auto& other) { return other->job.empty(); }),
                std::move(work));
  wake_.notify_all();
}

void Compiler::Stop(const std::string& job) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::erase_if(queue_, [&](const std::shared_ptr<Work>& work) { return work->job == job; });
  if (running_ != nullptr && running_->job == job) *running_->cancel = true;
}

void Compiler::Plan(const v1::JobSpec& spec, const PlanTarget& target, std::shared_ptr<std::atomic<bool>> cancel,
                    Planned planned) {
  auto work = std::make_shared<Work>();
  work->cancel = std::move(cancel);
  work->run = [this, spec = WithUploadsAt(spec, options_.upload_path), target,
               planned](const std::atomic<bool>& cancel) {
    if (cancel) return planned(absl::CancelledError("the coordinator is stopping"));  // Or nobody waits.
    std::string dir = absl::StrCat(options_.jobs_dir, "/.plan-XXXXXX");
    if (mkdtemp(dir.data()) == nullptr)
      return planned(absl::InternalError(absl::StrCat("cannot make ", dir, ": ", strerror(errno))));
    planned([&]() -> absl::StatusOr<Plans> {
      absl::StatusOr<std::string> candidates = CheckAndRun(spec, target, dir, /*compile=*/false, cancel);
      if (!candidates.ok()) return candidates.status();
      absl::StatusOr<std::string> request = ReadFile(RequestPath(dir));
      if (!request.ok()) return absl::InternalError(request.status().message());
      return Plans{*std::move(candidates), *std::move(request)};
    }());
    std::error_code ignored;
    std::filesystem::remove_all(dir, ignored);
  };
  std::vector<std::shared_ptr<Work>> left;  // For which nobody waits any more.
  absl::Status status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(queue_, [&left](const std::shared_ptr<Work>& other) {
      if (!other->job.empty() || !*other->cancel) return false;
      left.push_back(other);
      return true;
    });
    const auto num_plans =
        std::count_if(queue_.begin(), queue_.end(), [](const auto& other) { return other->job.empty(); });
    if (stopping_) {
      status = absl::CancelledError("the coordinator is stopping");
    } else if (num_plans >= kMaxPlans) {
      status = absl::ResourceExhaustedError(absl::StrCat(num_plans, " plans wait for the compiler; try again later"));
    } else {
      queue_.push_back(std::move(work));
      wake_.notify_all();
    }
  }
  for (const auto& other : left) other->run(*other->cancel);
  if (!status.ok()) planned(status);
}

void Compiler::Forget(const std::string& job) const {
  std::error_code ignored;  // What is left is removed when the coordinator starts again.
  std::filesystem::remove_all(absl::StrCat(options_.jobs_dir, "/", job), ignored);
}

absl::StatusOr<std::string> Compiler::ReadProgram(const std::string& job, const v1::JobCompiled& compiled,
                                                  int stage) const {
  const std::string path =
      absl::StrCat(options_.jobs_dir, "/", job, "/", compiled.directory(), "/", ProgramName(stage));
  absl::StatusOr<std::string> text = ReadFile(path);
  if (text.ok() && stage < compiled.program_fingerprints_size() &&
      graph::Fingerprint(*text) != compiled.program_fingerprints(stage)) {
    return absl::DataLossError(absl::StrCat(path, ": not what was compiled; the file is torn"));
  }
  return text;
}

absl::StatusOr<std::string> Compiler::ReadPredictedTrace(const std::string& job,
                                                         const v1::JobCompiled& compiled) const {
  return ReadFile(absl::StrCat(options_.jobs_dir, "/", job, "/", compiled.directory(), "/trace.json"));
}

absl::StatusOr<std::string> Compiler::CheckAndRun(const v1::JobSpec& spec, const PlanTarget& target,
                                                  const std::string& dir, bool compile,
                                                  const std::atomic<bool>& cancel) {
  if (absl::Status status = CheckReadPaths(spec, options_.paths); !status.ok()) return status;
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return absl::InternalError(absl::StrCat("cannot make ", dir, ": ", error.message()));
  std::vector<std::string> check = {options_.data_binary, "check", "--data", spec.data().path()};
  auto add = [&check](const std::string& flag, const std::string& value) {
    if (value.empty()) return;
    check.push_back(flag);
    check.push_back(value);
  };
  add("--eval", spec.data().eval_path());
  add("--seq-len", spec.data().has_seq_len() ? absl::StrCat(spec.data().seq_len()) : "");
  add("--global-batch-size",
      spec.train().has_global_batch_size() ? absl::StrCat(spec.train().global_batch_size()) : "");
  add("--model", spec.model().path());
  // A plan for another cluster needs no data but for its length and the number of its samples.
  const bool needs_data = target.cluster.empty() || !spec.data().has_seq_len() || spec.train().has_num_train_epochs();
  absl::StatusOr<std::string> data = "";
  if (spec.data().has_client()) {
    data = ClientDataFacts(spec);
  } else if (needs_data) {
    data = RunTool(check, dir, cancel);
  }
  if (!data.ok()) return data.status();
  absl::StatusOr<std::string> request = CompileRequest(spec, target, *data);
  if (!request.ok()) return request.status();
  const std::string request_path = RequestPath(dir);
  for (const auto& [path, text] :
       {std::pair{request_path, &*request}, std::pair{absl::StrCat(dir, "/data.json"), &*data}}) {
    if (absl::Status status = WriteFile(path, *text); !status.ok()) return status;
  }
  std::vector<std::string> plan = {options_.plan_binary, compile ? "compile" : "plan", "--request", request_path};
  if (compile) {
    plan.push_back("--out");
    plan.push_back(dir);
  }
  return RunTool(plan, dir, cancel);
}

absl::StatusOr<std::string> Compiler::RunTool(const std::vector<std::string>& arguments, const std::string& dir,
                                              const std::atomic<bool>& cancel) {
  const std::string tool = absl::StrCat(BaseName(arguments[0]), " ", arguments[1]);
  // It writes what it makes, and reads the rest.
  std::vector<std::string> readable = options_.paths.roots();
  readable.insert(readable.end(), options_.paths.read_roots().begin(), options_.paths.read_roots().end());
  const AllowedPaths paths = options_.paths.IsLimited() ? AllowedPaths({dir}, std::move(readable)) : AllowedPaths();
  std::vector<std::string> argv = ConfinementArguments({paths, std::nullopt});
  argv.insert(argv.begin(), arguments[0]);
  argv.insert(argv.end(), arguments.begin() + 1, arguments.end());
  const auto run = [&] {
    return RunProgram({.argv = argv, .input = ProcessOptions::Input::kEmpty}, options_.limits,
                      [&cancel] { return cancel.load(); });
  };
  absl::StatusOr<ProgramResult> result = run();
  for (const double seconds : options_.retry_seconds) {
    if (!result.ok() || !WasKilled(*result)) break;
    spdlog::warn("{} was killed by signal {}; running it again in {} s", tool, result->end.signal, seconds);
    Pause(seconds, cancel);
    if (cancel) return absl::CancelledError(absl::StrCat(tool, " was stopped"));
    result = run();
  }
  if (!result.ok()) return result.status();
  (void)WriteFile(absl::StrCat(dir, "/", BaseName(arguments[0]), ".log"), result->err);
  if (result->cancelled) return absl::CancelledError(absl::StrCat(tool, " was stopped"));
  if (result->timed_out) {
    return absl::DeadlineExceededError(
        absl::StrCat(tool, " took longer than ", options_.limits.seconds, " s and was killed"));
  }
  if (result->output_too_long)
    return absl::InternalError(absl::StrCat(tool, " printed more than ", options_.limits.output_bytes, " bytes"));
  if (result->end.exit_code == 0) return std::move(result->out);
  if (WasKilled(*result)) {
    return absl::InternalError(absl::StrCat(tool, " was killed by signal ", result->end.signal, ", ",
                                            options_.retry_seconds.size() + 1,
                                            " times in a row, by the kernel for want of memory (see dmesg) or by "
                                            "somebody; submit the job again when that is "
                                            "mended"));
  }
  const std::string text = ErrorText(result->err);
  if (result->end.exit_code == kExitBadInput)
    return absl::InvalidArgumentError(text.empty() ? absl::StrCat(tool, ": exit 2") : text);
  if (result->out_of_memory) {
    return absl::InternalError(absl::StrCat(tool, " needs more than the ", options_.limits.memory_bytes >> 20,
                                            " MiB of memory that it may have"));
  }
  std::string how = absl::StrCat(": exit ", result->end.exit_code.value_or(-1));
  if (result->end.signal != 0) {
    const char* name = sigabbrev_np(result->end.signal);
    how =
        absl::StrCat(" crashed by signal ", result->end.signal, name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"),
                     ", which is a fault of its own, not of the job or of a limit");
  }
  return absl::InternalError(absl::StrCat(tool, how, text.empty() ? "" : ": ", text));
}

}  // namespace tacc::coordinator
