#include "coordinator/core/testing/script.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "coordinator/core/core.h"
#include "coordinator/core/testing/arguments.h"
#include "coordinator/core/testing/core_text.h"
#include "coordinator/core/view.h"
#include "protocol/attach_protocol.h"

namespace tacc::coordinator {
namespace {

// "none": as before identities said where training began, or what config.json said.
std::string Identity(int seed, const std::string& weights = "random", const std::string& eps = "1e-05") {
  return absl::StrCat(R"({"model":"100 parameters",)",
                      eps == "none" ? ""
                                    : absl::StrCat(R"("config":{"head_dim":"8","norm_eps":")", eps,
                                                   R"("},"config_keys":{"norm_eps":"rms_norm_eps"},)"),
                      weights == "none" ? "" : absl::StrCat("\"weights\":\"", weights, "\","),
                      R"("data":"1000 tokens, f","seq_len":64,"global_batch_size":8,"seed":)", seed,
                      R"(,"model_path":"/models/m"})");
}

v1::RankId ParseRank(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  return IdOf(parts.at(0), std::stoi(parts.at(1)), std::stoi(parts.at(2)));
}

class Interpreter {
 public:
  Interpreter() {
    MakeCore(Core::Options().max_ended_jobs);
    core_->Resume(now_);
  }

  std::string Run(const std::string& command) {
    const Arguments args(command);
    const std::string& name = args.words.at(0);
    const std::string subject = args.words.size() > 1 ? args.words[1] : "";
    if (name == "submit") return Feed(Submit(subject, args));
    if (name == "cancel") {
      return Feed(CancelJob{++tag_, subject,
                            args.words.at(2) == "now" ? v1::CANCEL_MODE_NOW : v1::CANCEL_MODE_CHECKPOINT,
                            ScopeOf(args)});
    }
    if (name == "compiled") return Feed(Compiled(subject, args));
    if (name == "compile_failed") {
      std::vector<std::string> rest(args.words.begin() + 3, args.words.end());
      return Feed(
          CompileFailed{subject, absl::StrJoin(rest, " "),
                        args.words.at(2) == "bad_input" ? v1::FAILURE_CODE_BAD_INPUT : v1::FAILURE_CODE_COMPILE});
    }
    if (name == "unread" || name == "lost") {
      return Feed(ProgramUnread{ParseRank(subject), absl::StrJoin(args.words.begin() + 2, args.words.end(), " "),
                                /*is_lost=*/name == "lost"});
    }
    if (name == "attach") return Feed(Attach(subject, args));
    if (name == "detach") return Feed(WorkerDetached{sessions_[subject]});
    if (name == "paths") return Feed(Paths(subject, args));
    if (name == "asked") return absl::StrCat(FieldsText(asked_[subject]), "\n");
    if (name == "event") return Feed(Event(subject, args, command.substr(command.find('{'))));
    if (name == "step" || name == "checkpoint" || name == "ready") {
      return Feed(Event(subject, args, Json(name, args.words.size() > 2 ? args.words[2] : "0", ParseRank(subject))));
    }
    if (name == "exit") return Feed(Exit(subject, args));
    if (name == "beat") return Feed(Beat(subject, args));
    if (name == "device") return Feed(DeviceState(subject, args));
    if (name == "deleted") return Feed(Deleted(subject, args));
    if (name == "reported") return Feed(Reported(subject, args));
    if (name == "tick") return TickFor(std::stod(subject), args);
    if (name == "stall") return Stall(std::stod(subject));
    if (name == "restart") return Restart(args);
    if (name == "job") return ShowJob(subject);
    if (name == "workers") return ShowWorkers();
    return absl::StrCat("no such command: ", name, "\n");
  }

 private:
  void MakeCore(size_t max_ended_jobs, int64_t last_id_number = 0) {
    Core::Options options;
    options.last_id_number = last_id_number;
    options.max_ended_jobs = max_ended_jobs;
    options.version = version_;
    core_ = std::make_unique<Core>(options, [](const JobState& job, int rank, int call, int node) {
      const std::string stage =
          job.summary.NumStages() > 1 ? absl::StrCat(" of stage ", job.summary.StageOf(rank)) : "";
      return absl::StrCat("all_gather %", node, " of call ", call, stage);
    });
  }

  std::string Feed(const Input& input) {
    std::string text;
    for (const Decision& decision : core_->Handle(now_, input)) {
      Remember(decision);
      absl::StrAppend(&text, DecisionText(decision, workers_));
    }
    return text.empty() ? "(nothing)\n" : text;
  }

  // ---- Inputs.

  // project=NAME: a user of that project asks; else an administrator.
  static JobScope ScopeOf(const Arguments& args) {
    const bool is_user = args.values.count("project") != 0;
    return {!is_user, is_user ? args.Text("project") : ""};
  }

  Input Submit(const std::string& name, const Arguments& args) {
    SubmitJob submit;
    submit.tag = ++tag_;
    submit.request_id = args.Text("request", absl::StrCat("r", tag_));
    submit.scope = ScopeOf(args);
    submit.spec.set_name(name);
    submit.spec.mutable_model()->set_path(args.Text("model", "/models/m"));
    submit.spec.mutable_data()->set_path("/data/d");
    if (args.values.count("epochs")) {
      submit.spec.mutable_train()->set_num_train_epochs(static_cast<double>(args.Int("epochs", 1)));
    } else {
      submit.spec.mutable_train()->set_max_steps(static_cast<int>(args.Int("max_steps", 100)));
    }
    submit.spec.mutable_checkpoint()->set_dir(args.Text("dir", absl::StrCat("/runs/", name)));
    if (args.values.count("resume")) submit.spec.mutable_checkpoint()->set_resume_from_checkpoint(args.Text("resume"));
    if (args.values.count("limit"))
      submit.spec.mutable_checkpoint()->set_save_total_limit(static_cast<int>(args.Int("limit", 2)));
    if (args.values.count("workers"))
      submit.spec.mutable_resources()->set_workers(static_cast<int>(args.Int("workers", 1)));
    if (args.values.count("max_seconds"))
      submit.spec.mutable_train()->set_max_seconds(static_cast<double>(args.Int("max_seconds", 1)));
    if (args.values.count("max_restarts")) submit.spec.set_max_restarts(static_cast<int>(args.Int("max_restarts", 3)));
    return submit;
  }

  Input Compiled(const std::string& job, const Arguments& args) {
    CompileDone done;
    done.job = job;
    const int64_t world = args.Int("world", core_->Find(job, {.all = true})->spec.resources().workers());
    const int64_t stages = args.Int("pp", 1);
    done.summary = absl::StrCat(
        R"({"mesh":{"pp":)", stages, R"(,"dp":)", world / stages, R"(},"axes":["pp","dp"],"world":)", world,
        R"(,"precision":")", args.Text("precision", "f32"), R"(","residual_dtype":")", args.Text("residual", ""),
        R"(","num_parameters":100,"flops_per_step":1e9,"seq_len":64,)", R"("global_batch_size":8,"max_steps":)",
        args.Int("max_steps", 0), R"(,"memory":{"total_bytes":)", args.Int("need", 1000), "}");
    if (const std::string note = args.Text("note", ""); !note.empty())
      absl::StrAppend(&done.summary, R"(,"notes":[")", note, R"("])");
    done.summary += "}";
    done.data = "{}";
    done.identity = Identity(42, "random", args.Text("eps", "1e-05"));
    done.seconds = 1;
    return done;
  }

  Input Attach(const std::string& name, const Arguments& args) {
    WorkerAttached attached;
    attached.session = ++last_session_;
    sessions_[name] = attached.session;
    workers_[attached.session] = name;
    v1::Register& registration = attached.registration;
    registration.set_name(name);
    registration.set_instance(args.Text("instance", "i1"));
    registration.set_version(args.Text("version", "0.1.0"));
    registration.set_protocol(static_cast<int>(args.Int("protocol", protocol::kAttachProtocol)));
    registration.set_advertise(args.Text("advertise", absl::StrCat("host-", name)));
    v1::DeviceProfile* device = registration.mutable_device();
    device->set_kind(args.Text("kind", "cpu"));
    device->set_threads(static_cast<int>(args.Int("threads", 1)));
    device->set_cpus(static_cast<double>(args.Int("cpus", 0)));
    device->set_memory_bytes(args.Int("memory", 4000));
    (*device->mutable_matmul_flops_per_second())["f32"] = 1e10;
    // Of a CPU, its speed in bf16 over that in f32.
    if (args.values.count("bf16") != 0) {
      (*device->mutable_matmul_flops_per_second())["bf16"] = 1e10 * static_cast<double>(args.Int("bf16", 1));
      device->set_multiplies_bf16(args.Int("bf16", 1) > 1);
    }
    if (args.values.count("peak"))
      (*device->mutable_peak_flops_per_second())["f32"] = static_cast<double>(args.Int("peak", 0));
    registration.set_device_trouble(args.Words("trouble"));
    for (const char* key : {"running", "held"}) {
      if (args.values.count(key) == 0) continue;
      v1::HeldRank* held = registration.add_ranks();
      *held->mutable_id() = ParseRank(args.Text(key));
      held->set_running(std::string(key) == "running");
    }
    return attached;
  }

  // NAME:step=N:attempt=N...
  static v1::FoundCheckpoint Checkpoint(const std::string& text) {
    v1::FoundCheckpoint found;
    const std::vector<std::string> parts = absl::StrSplit(text, ':');
    found.set_name(parts[0]);
    int seed = 42;
    std::string weights = "random", eps = "1e-05";
    for (size_t k = 1; k < parts.size(); ++k) {
      const std::vector<std::string> pair = absl::StrSplit(parts[k], '=');
      if (pair[0] == "step") found.set_step(std::stoll(pair[1]));
      if (pair[0] == "attempt") found.set_attempt(std::stoi(pair[1]));
      if (pair[0] == "seed") seed = std::stoi(pair[1]);
      if (pair[0] == "weights") weights = pair[1];
      if (pair[0] == "eps") eps = pair[1];
      for (const auto& [word, kind, why] :
           {std::tuple{"unread", v1::PATH_PROBLEM_KIND_UNAVAILABLE, "Input/output error"},
            std::tuple{"denied", v1::PATH_PROBLEM_KIND_DENIED, "Permission denied"},
            std::tuple{"gone", v1::PATH_PROBLEM_KIND_MISSING, "missing"}}) {
        if (pair[0] != word) continue;
        found.mutable_unread()->set_kind(kind);
        found.mutable_unread()->set_message(absl::StrCat(parts[0], "/manifest.json: ", why));
      }
      if (pair[0] == "damaged") found.set_damage("rank-00000.safetensors has 10 bytes, the manifest says 20");
    }
    found.set_identity(Identity(seed, weights, eps));
    return found;
  }

  Input Paths(const std::string& worker, const Arguments& args) {
    WorkerMessage message{sessions_[worker], {}};
    v1::CheckPathsResult* result = message.message.mutable_check_paths_result();
    result->set_request(checks_[worker]);
    result->set_max_attempt(static_cast<int>(args.Int("max_attempt", 0)));
    result->set_previous_owner(args.Text("owner"));
    result->set_exported_checkpoint(args.Text("exported"));
    for (const auto& [key, kind] :
         {std::pair{"missing", v1::PATH_PROBLEM_KIND_MISSING}, std::pair{"denied", v1::PATH_PROBLEM_KIND_DENIED},
          std::pair{"unavailable", v1::PATH_PROBLEM_KIND_UNAVAILABLE},
          std::pair{"wrong", v1::PATH_PROBLEM_KIND_WRONG}}) {
      if (args.values.count(key) == 0) continue;
      v1::PathProblem* problem = result->add_problems();
      problem->set_kind(kind);
      problem->set_message(args.Words(key));
    }
    if (args.values.count("export_problem")) result->set_export_problem(args.Words("export_problem"));
    for (size_t i = 2; i < args.words.size(); ++i) *result->add_checkpoints() = Checkpoint(args.words[i]);
    return message;
  }

  // from=WORKER: it comes from that one, which counts for itself, and not from the one on which the rank was placed.
  v1::RankReport* NewReport(const std::string& rank, const Arguments& args, WorkerMessage* message) {
    const v1::RankId id = ParseRank(rank);
    const bool is_foreign = args.values.count("from") != 0;
    message->session = sessions_[is_foreign ? args.Text("from") : placed_[rank]];
    v1::RankReport* report = message->message.mutable_rank_report();
    *report->mutable_id() = id;
    report->set_sequence(++sequences_[is_foreign ? absl::StrCat(rank, " from ", args.Text("from")) : rank]);
    return report;
  }

  Input Event(const std::string& rank, const Arguments& args, const std::string& json) {
    // "event toy-1/1/0@3 {...}" sends number 3 (again).
    const std::vector<std::string> parts = absl::StrSplit(rank, '@');
    WorkerMessage message;
    v1::RankReport* report = NewReport(parts[0], args, &message);
    if (parts.size() == 2) {
      report->set_sequence(std::stoull(parts[1]));
      sequences_[parts[0]] = std::max<uint64_t>(sequences_[parts[0]] - 1, report->sequence());
    }
    report->set_event(json);
    return message;
  }

  static std::string Json(const std::string& event, const std::string& step, const v1::RankId& id) {
    const std::string head = absl::StrCat(R"({"event":")", event, R"(","time":1,"step":)", step);
    if (event == "step") {
      return absl::StrCat(
          head, R"(,"loss":2.5,"grad_norm":1,"learning_rate":0.1,"tokens":512,"target_tokens":500,"seconds":0.5,)",
          R"("data_wait_seconds":0.01,"communication_seconds":0.02,"tokens_per_second":1024,"skipped":0})");
    }
    if (event == "checkpoint") {
      return absl::StrCat(head, R"(,"path":"step-)", step, ".a", id.attempt(),
                          R"(","bytes":100,"seconds":0.4,"stall_seconds":0.1})");
    }
    return absl::StrCat(head, R"(,"resumed_from":"","arena_bytes":4096,"load_seconds":1})");
  }

  Input Exit(const std::string& rank, const Arguments& args) {
    WorkerMessage message;
    v1::RankExited* exited = NewReport(rank, args, &message)->mutable_exited();
    if (args.values.count("signal")) {
      exited->set_signal(static_cast<int>(args.Int("signal", 0)));
    } else if (args.values.count("start")) {
      exited->set_start_error(args.Words("start"));
    } else if (args.words.at(2) == "killed") {
      exited->set_signal(9);
      exited->set_killed(true);
    } else {
      exited->set_exit_code(std::stoi(args.words.at(2)));
    }
    if (args.values.count("log")) exited->add_last_log_lines(args.Words("log"));
    return message;
  }

  Input Beat(const std::string& worker, const Arguments& args) {
    WorkerMessage message{sessions_[worker], {}};
    v1::Heartbeat* beat = message.message.mutable_heartbeat();
    if (args.words.size() > 2) {
      v1::RankSample* sample = beat->mutable_sample();
      *sample->mutable_id() = ParseRank(args.words[2]);
      sample->set_step(args.Int("step", 0));
      sample->set_call(static_cast<int>(args.Int("call", 0)));
      sample->set_node(static_cast<int>(args.Int("node", 0)));
      sample->set_still_seconds(static_cast<double>(args.Int("still", 0)));
      const std::string activity = args.words.size() > 3 ? args.words[3] : "";
      sample->set_waits_for_ranks(activity == "collective" || activity == "meeting");
      sample->set_waits_for_client(activity == "client");
      sample->set_activity(activity);
    }
    return message;
  }

  Input DeviceState(const std::string& worker, const Arguments& args) {
    WorkerMessage message{sessions_[worker], {}};
    v1::DeviceState* state = message.message.mutable_device_state();
    state->set_trouble(absl::StrJoin(args.words.begin() + 2, args.words.end(), " "));
    if (args.values.count("memory")) {
      *state->mutable_device() = core_->members().workers().at(worker).device;
      state->mutable_device()->set_memory_bytes(args.Int("memory", 0));
    }
    return message;
  }

  Input Deleted(const std::string& worker, const Arguments& args) {
    WorkerMessage message{sessions_[worker], {}};
    v1::DeleteCheckpointsResult* result = message.message.mutable_delete_checkpoints_result();
    result->set_request(deletes_[args.Text("asked", worker)]);
    for (size_t i = 2; i < args.words.size(); ++i) result->add_deleted(args.words[i]);
    return message;
  }

  Input Reported(const std::string& worker, const Arguments& args) {
    WorkerMessage message{sessions_[worker], {}};
    v1::WriteReportResult* result = message.message.mutable_write_report_result();
    result->set_request(reports_[args.Text("asked", worker)]);
    if (args.words.size() > 2) result->set_path(args.words[2]);
    result->set_error(args.Words("error"));
    return message;
  }

  std::string TickFor(double seconds, const Arguments& args) {
    std::string text;
    const std::vector<std::string> alive = absl::StrSplit(args.Text("alive"), ',', absl::SkipEmpty());
    for (double left = seconds; left > 0; left -= 1) {
      now_.steady += std::min(left, 1.0);
      now_.wall += std::min(left, 1.0);
      for (const std::string& worker : alive) {
        WorkerMessage message{sessions_[worker], {}};
        message.message.mutable_heartbeat();
        const std::string out = Feed(message);
        if (out != "(nothing)\n") absl::StrAppend(&text, out);
      }
      const std::string out = Feed(Tick{});
      if (out != "(nothing)\n") absl::StrAppend(&text, out);
    }
    return text.empty() ? "(nothing)\n" : text;
  }

  std::string Stall(double seconds) {
    now_.steady += seconds;
    now_.wall += seconds;
    return Feed(Tick{});
  }

  std::string Restart(const Arguments& args) {
    version_ = args.Text("version", version_);
    MakeCore(static_cast<size_t>(args.Int("keep", static_cast<int64_t>(Core::Options().max_ended_jobs))),
             args.Int("last_id", 0));
    now_.steady = 5000;  // Another machine's clock, for all that the core may know.
    for (const v1::Fact& fact : facts_) {
      const absl::Status status = core_->Replay(fact);
      if (!status.ok()) return absl::StrCat(status.ToString(), "\n");
    }
    for (const auto& [rank, sequence] : stored_) core_->ReplaySequence(ParseRank(rank), sequence);
    for (const auto& [job, step] : last_steps_) core_->ReplayStep(job, step);
    core_->Resume(now_);
    sessions_.clear();
    return Feed(Tick{});
  }

  // What the store and the daemons would remember.
  void Remember(const Decision& decision) {
    if (const auto* log = std::get_if<LogFact>(&decision)) {
      // As a store would: through bytes.
      v1::Fact fact;
      fact.ParseFromString(log->fact.SerializeAsString());
      facts_.push_back(fact);
      if (fact.has_attempt_started()) {
        for (const auto& placement : fact.attempt_started().placement()) {
          placed_[absl::StrCat(fact.job(), "/", fact.attempt_started().attempt(), "/", placement.rank())] =
              placement.worker();
        }
      }
    } else if (const auto* sequence = std::get_if<StoreSequence>(&decision)) {
      stored_[RankName(sequence->id)] = sequence->sequence;
    } else if (const auto* step = std::get_if<StoreStep>(&decision)) {
      last_steps_[step->job] = step->step;
    } else if (const auto* forget = std::get_if<ForgetJob>(&decision)) {
      std::erase_if(facts_, [&](const v1::Fact& fact) { return fact.job() == forget->job; });
      last_steps_.erase(forget->job);
    } else if (const auto* send = std::get_if<SendToWorker>(&decision)) {
      const std::string& worker = workers_[send->session];
      if (send->message.has_check_paths()) {
        checks_[worker] = send->message.check_paths().request();
        asked_[worker] = send->message.check_paths();
        asked_[worker].clear_request();
        asked_[worker].clear_owner();
      }
      if (send->message.has_write_report()) reports_[worker] = send->message.write_report().request();
      if (send->message.has_delete_checkpoints()) deletes_[worker] = send->message.delete_checkpoints().request();
    }
  }

  // ---- What it shows.

  std::string ShowJob(const std::string& name) const {
    const JobState* job = core_->Find(name, {.all = true});
    return job == nullptr ? "no such job\n" : JobText(ViewJob(*job, /*clear_address=*/""));
  }

  std::string ShowWorkers() const {
    std::string text;
    for (const auto& [name, worker] : core_->members().workers()) {
      const v1::WorkerView view = ViewWorker(worker, core_->AwakeSeconds(now_));
      absl::StrAppend(&text, name, " ", view.state(), view.job().empty() ? "" : " ", view.job(),
                      view.trouble().empty() ? "" : ": ", view.trouble(), "\n");
    }
    return text.empty() ? "(none)\n" : text;
  }

  std::unique_ptr<Core> core_;
  Time now_{100, 1000};
  uint64_t tag_ = 0;
  std::string version_ = "0.1.0";
  uint64_t last_session_ = 0;
  std::map<std::string, uint64_t> sessions_;                    // Worker -> newest session.
  std::map<uint64_t, std::string> workers_;                     // Session -> worker.
  std::map<std::string, uint64_t> checks_, deletes_, reports_;  // Worker -> its last request of the kind.
  std::map<std::string, v1::CheckPaths> asked_;
  std::map<std::string, uint64_t> sequences_;  // RANK, or "RANK from WORKER" -> last number sent.
  std::map<std::string, std::string> placed_;  // RANK -> worker.
  std::vector<v1::Fact> facts_;
  std::map<std::string, uint64_t> stored_;  // RANK -> last number that was stored.
  std::map<std::string, v1::StepMetrics> last_steps_;
};

}  // namespace

std::string RunScript(const std::string& script) {
  Interpreter interpreter;
  std::string result;
  bool in_output = false;  // The old one, which ends at an empty line.
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(script, '\n'))) {
    if (in_output) {
      in_output = !line.empty();
      if (!in_output) result += "\n";
      continue;
    }
    if (line == "----") {
      in_output = true;
      continue;
    }
    if (line.empty() || line[0] == '#') {
      absl::StrAppend(&result, line, "\n");
      continue;
    }
    absl::StrAppend(&result, line, "\n----\n", interpreter.Run(line));
  }
  while (result.size() > 1 && result[result.size() - 1] == '\n' && result[result.size() - 2] == '\n') result.pop_back();
  return result;
}

}  // namespace tacc::coordinator
