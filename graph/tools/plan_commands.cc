#include "graph/tools/plan_commands.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "graph/import/finetune/finetune.h"
#include "graph/import/import.h"
#include "graph/ir/fingerprint.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "graph/passes/partition/separate_documents.h"
#include "graph/planner/calibrate.h"
#include "graph/planner/compile_buckets.h"
#include "graph/planner/compile_plan.h"
#include "graph/planner/plan_json.h"
#include "graph/planner/planner.h"
#include "graph/planner/report/does_not_fit.h"
#include "graph/planner/report/explain.h"
#include "graph/planner/report/explain_layout.h"
#include "graph/planner/report/html.h"
#include "graph/planner/report/trace_page.h"
#include "graph/planner/report/words.h"
#include "graph/planner/request.h"
#include "graph/planner/simulate/cluster_times.h"
#include "graph/planner/simulate/trace.h"
#include "json/parse_json.h"

namespace tacc::graph {
namespace {

using nlohmann::json;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
  return absl::OkStatus();
}

// Where it cannot be made, its first file cannot be written, which says so.
void MakeDirectory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
}

std::string PrintAll(const std::vector<Program>& stages) {
  std::string text;
  for (const Program& program : stages) absl::StrAppend(&text, Print(program));
  return text;
}

// Writes to a directory what each pass makes of the program, as NN.name.txt, and their seconds. Without one it writes
// nothing. The observer is valid while it lives.
class PassDump {
 public:
  explicit PassDump(std::string directory) : directory_(std::move(directory)) {
    if (!directory_.empty()) MakeDirectory(directory_);
  }

  PipelineObserver observer() {
    PipelineObserver observer;
    if (directory_.empty()) return observer;
    observer.after_pass = [this](const PassRun& run, const std::vector<Program>& stages) {
      absl::StrAppend(&seconds_, absl::StrFormat("%02d %-20s %.4f s\n", run.index, run.pass.name, run.seconds));
      if (!run.changed) return;
      written_.Update(
          WriteFile(absl::StrFormat("%s/%02d.%s.txt", directory_, run.index, run.pass.name), PrintAll(stages)));
    };
    return observer;
  }

  // The first error of all that was to be written.
  absl::Status Finish() {
    if (!directory_.empty()) written_.Update(WriteFile(directory_ + "/passes.txt", seconds_));
    return written_;
  }

 private:
  const std::string directory_;
  std::string seconds_;
  absl::Status written_;
};

// The request, with what it names files for.
absl::StatusOr<CompileRequest> ReadRequest(absl::string_view text) {
  TACC_ASSIGN_OR_RETURN(CompileRequest request, ParseCompileRequest(text));
  TACC_RETURN_IF_ERROR(ReadLrFactors(request));
  return request;
}

absl::Status CheckVocabulary(const CompileRequest& request, int64_t vocab_size) {
  if (request.vocab_size <= vocab_size || vocab_size == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("data.path was prepared with a vocabulary of ", request.vocab_size,
                                                 " tokens, the model has ", vocab_size,
                                                 "; prepare it with the model's tokenizer"));
}

// Data folders have tokens alone.
absl::Status CheckInputs(const CompileRequest& request, const ImportedModel& model) {
  if (request.data_path.empty() || model.live_inputs.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(request.graph_path, ": the data folder of data.path gives the inputs tokens and targets, but the ",
                   "graph has ", absl::StrJoin(model.live_inputs, ", "),
                   "; only a client can send batches of such inputs (data.client instead of data.path)"));
}

// A buffer that no initializer makes is read from the model's files.
absl::Status CheckBuffers(const CompileRequest& request, const ImportedModel& model) {
  if (model.weights == ImportOptions::Weights::kPretrained || request.is_for_sheet) return absl::OkStatus();
  for (const Node& node : model.forward.nodes) {
    const bool is_buffer = GetAttr<std::string>(node.attrs, "role") == Name(WeightRole::kBuffer);
    if (node.op != Op::kParam || !is_buffer || node.attrs.count("init") > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "model.weights: random, but ", request.graph_path, " has the buffer \"", node.symbol,
        "\" without init=, whose values are in model.safetensors; use model.weights: pretrained, or give it an init"));
  }
  return absl::OkStatus();
}

// Builds the request's model. Borrows the request, the ops and, if given, `described`, to which each call writes the
// model that it builds, without its graph. `own_head`: see ImportOptions.
ForwardBuilder MakeForwardBuilder(const CompileRequest& request, const OpTable& ops, ImportedModel* described = nullptr,
                                  std::optional<bool> own_head = std::nullopt) {
  return [&request, &ops, described, own_head](int64_t batch, int64_t seq_len) mutable -> absl::StatusOr<ForwardModel> {
    ImportOptions options;
    options.own_head = own_head;
    options.batch = batch;
    options.seq_len = seq_len;
    options.seed = request.seed;
    options.weights = request.weights == "random"       ? ImportOptions::Weights::kRandom
                      : request.weights == "pretrained" ? ImportOptions::Weights::kPretrained
                                                        : ImportOptions::Weights::kAuto;
    options.wrap_layer_cls = request.wrap_layer_cls;
    options.gc_cls = request.gc_cls;
    TACC_ASSIGN_OR_RETURN(ImportedModel imported, request.graph_path.empty()
                                                      ? ImportModel(request.model_path, options, ops)
                                                      : ImportGraphFile(request.graph_path, options, ops));
    TACC_RETURN_IF_ERROR(CheckVocabulary(request, imported.vocab_size));
    TACC_RETURN_IF_ERROR(CheckInputs(request, imported));
    TACC_RETURN_IF_ERROR(CheckBuffers(request, imported));
    TACC_RETURN_IF_ERROR(Finetune(request.finetune, request.model_path, request.seed, ops, imported));
    own_head = imported.own_head;
    ForwardModel model;
    model.notes = std::move(imported.notes);
    model.units = std::move(imported.units);
    model.residual_module = imported.residual_module;
    for (const Node& node : imported.forward.nodes) {
      if (node.op != Op::kParam) continue;
      const int64_t elements = imported.forward.type(node.results[0]).num_elements();
      model.num_parameters += elements;
      if (GetAttr<std::string>(node.attrs, "role") == Name(WeightRole::kFrozen))
        model.num_frozen_parameters += elements;
    }
    model.forward = std::move(imported.forward);
    if (request.separate_documents) {
      TACC_ASSIGN_OR_RETURN(model.forward, SeparateDocuments(model.forward, ops));
    }
    if (described != nullptr) *described = std::move(imported);
    return model;
  };
}

json MachineJson(const Machine& machine) {
  json constants = json::object();
  for (const MachineConstant& constant : MachineConstants()) {
    constants[constant.name] = {{"value", machine.*constant.value}, {"unit", constant.unit}};
  }
  return {{"machine", machine.name},
          {"device", machine.device},
          {"devices_per_node", machine.devices_per_node},
          {"plan_only", machine.plan_only},
          {"constants", std::move(constants)}};
}

json ClusterJson(const Cluster& cluster) {
  json text = MachineJson(cluster.machine);
  text["nodes"] = cluster.num_nodes;
  text["text"] = ClusterText(cluster);
  return text;
}

// Of all stages, the operators of LibTorch; an empty list where there are none.
json LibTorchJson(const Finalist& finalist, const OpTable& ops) {
  json list = json::array();
  for (size_t stage = 0; stage < finalist.stages.size(); ++stage) {
    for (const LibTorchRow& row : LibTorchOf(finalist, static_cast<int>(stage), ops)) {
      list.push_back({{"stage", stage},
                      {"schema", row.schema},
                      {"count", row.count},
                      {"seconds", row.seconds},
                      {"share_of_step", row.share_of_step},
                      {"result_bytes", row.result_bytes},
                      {"scratch_bytes", row.scratch_bytes}});
    }
  }
  return list;
}

absl::Status WriteTrace(const Finalist& finalist, const OpTable& ops, const std::string& file) {
  std::vector<std::string> names;
  const size_t stages = finalist.stages.size();
  const int64_t ranks = finalist.candidate.plan.num_ranks() / static_cast<int64_t>(stages);
  for (size_t s = 0; s < stages; ++s)
    names.push_back(absl::StrCat(stages > 1 ? absl::StrCat("stage ", s, ": ") : "", "each of ", ranks, " ranks"));
  return WriteFile(file, TraceJson(finalist.simulation, finalist.programs(), names, finalist.times, ops));
}

// The best layout that `text` allows, planned as the job is, against the one that is taken.
absl::StatusOr<std::string> ExplainAgainst(const Finalist& taken, const std::string& text, const PlanRequest& request,
                                           const ForwardBuilder& model, const OpTable& ops) {
  PlanRequest asked = request;
  TACC_RETURN_IF_ERROR(SetLayout(text, asked));
  absl::StatusOr<Planned> planned = PlanCandidates(asked, model, ops);
  if (!planned.ok())
    return absl::Status(planned.status().code(), absl::StrCat("--explain ", text, ": ", planned.status().message()));
  const Candidate& best = planned->candidates[0];
  if (!best.fits) return ExplainLayout(taken, best, nullptr, ops, text);
  TACC_ASSIGN_OR_RETURN(const Finalist finalist, MakeFinalist(asked, best, std::move(planned->programs), ops));
  return ExplainLayout(taken, best, &finalist, ops, text);
}

// Adds words for the best candidate to `out`, and what else is asked of it. Takes its programs.
absl::Status TellOfBest(const CompileRequest& request, Planned& planned, const PlanOutputs& outputs,
                        const ForwardBuilder& model, const OpTable& ops, json& out) {
  TACC_ASSIGN_OR_RETURN(const Finalist best,
                        MakeFinalist(request.plan, planned.candidates[0], std::move(planned.programs), ops));
  TACC_ASSIGN_OR_RETURN(const int64_t max_steps, MaxSteps(request.plan, best.candidate.plan.global_batch()));
  out["words"] = InWords(best, max_steps);
  out["memory"]["outputs_bytes"] = OutputsBytes(best.candidate, best.stages);
  out["libtorch"] = LibTorchJson(best, ops);
  if (json capture = CaptureJson(request, best.stages); !capture.is_null()) out["capture"] = std::move(capture);
  if (NamesLayout(outputs.explain)) {
    TACC_ASSIGN_OR_RETURN(out["explanation"], ExplainAgainst(best, outputs.explain, request.plan, model, ops));
  } else if (!outputs.explain.empty()) {
    TACC_ASSIGN_OR_RETURN(out["explanation"], Explain(best, ops, outputs.explain));
  }
  if (!outputs.trace_file.empty()) TACC_RETURN_IF_ERROR(WriteTrace(best, ops, outputs.trace_file));
  if (outputs.html_file.empty()) return absl::OkStatus();
  return WriteFile(outputs.html_file, ReportHtml({request.name, max_steps, &best, &planned}, ops));
}

// A step that ran, with the programs that its ranks ran it by.
struct MeasuredRun {
  std::string place;
  double seconds = 0;
  Cluster cluster;
  std::vector<Program> stages;

  // Seconds of a step by simulation of its programs with these constants. They have been simulated once, so nothing can
  // fail.
  double Predict(const Setting& setting, const OpTable& ops) const {
    Setting mine{cluster.machine, {}}, fit = setting;
    for (const FreeConstant& constant : CalibratedConstants()) constant.of(mine) = constant.of(fit);
    const Cluster fitted{mine.machine, cluster.num_nodes};
    std::vector<const Program*> programs;
    for (const Program& program : stages) programs.push_back(&program);
    const absl::StatusOr<Simulation> simulation = Simulate(programs, TimesOn(fitted, programs, ops));
    return simulation->step_seconds;
  }
};

// Plans a step of `tacc-plan calibrate`'s request. Errors: InvalidArgument when it is none, or does not fit its device.
absl::StatusOr<MeasuredRun> ReadMeasuredRun(const json& step, const OpTable& ops) {
  if (!step.is_object() || !step.contains("request") || !step.contains("step_seconds") ||
      !step["step_seconds"].is_number() || step["step_seconds"].get<double>() <= 0) {
    return absl::InvalidArgumentError("a step wants a request and step_seconds above 0");
  }
  TACC_ASSIGN_OR_RETURN(const CompileRequest request, ReadRequest(step["request"].dump()));
  TACC_ASSIGN_OR_RETURN(Planned planned, PlanCandidates(request.plan, MakeForwardBuilder(request, ops), ops));
  const Candidate& run = planned.candidates[0];
  if (!run.fits) {
    return absl::InvalidArgumentError(
        absl::StrFormat("this layout needs %.1f GiB of a device by the plan, and it has %.1f; is it what ran?",
                        static_cast<double>(run.plan.total_bytes) / (int64_t{1} << 30),
                        static_cast<double>(request.plan.device.memory_bytes) / (int64_t{1} << 30)));
  }
  return MeasuredRun{step.value("place", ""), step["step_seconds"].get<double>(), request.plan.cluster,
                     std::move(planned.programs)};
}

}  // namespace

absl::StatusOr<std::string> PlanCommand(const std::string& request_file, const PlanOutputs& outputs,
                                        const OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const std::string text, ReadFile(request_file));
  TACC_ASSIGN_OR_RETURN(const CompileRequest request, ReadRequest(text));
  const ForwardBuilder builder = MakeForwardBuilder(request, ops);
  TACC_ASSIGN_OR_RETURN(Planned planned, PlanCandidates(request.plan, builder, ops));
  const std::vector<Candidate>& candidates = planned.candidates;
  json list = json::array(), losers = json::array();
  for (const Candidate& candidate : candidates) {
    list.push_back(CandidateJson(request, candidate));
    if (list.size() > 1) list.back()["why_not"] = WhyLost(candidates[0], candidate, request.plan.device.memory_bytes);
  }
  list[0]["notes"] = planned.notes;
  for (const Loser& loser : planned.losers) losers.push_back(LoserJson(request, loser, candidates[0]));
  if (candidates[0].fits) {
    TACC_RETURN_IF_ERROR(TellOfBest(request, planned, outputs, builder, ops, list[0]));
  } else {
    const absl::Status does_not_fit = DoesNotFit(request.plan, candidates[0], builder, ops);
    if (!outputs.explain.empty() || !outputs.trace_file.empty() || !outputs.html_file.empty()) return does_not_fit;
    list[0]["words"] = std::vector<std::string>(absl::StrSplit(does_not_fit.message(), '\n'));
  }
  for (const std::string& note : planned.notes) list[0]["words"].push_back(absl::StrCat("Note: ", note, "."));
  return json({{"cluster", ClusterJson(request.plan.cluster)},
               {"num_meshes", planned.num_meshes},
               {"num_layouts", planned.num_layouts},
               {"candidates", std::move(list)},
               {"losers", std::move(losers)}})
      .dump(1);
}

absl::StatusOr<std::string> DrawCommand(const std::vector<std::string>& trace_files, const std::string& html_file) {
  std::vector<NamedTrace> traces;
  for (const std::string& file : trace_files) {
    TACC_ASSIGN_OR_RETURN(std::string text, ReadFile(file));
    traces.push_back({file.substr(file.rfind('/') + 1), std::move(text)});
  }
  TACC_ASSIGN_OR_RETURN(const TracePage page, TraceHtml(traces));
  TACC_RETURN_IF_ERROR(WriteFile(html_file, page.html));
  return page.warning;
}

std::string MachinesCommand() {
  json machines = json::array();
  for (const Machine& machine : MachinePresets()) machines.push_back(MachineJson(machine));
  std::vector<std::string> fields = {"machine", "nodes", "gpus", "devices_per_node"};
  for (const MachineConstant& constant : MachineConstants()) fields.push_back(constant.name);
  return json({{"machines", std::move(machines)}, {"names", MachineNames()}, {"cluster_fields", fields}}).dump(1);
}

absl::StatusOr<std::string> CalibrateCommand(const std::string& request_file, const OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const std::string text, ReadFile(request_file));
  const json request = ParseJson(text);
  if (!request.is_object() || !request.contains("cluster") || !request.contains("steps") ||
      !request["steps"].is_array()) {
    return absl::InvalidArgumentError("calibrate request: wanted cluster and a list of steps");
  }
  TACC_ASSIGN_OR_RETURN(const Cluster cluster, ParseCluster(request["cluster"].dump()));
  std::vector<MeasuredRun> runs;
  for (const json& step : request["steps"]) {
    absl::StatusOr<MeasuredRun> run = ReadMeasuredRun(step, ops);
    if (!run.ok())
      return absl::Status(run.status().code(),
                          absl::StrCat(step.is_object() ? step.value("place", "") : "", ": ", run.status().message()));
    runs.push_back(*std::move(run));
  }
  std::vector<MeasuredStep> steps;
  for (const MeasuredRun& run : runs) {
    steps.push_back({run.seconds, [&run, &ops](const Setting& setting) { return run.Predict(setting, ops); }});
  }
  const Setting before{cluster.machine, {}};
  Calibration fit = Calibrate(before, steps);
  json constants = json::array(), rows = json::array();
  for (size_t i = 0; i < fit.constants.size(); ++i) {
    const FreeConstant& constant = fit.constants[i];
    Setting start = before;
    constants.push_back({{"name", constant.name},
                         {"unit", constant.unit},
                         {"before", constant.of(start)},
                         {"after", constant.of(fit.setting)},
                         {"determined", static_cast<bool>(fit.determined[i])}});
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    rows.push_back({{"place", runs[i].place},
                    {"step_seconds", runs[i].seconds},
                    {"before", steps[i].prediction(before)},
                    {"after", steps[i].prediction(fit.setting)}});
  }
  return json({{"num_steps", runs.size()},
               {"error_before", fit.error_before},
               {"error_after", fit.error_after},
               {"constants", std::move(constants)},
               {"steps", std::move(rows)}})
      .dump(1);
}

absl::Status CheckCommand(const std::string& request_file, const OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const std::string text, ReadFile(request_file));
  TACC_ASSIGN_OR_RETURN(const CompileRequest request, ReadRequest(text));
  const PlanRequest& plan = request.plan;
  // Spares reading the two tensors, where no pin can name the head: each answer is a model then.
  const std::optional<bool> own_head = plan.pins.empty() ? std::make_optional(false) : std::nullopt;
  const ForwardBuilder builder = MakeForwardBuilder(request, ops, nullptr, own_head);
  if (plan.seq_len == 0) {
    // A graph may be of one length, which only the data knows then.
    return request.graph_path.empty() ? builder(1, 1).status() : absl::OkStatus();
  }
  TACC_RETURN_IF_ERROR(CheckLayout(plan, builder, ops));
  TACC_RETURN_IF_ERROR(CheckBuckets(plan, builder, ops));
  return CheckBatchAgainstData(request, GlobalBatch(plan));
}

absl::Status CompileCommand(const std::string& request_file, const std::string& out_dir, const std::string& dump_dir,
                            const OpTable& ops) {
  TACC_ASSIGN_OR_RETURN(const std::string text, ReadFile(request_file));
  TACC_ASSIGN_OR_RETURN(const CompileRequest request, ReadRequest(text));
  ImportedModel described;
  const ForwardBuilder builder = MakeForwardBuilder(request, ops, &described);
  TACC_ASSIGN_OR_RETURN(const Planned planned, PlanCandidates(request.plan, builder, ops));
  const Candidate& best = planned.candidates[0];
  if (!best.fits) return DoesNotFit(request.plan, best, builder, ops);
  TACC_RETURN_IF_ERROR(CheckBatchAgainstData(request, best.plan.global_batch()));

  MakeDirectory(out_dir);
  PassDump dump(dump_dir);
  TACC_ASSIGN_OR_RETURN(const ForwardModel model,
                        builder(best.plan.micro_batch * best.plan.num_data_ranks(), request.plan.seq_len));
  const auto begin = std::chrono::steady_clock::now();
  TACC_ASSIGN_OR_RETURN(Compiled compiled, CompilePlan(request.plan, best.plan, model, ops, dump.observer()));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  TACC_RETURN_IF_ERROR(dump.Finish());
  TACC_ASSIGN_OR_RETURN(std::vector<Bucket> buckets,
                        CompileBuckets(request.plan, best, compiled.stages,
                                       MakeForwardBuilder(request, ops, nullptr, described.own_head), ops));
  if (!buckets.empty()) {
    for (Program& program : compiled.stages) program.seq_len = request.plan.seq_len;
  }
  std::string all_text;
  TACC_RETURN_IF_ERROR(WriteFile(out_dir + "/plan.txt", PrintPlan(best.plan)));
  for (const Program& program : compiled.stages) {
    std::string text = Print(program);
    for (const Bucket& bucket : buckets) absl::StrAppend(&text, Print(bucket.stages[program.stage]));
    TACC_RETURN_IF_ERROR(WriteFile(absl::StrCat(out_dir, "/stage", program.stage, ".program"), text));
    absl::StrAppend(&all_text, text);
  }
  if (!buckets.empty()) buckets.push_back({request.plan.seq_len, best.model_flops, seconds.count(), {}});
  if (request.traces) {
    TACC_ASSIGN_OR_RETURN(const Finalist finalist, MakeFinalist(request.plan, best, compiled.stages, ops));
    TACC_RETURN_IF_ERROR(WriteTrace(finalist, ops, absl::StrCat(out_dir, "/", kCompiledTrace)));
  }
  if (!described.config_json.empty()) TACC_RETURN_IF_ERROR(WriteFile(out_dir + "/config.json", described.config_json));
  return WriteFile(out_dir + "/summary.json",
                   SummaryJson(request, best, compiled.stages,
                               {planned.notes, Fingerprint(all_text), described.architecture, described.facts,
                                described.fact_keys, described.adapter_config,
                                described.weights == ImportOptions::Weights::kPretrained, std::move(buckets)}));
}

}  // namespace tacc::graph
