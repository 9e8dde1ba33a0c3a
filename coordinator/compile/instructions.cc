#include "coordinator/compile/instructions.h"

#include "absl/strings/str_cat.h"
#include "graph/ir/text.h"

namespace tacc::coordinator {

std::string DescribeNode(const std::string& program_text, int call, int node) {
  const std::string plain = absl::StrCat("call ", call, " node ", node);
  // Those for other lengths have the same calls.
  auto program = graph::ParseProgram(graph::SplitPrograms(program_text)[0], {.file = "program"});
  if (!program.ok() || call < 0 || node < 0) return plain;
  std::vector<graph::Call> calls = program->step;
  calls.insert(calls.end(), program->eval.begin(), program->eval.end());
  if (call >= static_cast<int>(calls.size())) return plain;
  const graph::Graph* graph = program->FindGraph(calls[call].graph);
  if (graph == nullptr || node >= static_cast<int>(graph->nodes.size())) return plain;
  const graph::Node& found = graph->nodes[node];
  std::string text(found.op.name());
  if (!found.results.empty()) absl::StrAppend(&text, " %", graph->values[found.results[0]].name);
  absl::StrAppend(&text, " in ", graph->name);
  if (!found.module.empty()) absl::StrAppend(&text, " (", found.module, ")");
  return text;
}

}  // namespace tacc::coordinator
