// tacc-plan: from a model and a job to a plan and a program. A child of the coordinator, so that a crash here fails one
// job.
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "confinement/flags.h"
#include "graph/tools/import_command.h"
#include "graph/tools/plan_commands.h"

namespace tacc::graph {
namespace {

constexpr int kBadInput = 2;
constexpr int kBug = 1;

// "error: " before each problem; indented lines belong to the one above.
int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  const std::string message(status.message());
  for (size_t begin = 0; begin <= message.size();) {
    size_t end = message.find('\n', begin);
    if (end == std::string::npos) end = message.size();
    const std::string line = message.substr(begin, end - begin);
    std::cerr << (begin > 0 && line.compare(0, 2, "  ") == 0 ? "" : "error: ") << line << "\n";
    begin = end + 1;
  }
  return absl::IsInternal(status) || absl::IsUnknown(status) ? kBug : kBadInput;
}

int ReportWarning(const absl::StatusOr<std::string>& warning) {
  if (warning.ok() && !warning->empty()) std::cerr << "warning: " << *warning << "\n";
  return Report(warning.status());
}

int ReportText(const absl::StatusOr<std::string>& text) {
  if (text.ok()) std::cout << *text << std::flush;
  return Report(text.status());
}

int Main(int argc, char** argv) {
  CLI::App app("Plans and compiles training jobs.", "tacc-plan");
  app.set_version_flag("--version", "tacc-plan " TACC_VERSION);
  app.require_subcommand(1);

  ConfinementFlags confinement;
  confinement.AddTo(&app);
  std::string request, out, dump, model, graph;
  PlanOutputs outputs;
  CLI::App* plan = app.add_subcommand("plan", "print the candidate layouts of a request as JSON");
  plan->add_option("--request", request, "request file (docs/contracts.md)")->required();
  plan->add_option(
      "--explain", outputs.explain,
      "a parameter, state, value or collective of the best candidate, or a layout against it (tp=8, gc=true)");
  plan->add_option("--trace", outputs.trace_file, "file for the best candidate's simulated step, as a trace (JSON)");
  plan->add_option("--html", outputs.html_file, "file for the best candidate's report");
  std::vector<std::string> traces;
  std::string page;
  CLI::App* draw = app.add_subcommand("draw", "draw traces of steps below each other, as a page for a browser");
  draw->add_option("--trace", traces,
                   "file of `plan --trace`, of `train.trace_step` or of `tacc-rank --trace`; or several")
      ->required();
  draw->add_option("--html", page, "file to write")->required();
  CLI::App* machines = app.add_subcommand("machines", "print the known machines and their constants as JSON");
  CLI::App* calibrate = app.add_subcommand("calibrate", "fit a cluster's constants to measured steps, as JSON");
  calibrate->add_option("--request", request, "request file (docs/contracts.md)")->required();
  CLI::App* compile = app.add_subcommand(
      "compile", "write plan.txt, stage0.program and summary.json, and trace.json where the job has a trace_step");
  compile->add_option("--request", request, "request file (docs/contracts.md)")->required();
  compile->add_option("--out", out, "folder to write to")->required();
  compile->add_option("--dump", dump, "folder for the program after each pass that changes it");

  CLI::App* check = app.add_subcommand("check", "say what is wrong with a request's model and layout");
  check->add_option("--request", request, "request file (docs/contracts.md); device and data may be absent")
      ->required();

  ImportOptions options;
  CLI::App* import = app.add_subcommand("import", "print the forward graph of a model in text form");
  CLI::Option_group* source = import->add_option_group("source");
  source->add_option("--model", model, "folder of a Hugging Face model");
  source->add_option("--graph", graph, "file of a graph in text form");
  source->require_option(1);
  import->add_option("--seq-len", options.seq_len, "tokens of a row")->required();
  import->add_option("--weights", options.weights, "where the initial weights come from")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, ImportOptions::Weights>{{"auto", ImportOptions::Weights::kAuto},
                                                        {"pretrained", ImportOptions::Weights::kPretrained},
                                                        {"random", ImportOptions::Weights::kRandom}}));
  import->add_option("--batch", options.batch, "rows of a micro-batch")->required();
  import->add_option("--seed", options.seed, "seed of dropout");
  import->add_option("--outputs", options.outputs, "what the graph computes")
      ->transform(CLI::CheckedTransformer(std::map<std::string, ImportOptions::Outputs>{
          {"loss", ImportOptions::Outputs::kLoss}, {"logits", ImportOptions::Outputs::kLogits}}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadInput;
  }
  const absl::StatusOr<Confinement> confined = confinement.Read();
  if (!confined.ok()) return Report(confined.status());
  if (absl::Status status = ConfineProcess(*confined); !status.ok()) return Report(status);
  const OpTable ops;
  if (*plan) return ReportText(PlanCommand(request, outputs, ops));
  if (*draw) return ReportWarning(DrawCommand(traces, page));
  if (*machines) return ReportText(MachinesCommand());
  if (*calibrate) return ReportText(CalibrateCommand(request, ops));
  if (*compile) return Report(CompileCommand(request, out, dump, ops));
  if (*check) return Report(CheckCommand(request, ops));
  return ReportText(ImportCommand(model, graph, options, ops));
}

}  // namespace
}  // namespace tacc::graph

int main(int argc, char** argv) { return tacc::graph::Main(argc, argv); }
