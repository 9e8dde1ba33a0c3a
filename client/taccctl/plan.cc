// taccctl plan JOB.YAML: what the planner would do with a job, in words and as a table. Starts nothing.
#include <algorithm>
#include <memory>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/taccctl/follow.h"
#include "client/taccctl/plan_request.h"
#include "client/taccctl/session/coordinator_client.h"
#include "client/taccctl/session/exit_code.h"
#include "client/taccctl/session/job_argument.h"
#include "client/taccctl/show/measured_steps.h"
#include "client/taccctl/show/message_json.h"
#include "client/taccctl/show/settings_yaml.h"
#include "client/taccctl/show/table.h"
#include "client/taccctl/show/units.h"
#include "client/taccctl/subcommands.h"
#include "jobfile/cluster_file.h"
#include "json/parse_json.h"
#include "page/numbers.h"

namespace tacc::client {
namespace {

using nlohmann::json;

// Rows of the table without -v: candidates, meshes that lost by estimate.
constexpr size_t kMaxCandidates = 8, kMaxLosers = 10;
constexpr int kMaxColumns = 100;  // of a paragraph

struct PlanOptions {
  JobArgument job;
  bool local = false;
  std::string cluster;
  int gpus = 0;
  std::string calibrate;
  std::string explain;
  std::string trace;
  std::string html;
  bool verbose = false;

  bool needs_the_tool() const { return !explain.empty() || !trace.empty() || !html.empty(); }
  std::vector<std::string> arguments() const {
    std::vector<std::string> arguments;
    for (const auto& [name, value] :
         {std::pair("--explain", &explain), std::pair("--trace", &trace), std::pair("--html", &html)}) {
      if (!value->empty()) arguments.insert(arguments.end(), {name, *value});
    }
    return arguments;
  }
};

double NumberAt(const json& object, const std::string& name) {
  return object.is_object() && object.contains(name) && object[name].is_number() ? object[name].get<double>() : 0;
}

std::string TextAt(const json& object, const std::string& name) {
  return object.is_object() && object.contains(name) && object[name].is_string() ? object[name].get<std::string>() : "";
}

// "pp=2 dp=1 fsdp=4", from between nodes to inside a node.
std::string MeshText(const json& candidate) {
  if (!candidate.is_object() || !candidate.contains("mesh") || !candidate["mesh"].is_object()) return "-";
  std::vector<std::string> axes;
  for (const json& axis : candidate.value("axes", json::array())) {
    const std::string name = axis.is_string() ? axis.get<std::string>() : axis.dump();
    axes.push_back(absl::StrCat(name, "=", NumberAt(candidate["mesh"], name)));
  }
  return absl::StrJoin(axes, " ");
}

// "zero_bubble, gc": how the layout runs; "-" where nothing needs a word.
std::string HowText(const json& candidate) {
  std::vector<std::string> how;
  if (candidate.contains("mesh") && NumberAt(candidate["mesh"], "pp") > 1) {
    const double chunks = NumberAt(candidate, "num_chunks");
    how.push_back(absl::StrCat(TextAt(candidate, "schedule"), chunks > 1 ? absl::StrCat(" x ", chunks) : ""));
  }
  if (candidate.value("gc", false)) how.push_back("gc");
  const auto has = [&](const char* axis) { return NumberAt(candidate["mesh"], axis) > 1; };
  if (candidate.contains("mesh") && (has("fsdp") || has("cp") || has("sp"))) {
    const double stage = NumberAt(candidate, "zero_stage");
    if (stage == 1 || stage == 2) how.push_back(absl::StrCat("ZeRO-", stage));
    if (!candidate.value("reduce_each_micro_batch", true)) how.push_back("gradients reduced once");
  }
  if (NumberAt(candidate, "kept_units") > 0) how.push_back("weights kept");
  if (candidate.value("keeps_copies", false)) how.push_back(absl::StrCat(TextAt(candidate, "precision"), " copies"));
  if (TextAt(candidate, "residual_dtype") == "bf16") how.push_back("bf16 residual");
  return how.empty() ? "-" : absl::StrJoin(how, ", ");
}

// "13.1 s (12.0 to 15.0 s)": a figure, and the range that `field` gives, if it does; of an estimate "~13.1 s (...)".
std::string WithRange(const json& candidate, const std::string& field, double value,
                      std::string (*text_of)(double number)) {
  std::string text = absl::StrCat(candidate.value("estimated", false) ? "~" : "", text_of(value));
  const json range = candidate.value(field, json::array());
  if (range.size() != 2 || !range[0].is_number() || !range[1].is_number()) return text;
  return absl::StrCat(text, " (", RangeText(text_of(range[0].get<double>()), text_of(range[1].get<double>())), ")");
}

// The first `limit` as rows. An estimate is marked: "~1.5".
void AddRows(const json& candidates, size_t limit, std::vector<std::vector<std::string>>& rows) {
  size_t shown = 0;
  for (const json& candidate : candidates) {
    if (shown++ == limit) break;
    const json memory = candidate.value("memory", json::object());
    const std::string about = candidate.value("estimated", false) ? "~" : "";
    const auto bytes = [&](const char* kind) { return NumberAt(memory, kind); };
    const double total = bytes("total_bytes");
    std::vector<double> kinds = {bytes("weights_bytes"), bytes("gradients_bytes"), bytes("optimizer_bytes"),
                                 bytes("temporaries_bytes") + bytes("stash_bytes")};
    kinds.push_back(std::max(0.0, total - std::accumulate(kinds.begin(), kinds.end(), 0.0)));
    const std::vector<std::string> of_memory = BytesTexts(kinds, total);
    const std::string precision = TextAt(candidate, "precision"), why_not = TextAt(candidate, "why_not");
    const double mfu = NumberAt(candidate, "predicted_mfu");
    rows.push_back(
        {MeshText(candidate), precision.empty() ? "-" : precision,
         absl::StrCat(NumberAt(candidate, "per_device_train_batch_size"), " x ", NumberAt(candidate, "accumulation")),
         HowText(candidate), about + of_memory[0], about + of_memory[1], about + of_memory[2], about + of_memory[3],
         about + of_memory[4], WithRange(candidate, "total_bytes_range", total, BytesText),
         WithRange(candidate, "predicted_step_seconds_range", NumberAt(candidate, "predicted_step_seconds"),
                   SecondsText),
         about + SecondsText(NumberAt(candidate, "predicted_exposed_communication_seconds")),
         about + FormatCount(NumberAt(candidate, "predicted_tokens_per_second")), about + FormatPercent(mfu),
         !why_not.empty()                ? why_not
         : candidate.value("fits", true) ? "taken"
                                         : "does not fit"});
  }
}

// Paragraphs, broken into lines.
void PrintWords(const json& candidate, int columns, std::ostream& out) {
  if (!candidate.is_object() || !candidate.contains("words") || !candidate["words"].is_array()) return;
  const size_t width = static_cast<size_t>(std::clamp(columns, 40, kMaxColumns));
  for (const json& paragraph : candidate["words"]) {
    if (!paragraph.is_string()) continue;
    std::string line;
    for (absl::string_view word : absl::StrSplit(Printable(paragraph.get<std::string>()), ' ')) {
      if (!line.empty() && line.size() + 1 + word.size() > width) {
        out << line << "\n";
        line.clear();
      }
      absl::StrAppend(&line, line.empty() ? "" : " ", word);
    }
    out << line << "\n\n";
  }
}

// Which parts of the graphs GPUs capture: all, or in a line how many.
void PrintCapture(const json& candidate, bool all, std::ostream& out) {
  if (!candidate.is_object() || !candidate.contains("capture") || !candidate["capture"].is_array()) return;
  std::vector<std::vector<std::string>> rows;
  for (const json& part : candidate["capture"]) {
    const std::string why_not = TextAt(part, "not_captured");
    rows.push_back({absl::StrCat(NumberAt(part, "stage")), TextAt(part, "graph"), absl::StrCat(NumberAt(part, "nodes")),
                    TextAt(part, "first_node"),
                    why_not.empty() ? "captured" : absl::StrCat("not captured: ", why_not)});
  }
  if (all) {
    PrintTable({"STAGE", "GRAPH", "NODES", "FROM", "CUDA GRAPH"}, rows, out);
    out << "\n";
    return;
  }
  const auto captured =
      std::count_if(rows.begin(), rows.end(), [](const auto& row) { return row.back() == "captured"; });
  out << captured << " of " << rows.size() << " parts of the step are CUDA graphs (-v lists them).\n\n";
}

absl::StatusOr<std::string> PlanHere(const PlanOptions& options, const v1::JobSpec& spec, Context& context) {
  const absl::StatusOr<json> request = RequestForThisMachine(spec, context);
  if (!request.ok()) return request.status();
  return RunPlan(*request, options.arguments(), context);
}

absl::StatusOr<std::string> PlanForCluster(const PlanOptions& options, const v1::JobSpec& spec, Context& context) {
  jobfile::ClusterFile file;
  if (options.cluster.empty()) {
    file.cluster = {{"machine", "h100"}};
    context.err << "--gpus without --cluster: assuming nodes of 8 H100 SXM" << std::endl;
  } else {
    const absl::StatusOr<jobfile::KnownMachines> known = AskForMachines(context);
    if (!known.ok()) return known.status();
    absl::StatusOr<jobfile::ClusterFile> loaded = jobfile::LoadClusterFile(options.cluster, *known);
    if (!loaded.ok()) return loaded.status();
    file = *std::move(loaded);
  }
  if (const auto nodes = file.cluster.find("nodes"); options.gpus > 0 && nodes != file.cluster.end())
    context.err << "--gpus " << options.gpus << ": not for the " << nodes->dump() << " nodes of " << options.cluster
                << std::endl;
  if (options.gpus > 0) {
    file.cluster.erase("nodes");
    file.cluster["gpus"] = options.gpus;
    file.places.erase("gpus");
  }
  const json gpus = file.cluster.value("gpus", json());
  if (const int64_t workers = spec.resources().workers(); workers > 0 && gpus.is_number() && gpus != workers)
    context.err << "resources.workers = " << workers << " is for the coordinator: planning for " << gpus << " GPUs"
                << std::endl;
  const absl::StatusOr<json> request = RequestForCluster(spec, file.cluster, context);
  if (!request.ok()) return request.status();
  absl::StatusOr<std::string> plan = RunPlan(*request, options.arguments(), context);
  if (plan.ok() || options.cluster.empty()) return plan;
  return absl::Status(plan.status().code(), file.Locate(std::string(plan.status().message())));
}

absl::StatusOr<std::string> Candidates(const PlanOptions& options, const v1::JobSpec& spec, const GlobalOptions& global,
                                       Context& context) {
  if (!options.cluster.empty() || options.gpus > 0) return PlanForCluster(options, spec, context);
  if (options.local) return PlanHere(options, spec, context);
  const absl::StatusOr<Endpoint> endpoint = FindCoordinator(global, context);
  if (!endpoint.ok()) return endpoint.status();
  CoordinatorClient client(*endpoint, &context.interrupt);
  const absl::StatusOr<v1::PlanResponse> plan = client.Plan(spec);
  if (plan.ok() && !options.needs_the_tool()) return plan->candidates_json();
  if (plan.ok()) {
    // Files of this machine: planned again here, for the coordinator's workers.
    const json request = ParseJson(plan->request_json());
    if (request.is_object()) return RunPlan(request, options.arguments(), context);
    return absl::FailedPreconditionError(
        absl::StrCat("the coordinator at ", endpoint->address,
                     " does not say what it plans for, which --explain, --trace and --html need; restart it as the "
                     "version of this taccctl, or add --local, --cluster FILE or --gpus N"));
  }
  if (!absl::IsUnavailable(plan.status()) || !global.address.empty() || !context.Variable("TACC_ADDRESS").empty())
    return plan.status();
  context.err << "no coordinator at " << endpoint->address << "; planning for this machine" << std::endl;
  return PlanHere(options, spec, context);
}

// The cluster file with the constants that the steps determined, which says what they did not.
void PrintClusterFile(const PlanOptions& options, const json& base, const json& fit, std::ostream& out) {
  std::vector<std::string> left;
  const auto is_determined = [](const json& constant) { return constant.value("determined", false); };
  if (std::none_of(fit["constants"].begin(), fit["constants"].end(), is_determined)) {
    out << "# Nothing is fitted: no constant explains the " << NumberAt(fit, "num_steps") << " steps of "
        << options.calibrate << " better; predictions are off by " << FormatPercent(NumberAt(fit, "error_before"))
        << " on average.\n";
  } else {
    out << "# Fitted to " << NumberAt(fit, "num_steps") << " steps of " << options.calibrate
        << ": predictions were off by " << FormatPercent(NumberAt(fit, "error_before")) << " on average, and are by "
        << FormatPercent(NumberAt(fit, "error_after")) << ".\n";
  }
  json cluster = base;
  for (const json& constant : fit["constants"]) {
    const std::string name = TextAt(constant, "name");
    if (constant.value("determined", false)) {
      cluster.erase(name);
    } else {
      left.push_back(name);
    }
  }
  for (const auto& [field, value] : cluster.items())
    out << field << ": " << (value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
  for (const json& constant : fit["constants"]) {
    if (!constant.value("determined", false)) continue;
    out << absl::StrFormat("%s: %.6g  # %s, was %.6g\n", TextAt(constant, "name"), NumberAt(constant, "after"),
                           TextAt(constant, "unit"), NumberAt(constant, "before"));
  }
  if (!left.empty())
    out << "# As before, for these steps do not determine them: " << absl::StrJoin(left, ", ") << ".\n";
  out << std::flush;
}

int Calibrate(const PlanOptions& options, const GlobalOptions& global, Context& context) {
  const absl::StatusOr<std::vector<MeasuredStep>> steps = ReadMeasuredSteps(options.calibrate, options.job);
  if (!steps.ok()) return Fail(absl::InvalidArgumentError(steps.status().message()), &context);
  const absl::StatusOr<jobfile::KnownMachines> known = AskForMachines(context);
  if (!known.ok()) return Fail(known.status(), &context);
  const absl::StatusOr<jobfile::ClusterFile> file = jobfile::LoadClusterFile(options.cluster, *known);
  if (!file.ok()) return Fail(file.status(), &context);
  json request = {{"cluster", file->cluster}, {"steps", json::array()}};
  for (const MeasuredStep& step : *steps) {
    const auto placed = [&](const absl::Status& status) {
      return absl::Status(status.code(), absl::StrCat(step.place, ": ", status.message()));
    };
    const absl::StatusOr<v1::JobSpec> spec = LoadJob(step.job, context);
    if (!spec.ok()) return Fail(placed(spec.status()), &context);
    json cluster = file->cluster;
    cluster.erase("nodes");
    cluster["gpus"] = step.gpus;
    absl::StatusOr<json> one = RequestForCluster(*spec, cluster, context);
    if (!one.ok()) return Fail(placed(one.status()), &context);
    request["steps"].push_back({{"place", step.place}, {"step_seconds", step.seconds}, {"request", *std::move(one)}});
  }
  const absl::StatusOr<std::string> text = RunCalibrate(request, context);
  if (!text.ok())
    return Fail(absl::Status(text.status().code(), file->Locate(std::string(text.status().message()))), &context);
  const json fit = ParseJson(*text);
  if (!fit.is_object() || !fit.contains("constants") || !fit["constants"].is_array() || !fit.contains("steps") ||
      !fit["steps"].is_array()) {
    return Fail(absl::InternalError("tacc-plan calibrate printed no constants"), &context);
  }
  if (global.form == OutputForm::kJson) {
    context.out << fit.dump() << std::endl;
    return kExitOk;
  }
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> absurd;
  for (const json& step : fit["steps"]) {
    const double measured = NumberAt(step, "step_seconds");
    if (const double ratio = NumberAt(step, "before") / measured; ratio < 0.05 || ratio > 20)
      absurd.push_back(absl::StrFormat("%s: %s measured, %s predicted: are these the seconds of one step of that job?",
                                       TextAt(step, "place"), SecondsText(measured),
                                       SecondsText(NumberAt(step, "before"))));
    const auto predicted = [&](const char* name) {
      return absl::StrFormat("%s %+.1f %%", SecondsText(NumberAt(step, name)),
                             100 * (NumberAt(step, name) / measured - 1));
    };
    rows.push_back({TextAt(step, "place"), SecondsText(measured), predicted("before"), predicted("after")});
  }
  if (!absurd.empty()) return Fail(absl::InvalidArgumentError(absl::StrJoin(absurd, "\n")), &context);
  PrintTable({"ROW", "MEASURED", "BEFORE", "AFTER"}, rows, context.err);
  PrintClusterFile(options, file->cluster, fit, context.out);
  return kExitOk;
}

int Plan(const PlanOptions& options, const GlobalOptions& global, Context& context) {
  if (!options.calibrate.empty()) return Calibrate(options, global, context);
  const absl::StatusOr<v1::JobSpec> spec = LoadJob(options.job, context);
  if (!spec.ok()) return Fail(spec.status(), &context);
  const absl::StatusOr<std::string> text = Candidates(options, *spec, global, context);
  if (!text.ok()) return Fail(text.status(), &context);
  const json plan = ParseJson(*text);
  if (!plan.is_object() || !plan.contains("candidates") || !plan["candidates"].is_array()) {
    return Fail(absl::InternalError("the planner's answer has no candidates"), &context);
  }
  const json& candidates = plan["candidates"];
  const json losers = plan.value("losers", json::array());
  const bool fits = candidates.empty() || candidates[0].value("fits", true);
  if (global.form == OutputForm::kJson) {
    for (const json* list : {&candidates, &losers}) {
      for (const json& candidate : *list) context.out << candidate.dump() << "\n";
    }
    return fits ? kExitOk : kExitBadInput;
  }
  for (const std::string& file : {options.html, options.trace}) {
    if (!file.empty()) context.err << "wrote " << file << std::endl;
  }
  if (!options.explain.empty() && !candidates.empty()) {
    context.out << TextAt(candidates[0], "explanation");
    return kExitOk;
  }
  std::vector<std::vector<std::string>> rows;
  AddRows(candidates, options.verbose ? candidates.size() : kMaxCandidates, rows);
  AddRows(losers, options.verbose ? losers.size() : kMaxLosers, rows);
  PrintTable({"MESH", "PRECISION", "BATCH", "HOW", "WEIGHTS", "GRADIENTS", "OPTIMIZER", "ACTIVATIONS", "OTHER", "TOTAL",
              "STEP", "EXPOSED", "TOKENS/S", "MFU", "WHY"},
             rows, context.out);
  context.out
      << "Predicted, not measured. Bytes are of one rank, OTHER those of kernels' workspace, libraries, buffers "
         "and alignment; BATCH is per_device_train_batch_size x accumulation; EXPOSED is the part of STEP in "
         "which communication runs that computation does not hide. Rows with ~ are estimates, the others programs "
         "whose "
         "step is simulated; an estimate is compared with the lowest estimate, not with a simulated step. What the "
         "ranges hold: docs/planning.md.\n";
  if (const size_t all = candidates.size() + losers.size(); all > rows.size())
    context.out << "And " << all - rows.size() << " more: -v shows them.\n";
  if (plan.contains("num_layouts"))
    context.out << NumberAt(plan, "num_meshes") << (NumberAt(plan, "num_meshes") == 1 ? " mesh, " : " meshes, ")
                << NumberAt(plan, "num_layouts")
                << " layouts estimated (~); the others became programs and were simulated.\n";
  context.out << "\n";
  if (candidates.empty()) return kExitOk;
  // The answer comes last: where a terminal ends.
  PrintCapture(candidates[0], options.verbose, context.out);
  PrintWords(candidates[0], context.columns, context.out);
  if (fits && candidates[0].contains("settings"))
    context.out << "To keep this plan, put into the job file:\n\n"
                << SettingsYaml(nlohmann::ordered_json::parse(candidates[0]["settings"].dump()), *spec);
  context.out << std::flush;
  return fits ? kExitOk : kExitBadInput;
}

}  // namespace

void AddPlan(CLI::App* app, const GlobalOptions* global, Action* action) {
  CLI::App* command = app->add_subcommand(
      "plan", "Show what the planner would do with a job: layouts, bytes and predicted seconds; starts nothing");
  const auto options = std::make_shared<PlanOptions>();
  AddJobArgument(command, &options->job);
  CLI::Option* local = command->add_flag(
      "--local", options->local, "For this machine (default: for the coordinator's workers, where there is one)");
  CLI::Option* cluster =
      command
          ->add_option("--cluster", options->cluster,
                       "For the machines in this file; needs no workers, no data and no weights (docs/planning.md)")
          ->type_name("CLUSTER.YAML")
          ->excludes(local);
  CLI::Option* gpus =
      command->add_option("--gpus", options->gpus, "For so many GPUs: of --cluster, or H100 SXM in nodes of 8")
          ->type_name("N")
          ->check(CLI::Range(1, 1'000'000))
          ->excludes(local);
  CLI::Option* calibrate =
      command
          ->add_option("--calibrate", options->calibrate,
                       "Fit --cluster to steps that ran on it, in this table, and print it anew (docs/planning.md)")
          ->type_name("MEASURED.CSV")
          ->needs(cluster)
          ->excludes(gpus);
  command
      ->add_option("--explain", options->explain,
                   "Say how a parameter or value lies on the devices, why a collective is there, or why the "
                   "planner has not taken a layout (tp=8, gc=true)")
      ->type_name("NAME")
      ->excludes(calibrate);
  command->add_option("--trace", options->trace, "Write the simulated step, for ui.perfetto.dev")
      ->type_name("OUT.JSON")
      ->excludes(calibrate);
  command->add_option("--html", options->html, "Write a report with pictures")
      ->type_name("OUT.HTML")
      ->excludes(calibrate);
  command->add_flag("-v,--verbose", options->verbose,
                    "Every layout that was considered, and which parts of the step GPUs capture as CUDA graphs");
  command->callback([=] { *action = [=](Context& context) { return Plan(*options, *global, context); }; });
}

}  // namespace tacc::client
