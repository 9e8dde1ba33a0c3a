// tacc-opt: text in, named passes, text out. For tests and for looking at what a pass does.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/pipeline.h"
#include "graph/planner/simulate/cluster_times.h"
#include "graph/targets/targets.h"
#include "graph/verify/verify.h"

namespace tacc::graph {
namespace {

constexpr int kBadInput = 2;
constexpr int kBug = 1;

struct Arguments {
  std::string file;
  std::vector<std::string> passes;
  std::vector<std::string> dump_after;  // pass or pass=folder
  std::vector<std::string> mesh;        // axis=size
  std::vector<std::string> symbols;     // name=value
  std::string compute_dtype = "f32", residual_dtype = "f32";
  std::string residual_module;
  std::string machine;
  CompileOptions options;
  int threads = 1;
};

// "name=number" items. `option` names the option in errors.
absl::StatusOr<std::vector<std::pair<std::string, int64_t>>> ParsePairs(const std::vector<std::string>& items,
                                                                        const char* option) {
  std::vector<std::pair<std::string, int64_t>> pairs;
  for (const std::string& item : items) {
    const std::vector<std::string> parts = absl::StrSplit(item, '=');
    int64_t value = 0;
    if (parts.size() != 2 || parts[0].empty() || !absl::SimpleAtoi(parts[1], &value) || value < 1) {
      return absl::InvalidArgumentError(absl::StrCat(option, ": '", item, "'; wanted NAME=NUMBER, at least 1"));
    }
    pairs.emplace_back(parts[0], value);
  }
  return pairs;
}

absl::StatusOr<std::string> ReadText(const std::string& file) {
  if (file == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  std::ifstream in(file);
  if (!in) return absl::InvalidArgumentError(absl::StrCat(file, ": cannot be read"));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// A single graph is a logical program of one graph.
absl::StatusOr<Program> ParseText(const std::string& text, const ParseOptions& options) {
  if (absl::StrContains(text.substr(0, text.find('\n', text.find("tacc."))), "tacc.program")) {
    return ParseProgram(text, options);
  }
  Program program;
  TACC_ASSIGN_OR_RETURN(Graph graph, ParseGraph(text, options));
  program.graphs.push_back(std::move(graph));
  return program;
}

std::string PrintText(const Program& program) {
  const bool single = program.graphs.size() == 1 && program.graphs[0].name.empty() && program.level == Level::kLogical;
  return single ? Print(program.graphs[0]) : Print(program);
}

// The passes of the pipeline that are named, in the order of the names.
absl::StatusOr<std::vector<Pass>> SelectPasses(const std::vector<std::string>& names, std::vector<Pass> pipeline) {
  std::map<std::string, Pass> by_name;
  for (Pass& pass : pipeline) {
    if (pass.enabled) by_name.emplace(pass.name, std::move(pass));
  }
  std::vector<Pass> passes;
  for (const std::string& name : names) {
    auto it = by_name.find(name);
    if (it == by_name.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--passes: no pass is named '", name, "'; there are ",
          absl::StrJoin(by_name, ", ", [](std::string* out, const auto& item) { absl::StrAppend(out, item.first); })));
    }
    passes.push_back(it->second);
  }
  return passes;
}

// The pipeline in order, a pass a line.
std::string ListPasses() {
  std::string list;
  for (const Pass& pass : BuildPipeline({}, nullptr))
    absl::StrAppendFormat(&list, "%-18s %s\n", pass.name, pass.summary);
  return list;
}

// A program after a pass: on standard error, or in a file of a folder.
struct Dump {
  std::string pass;  // or "all"
  std::string dir;   // "": standard error
};

absl::StatusOr<std::vector<Dump>> ParseDumps(const std::vector<std::string>& items) {
  const std::vector<Pass> pipeline = BuildPipeline({}, nullptr);
  std::vector<Dump> dumps;
  for (const std::string& item : items) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(item, absl::MaxSplits('=', 1));
    if (parts.first != "all" &&
        std::none_of(pipeline.begin(), pipeline.end(), [&](const Pass& pass) { return pass.name == parts.first; })) {
      return absl::InvalidArgumentError(
          absl::StrCat("--dump-after: no pass is named '", parts.first, "'; --list-passes shows them"));
    }
    dumps.push_back({parts.first, parts.second});
  }
  return dumps;
}

absl::Status WriteDump(const Dump& dump, const PassRun& run, const std::string& text) {
  if (dump.dir.empty()) {
    std::cerr << absl::StrFormat("# after %02d.%s\n", run.index, run.pass.name) << text;
    return absl::OkStatus();
  }
  const std::string path = absl::StrFormat("%s/%02d.%s.txt", dump.dir, run.index, run.pass.name);
  std::error_code error;
  std::filesystem::create_directories(dump.dir, error);
  std::ofstream out(path);
  out << text << std::flush;
  return out ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat(path, ": cannot be written"));
}

std::string PrintStages(const std::vector<Program>& stages) {
  std::string text;
  for (const Program& stage : stages) absl::StrAppend(&text, PrintText(stage));
  return text;
}

absl::StatusOr<std::string> Run(Arguments arguments) {
  ParseOptions parse;
  parse.file = arguments.file == "-" ? "<stdin>" : arguments.file;
  TACC_ASSIGN_OR_RETURN(const auto symbols, ParsePairs(arguments.symbols, "--symbols"));
  parse.symbols.insert(symbols.begin(), symbols.end());
  TACC_ASSIGN_OR_RETURN(const auto axes, ParsePairs(arguments.mesh, "--mesh"));
  Mesh mesh;
  for (const auto& [name, size] : axes) {
    if (mesh.Find(name) >= 0) return absl::InvalidArgumentError(absl::StrCat("--mesh: ", name, " is given twice"));
    mesh.axes.push_back({name, size});
  }
  arguments.options.partition = LayoutOf(mesh, arguments.residual_module);
  arguments.options.sequence_blocks = SequenceBlocks(mesh);
  arguments.options.partition.units = arguments.options.schedule.units;
  arguments.options.target = CpuTarget().make({arguments.threads});
  TACC_ASSIGN_OR_RETURN(arguments.options.compute_dtype, ParseDType(arguments.compute_dtype));
  TACC_ASSIGN_OR_RETURN(arguments.options.residual_dtype, ParseDType(arguments.residual_dtype));
  if (arguments.options.compute_dtype == DType::kF16)
    arguments.options.training.loss_scale = TrainingOptions::LossScale();
  TACC_ASSIGN_OR_RETURN(const std::string text, ReadText(arguments.file));
  TACC_ASSIGN_OR_RETURN(Program program, ParseText(text, parse));
  if (program.graphs.empty()) return absl::InvalidArgumentError(absl::StrCat(parse.file, ": there is no graph in it"));
  arguments.options.stages.units = arguments.options.schedule.units;
  const OpTable ops;
  if (!arguments.machine.empty()) {
    TACC_ASSIGN_OR_RETURN(const Machine machine, FindMachine(arguments.machine));
    arguments.options.product_seconds = [machine, &ops](const Node& node, const OpCall& call) {
      return LocalSeconds(machine, *ops.Find(node.op), node, call);
    };
  }
  std::vector<MemoryUse> memory;
  TACC_ASSIGN_OR_RETURN(const std::vector<Pass> passes,
                        SelectPasses(arguments.passes, BuildPipeline(arguments.options, &memory)));
  TACC_ASSIGN_OR_RETURN(const std::vector<Dump> dumps, ParseDumps(arguments.dump_after));
  PipelineObserver observer;
  absl::Status dumped;
  observer.after_pass = [&](const PassRun& run, const std::vector<Program>& stages) {
    for (const Dump& dump : dumps) {
      if (!run.changed || (dump.pass != "all" && dump.pass != run.pass.name)) continue;
      dumped.Update(WriteDump(dump, run, PrintStages(stages)));
    }
  };
  std::vector<Program> stages = {std::move(program)};
  TACC_RETURN_IF_ERROR(RunPipeline(passes, ops, observer, stages));
  TACC_RETURN_IF_ERROR(dumped);
  return PrintStages(stages);
}

int Main(int argc, char** argv) {
  CLI::App app("Reads a graph or program in text form, verifies it, runs passes (verified after each) and prints it.",
               "tacc-opt");
  app.set_version_flag("--version", "tacc-opt " TACC_VERSION);
  Arguments arguments;
  TrainingOptions& training = arguments.options.training;
  ScheduleOptions& schedule = arguments.options.schedule;
  app.add_option("file", arguments.file, "text file, or - for standard input")->required();
  app.add_option("--passes", arguments.passes, "passes to run, in this order")->delimiter(',');
  app.add_flag_callback(
      "--list-passes",
      [] {
        std::cout << ListPasses() << std::flush;
        throw CLI::Success();
      },
      "print the passes of a compilation, in order, and exit");
  app.add_option("--dump-after", arguments.dump_after,
                 "PASS or PASS=DIR, or all: write the program after this pass, if it changed it, to standard error or "
                 "to DIR/NN.PASS.txt")
      ->delimiter(',');
  app.add_option("--symbols", arguments.symbols, "values of dims written as names: B=4,S=8")->delimiter(',');
  app.add_option("--mesh", arguments.mesh, "partition: mesh axes, major to minor: dp=2,fsdp=2")->delimiter(',');
  app.add_option("--residual-module", arguments.residual_module,
                 "partition: module whose result the residual stream begins with");
  app.add_option("--compute-dtype", arguments.compute_dtype, "mixed-precision: dtype of matrix products");
  app.add_option("--residual-dtype", arguments.residual_dtype,
                 "narrow-residual: dtype of what the backward keeps of the residual stream");
  app.add_option("--machine", arguments.machine, "join-products: GPUs whose times decide, as in cluster.yaml: h100");
  app.add_option("--accumulation", training.accumulation, "build-training: micro-batches of a step")
      ->check(CLI::PositiveNumber);
  app.add_option("--batch-norm-groups", training.batch_norm_groups,
                 "build-training: groups of samples with statistics of their own")
      ->check(CLI::PositiveNumber);
  app.add_option("--learning-rate", training.learning_rate, "build-training");
  app.add_option("--max-steps", training.max_steps, "build-training");
  app.add_option("--max-grad-norm", training.max_grad_norm, "build-training: 0 for no clipping");
  app.add_option("--remat-units", arguments.options.remat.units, "remat: module paths whose activations are not kept")
      ->delimiter(',');
  app.add_option("--units", schedule.units,
                 "partition, schedule: module paths gathered and freed together; stages: between which to cut")
      ->delimiter(',');
  app.add_option("--prefetch-units", schedule.prefetch_units, "schedule: units ahead that a gather starts")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--threads", arguments.threads, "plan-memory: threads of a rank")->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kBadInput;
  }
  const absl::StatusOr<std::string> text = Run(std::move(arguments));
  if (text.ok()) {
    std::cout << *text << std::flush;
    return 0;
  }
  std::cerr << "error: " << text.status().message() << "\n";
  return absl::IsInternal(text.status()) ? kBug : kBadInput;
}

}  // namespace
}  // namespace tacc::graph

int main(int argc, char** argv) { return tacc::graph::Main(argc, argv); }
