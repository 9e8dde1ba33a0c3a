#include "graph/ops/input_axes.h"

namespace tacc::graph {

std::string Name(InputAxis axis) {
  switch (axis) {
    case InputAxis::kBatch:
      return "batch";
    case InputAxis::kSequence:
      return "sequence";
    case InputAxis::kNone:
      return "none";
  }
  return "";
}

std::vector<InputAxis> InputAxes(const Graph& graph, const Node& input) {
  std::vector<InputAxis> axes(graph.type(input.results[0]).rank(), InputAxis::kNone);
  if (input.attrs.count("axes") == 0) {
    if (!axes.empty()) axes[0] = InputAxis::kBatch;
    if (axes.size() > 1) axes[1] = InputAxis::kSequence;
    return axes;
  }
  const auto names = GetAttr<std::vector<std::string>>(input.attrs, "axes");
  for (size_t d = 0; d < axes.size() && d < names.size(); ++d) {
    for (InputAxis axis : {InputAxis::kBatch, InputAxis::kSequence}) {
      if (names[d] == Name(axis)) axes[d] = axis;
    }
  }
  return axes;
}

int64_t ExtentOf(const Graph& graph, InputAxis axis) {
  for (const Node& node : graph.nodes) {
    if (node.op != Op::kInput) continue;
    const std::vector<InputAxis> axes = InputAxes(graph, node);
    for (size_t d = 0; d < axes.size(); ++d) {
      if (axes[d] == axis) return graph.type(node.results[0]).dims[d];
    }
  }
  return 0;
}

}  // namespace tacc::graph
