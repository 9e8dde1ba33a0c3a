#ifndef TACC_GRAPH_TOOLS_PLAN_COMMANDS_H_
#define TACC_GRAPH_TOOLS_PLAN_COMMANDS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// What `tacc-plan plan` says and writes of the best candidate beside the list; empty: not.
struct PlanOutputs {
  std::string explain;     // Explain()'s name, or a layout for ExplainLayout()
  std::string trace_file;  // the simulated step, for Perfetto
  std::string html_file;   // the report
};

// All commands that read a file: NotFound when it cannot be opened.

// `tacc-plan plan`: the candidates as JSON (docs/contracts.md), the best first. The best may not fit: its "fits" says
// so.
absl::StatusOr<std::string> PlanCommand(const std::string& request_file, const PlanOutputs& outputs,
                                        const OpTable& ops);

// `tacc-plan draw`: writes these traces as one page, and returns what to warn of; empty: nothing. Errors:
// InvalidArgument for a file that is no trace.
absl::StatusOr<std::string> DrawCommand(const std::vector<std::string>& trace_files, const std::string& html_file);

// `tacc-plan machines`: the known machines with their constants as JSON (docs/contracts.md).
std::string MachinesCommand();

// The file of `out_dir` that CompileCommand writes the simulated step to, as a trace, where the job has a
// train.trace_step.
inline constexpr char kCompiledTrace[] = "trace.json";

// `tacc-plan calibrate`: the constants of the request's cluster, fitted to the steps that ran on it, as JSON
// (docs/contracts.md). Errors: InvalidArgument, with the step's place before them: what PlanCommand says of its
// request, and of a layout that does not fit.
absl::StatusOr<std::string> CalibrateCommand(const std::string& request_file, const OpTable& ops);

// `tacc-plan check`: what is wrong with the request's model and layout, whatever the devices; the request need not have
// them, nor `data`. Reads no weights. Without a data.seq_len the model's folder alone is checked. Errors: those that
// `compile` gives for them.
absl::Status CheckCommand(const std::string& request_file, const OpTable& ops);

// `tacc-plan compile`: writes to `out_dir`, which is made if it is not there, plan.txt, stageN.program for each stage,
// summary.json, kCompiledTrace where the job asks for it and, of a Hugging Face folder, its config.json as it was read.
// `dump_dir`, when not empty, receives the program after each pass as NN.name.txt and the passes' seconds as
// passes.txt. Errors: InvalidArgument when the model does not fit, or the request contradicts the model or the data;
// Unavailable when a file cannot be written.
absl::Status CompileCommand(const std::string& request_file, const std::string& out_dir, const std::string& dump_dir,
                            const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_TOOLS_PLAN_COMMANDS_H_
