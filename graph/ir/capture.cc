#include "graph/ir/capture.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"

namespace tacc::graph {
namespace {

constexpr char kHostTalks[] = "the host takes part in the talk between ranks";
constexpr char kLibTorch[] = "operators of LibTorch may wait for the device";
constexpr char kMessage[] = "a message may outlast the graph";
constexpr char kUnderMessage[] = "a collective is under way while a message may outlast the graph";

// Whether more ranks than one take part.
bool IsCollective(const Node& node, const Mesh& mesh) {
  if (node.op == Op::kShardSlice) return false;  // its `over` says where a part lies
  if (GetAttr<std::vector<int64_t>>(node.attrs, "stages").size() > 1) return true;
  int64_t ranks = 1;
  for (const std::string& name : GetAttr<std::vector<std::string>>(node.attrs, "over")) {
    if (const int axis = mesh.Find(name); axis >= 0) ranks *= mesh.axes[axis].size;
  }
  return ranks > 1;
}

// As a rule: its value lies at its state's place.
bool RunsNothing(const Node& node) { return node.op == Op::kRead || node.op == Op::kStore; }

}  // namespace

std::vector<GraphPart> CutForCapture(const Graph& graph, const Mesh& mesh, TalkPlace place) {
  const size_t n = graph.nodes.size();
  std::vector<const char*> why_not(n, nullptr);
  std::vector<size_t> started(graph.values.size(), n);  // by value: the node that has started what makes it
  struct Collective {
    size_t start, end;  // the node that waits for it, or the graph's last
  };
  std::vector<Collective> under_way;
  std::vector<char> is_neutral(n, 0);
  for (size_t i = 0; i < n; ++i) {
    const Node& node = graph.nodes[i];
    const bool is_collective = IsCollective(node, mesh);
    const size_t start = node.op == Op::kWait ? started[node.operands[0]] : n;
    is_neutral[i] = RunsNothing(node) || (node.op == Op::kWait && start == n);
    if (place == TalkPlace::kHost) {
      if (IsMessage(node.op) || is_collective || start < n) why_not[i] = kHostTalks;
    } else if (IsMessage(node.op)) {
      why_not[i] = kMessage;
    }
    if (node.op == "aten" || node.op == "aten_vjp") why_not[i] = kLibTorch;
    if (is_collective && GetAttr<bool>(node.attrs, "async")) {
      for (ValueId v : node.results) started[v] = i;
      under_way.push_back({i, n - 1});
    }
    for (Collective& collective : under_way) {
      if (start < n && collective.start == start) collective.end = i;
    }
  }
  // One that is cut may cut others.
  for (bool is_new = place == TalkPlace::kDevice; is_new;) {
    is_new = false;
    for (const Collective& collective : under_way) {
      const auto begin = why_not.begin() + static_cast<ptrdiff_t>(collective.start);
      const auto end = why_not.begin() + static_cast<ptrdiff_t>(collective.end) + 1;
      if (std::all_of(begin, end, [](const char* why) { return why == nullptr; })) continue;
      for (auto why = begin; why != end; ++why) {
        if (*why != nullptr) continue;
        *why = kUnderMessage;
        is_new = true;
      }
    }
  }
  const size_t first = std::find(is_neutral.begin(), is_neutral.end(), 0) - is_neutral.begin();
  for (size_t i = 0; first < n && i < first; ++i) why_not[i] = why_not[first];
  std::vector<GraphPart> parts;
  for (size_t i = 0; i < n; ++i) {
    if (i > first && is_neutral[i] && why_not[i] == nullptr) why_not[i] = why_not[i - 1];
    const std::string why = why_not[i] == nullptr ? "" : why_not[i];
    if (parts.empty() || parts.back().not_captured != why) parts.push_back({static_cast<int>(i), 0, why});
    parts.back().end = static_cast<int>(i) + 1;
  }
  return parts;
}

std::vector<CapturePart> CapturePlan(const Program& program, TalkPlace place) {
  std::vector<CapturePart> plan;
  std::set<std::string> seen;
  for (const std::vector<Call>* calls : {&program.step, &program.eval}) {
    for (const Call& call : *calls) {
      const Graph* graph = program.FindGraph(call.graph);
      if (graph == nullptr || !seen.insert(call.graph).second) continue;
      for (const GraphPart& part : CutForCapture(*graph, program.mesh, place)) {
        int at = part.begin;
        while (at + 1 < part.end && RunsNothing(graph->nodes[at])) ++at;
        const Node& first = graph->nodes[at];
        plan.push_back({graph->name, part.end - part.begin,
                        absl::StrCat(first.op.name(), first.module.empty() ? "" : " @", first.module),
                        part.not_captured});
      }
    }
  }
  return plan;
}

std::string InWords(const std::vector<CapturePart>& parts) {
  std::string captured, others;
  for (const CapturePart& part : parts) {
    std::string& list = part.not_captured.empty() ? captured : others;
    absl::StrAppend(&list, list.empty() ? "" : ", ", part.graph, " (", part.num_nodes,
                    part.num_nodes == 1 ? " node from " : " nodes from ", part.first_node,
                    part.not_captured.empty() ? "" : ": ", part.not_captured, ")");
  }
  return absl::StrCat("CUDA graphs: ", captured.empty() ? "none" : captured,
                      others.empty() ? "" : "; not captured: ", others);
}

}  // namespace tacc::graph
