#include "graph/planner/simulate/trace.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tacc::graph {
namespace {

using nlohmann::json;

constexpr int kComputeThread = 0;

// Slices as text, one after the other: a trace can have a million.
class Writer {
 public:
  void Name(const char* what, int process, int thread, const std::string& name) {
    Add({{"ph", "M"}, {"name", what}, {"pid", process}, {"tid", thread}, {"args", {{"name", name}}}});
  }
  void Slice(const std::string& name, const char* category, int process, int thread, double begin, double end,
             json arguments) {
    // Whole nanoseconds: a slice never sticks out of the one around it by rounding.
    const double from = Microseconds(begin);
    Add({{"ph", "X"},
         {"name", name},
         {"cat", category},
         {"pid", process},
         {"tid", thread},
         {"ts", from},
         {"dur", Microseconds(end) - from},
         {"args", std::move(arguments)}});
  }
  void Memory(int process, const MemoryPoint& point) {
    Add({{"ph", "C"},
         {"name", "memory"},
         {"pid", process},
         {"ts", Microseconds(point.seconds)},
         {"args", {{"bytes", point.bytes}}}});
  }
  std::string Text() && { return absl::StrCat("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", text_, "\n]}\n"); }

 private:
  static double Microseconds(double seconds) { return std::round(seconds * 1e9) / 1e3; }
  void Add(const json& event) { absl::StrAppend(&text_, text_.empty() ? "" : ",\n", event.dump()); }

  std::string text_;
};

json NodeArguments(const Graph& graph, const Node& node) {
  json arguments = json::object();
  if (!node.module.empty()) arguments["module"] = node.module;
  if (node.recompute > 0) arguments["recompute"] = node.recompute;
  if (!node.results.empty()) {
    const Value& result = graph.values[node.results[0]];
    arguments["result"] = absl::StrCat("%", result.name, " ", result.type.ToString());
    if (result.placement.has_value()) arguments["of"] = result.placement->global.ToString();
  }
  if (const auto over = GetAttr<std::vector<std::string>>(node.attrs, "over"); !over.empty())
    arguments["over"] = absl::StrJoin(over, " ");
  return arguments;
}

class Tracer {
 public:
  Tracer(const Simulation& simulation, const std::vector<const Program*>& stages, const NodeTimes& times)
      : simulation_(simulation), stages_(stages), times_(times) {}

  std::string Run(const std::vector<std::string>& names) {
    int64_t num_nodes = 0;
    for (const Span& span : simulation_.timeline) num_nodes += span.last_node - span.first_node + 1;
    with_nodes_ = num_nodes <= kMaxTraceSlices;
    size_t begin = 0;
    for (size_t s = 0; s < stages_.size(); ++s) {
      const int stage = static_cast<int>(s);
      writer_.Name("process_name", stage, kComputeThread, names[s]);
      writer_.Name("thread_name", stage, kComputeThread, "compute");
      size_t end = begin;
      while (end < simulation_.timeline.size() && simulation_.timeline[end].stage == stage) ++end;
      Calls(stage, begin, end);
      if (stages_[s]->level == Level::kPlanned) {
        for (const MemoryPoint& point : MemoryOverTime(simulation_, *stages_[s], stage, times_))
          writer_.Memory(stage, point);
      }
      begin = end;
    }
    return std::move(writer_).Text();
  }

 private:
  // The slices of the stage's spans [begin, end).
  void Calls(int stage, size_t begin, size_t end) {
    const Program& program = *stages_[stage];
    std::map<std::string, int> threads;
    while (begin < end) {
      const int call = simulation_.timeline[begin].call;
      const Graph& graph = *program.FindGraph(program.step[call].graph);
      size_t call_end = begin;
      double first = simulation_.step_seconds, last = 0;  // of what is computed
      for (; call_end < end && simulation_.timeline[call_end].call == call; ++call_end) {
        const Span& span = simulation_.timeline[call_end];
        if (span.lane == Lane::kCommunication) {
          Collective(graph, span, threads);
          continue;
        }
        first = std::min(first, span.begin);
        last = std::max(last, span.end);
      }
      if (first < last) {
        writer_.Slice(absl::StrCat(graph.name, " ", program.step[call].micro_batch), "call", stage, kComputeThread,
                      first, last, {{"micro_batch", program.step[call].micro_batch}});
      }
      if (with_nodes_) {
        for (size_t i = begin; i < call_end; ++i) {
          if (simulation_.timeline[i].lane == Lane::kCompute) Nodes(graph, simulation_.timeline[i]);
        }
      }
      begin = call_end;
    }
  }

  void Collective(const Graph& graph, const Span& span, std::map<std::string, int>& threads) {
    const Node& node = graph.nodes[span.first_node];
    const std::string communicator = times_(span.stage, graph, node).communicator;
    const auto [thread, is_new] = threads.try_emplace(communicator, static_cast<int>(threads.size()) + 1);
    if (is_new) writer_.Name("thread_name", span.stage, thread->second, absl::StrCat("communication ", communicator));
    json arguments = NodeArguments(graph, node);
    arguments["exposed_us"] = span.exposed * 1e6;
    writer_.Slice(node.op, "collective", span.stage, thread->second, span.begin, span.end, std::move(arguments));
  }

  // A slice for each run of nodes of one module, and in it one for each node that takes time.
  void Nodes(const Graph& graph, const Span& span) {
    const std::vector<Span> nodes = SplitByNode(span, graph, times_);
    for (size_t i = 0; i < nodes.size();) {
      const std::string& module = graph.nodes[nodes[i].first_node].module;
      size_t end = i;
      while (end < nodes.size() && graph.nodes[nodes[end].first_node].module == module) ++end;
      if (!module.empty() && nodes[end - 1].end > nodes[i].begin)
        writer_.Slice(module, "module", span.stage, kComputeThread, nodes[i].begin, nodes[end - 1].end, json::object());
      for (; i < end; ++i) {
        const Node& node = graph.nodes[nodes[i].first_node];
        if (nodes[i].end > nodes[i].begin)
          writer_.Slice(node.op, "node", span.stage, kComputeThread, nodes[i].begin, nodes[i].end,
                        NodeArguments(graph, node));
      }
    }
  }

  const Simulation& simulation_;
  const std::vector<const Program*>& stages_;
  const NodeTimes& times_;
  bool with_nodes_ = true;
  Writer writer_;
};

}  // namespace

std::string TraceJson(const Simulation& simulation, const std::vector<const Program*>& stages,
                      const std::vector<std::string>& names, const NodeTimes& times) {
  return Tracer(simulation, stages, times).Run(names);
}

}  // namespace tacc::graph
