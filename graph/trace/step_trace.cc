#include "graph/trace/step_trace.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/ir/plan.h"

namespace tacc::graph {
namespace {

using nlohmann::json;

constexpr char kComputeThread[] = "compute";
constexpr char kCopyThread[] = "copy";

// Compute above communicators, copies below them.
int SortIndex(const std::string& thread) { return thread == kComputeThread ? 0 : thread == kCopyThread ? 2 : 1; }

// Whole nanoseconds: a slice never sticks out of the one around it by rounding.
double Microseconds(double seconds) { return std::round(seconds * 1e9) / 1e3; }

json NodeArguments(const Graph& graph, const Node& node) {
  json arguments = json::object();
  if (!node.symbol.empty()) arguments["name"] = node.symbol;
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

// What a kernel has to do: FLOPs where the op counts them, and bytes that it reads and writes.
void AddWork(const Graph& graph, const TraceSpan& span, const OpTable& ops, json& arguments) {
  const OpDef* def = ops.Find(graph.nodes[span.node].op);
  if (def == nullptr) return;
  double flops = 0;
  int64_t bytes = 0;
  const auto add = [&](const Node& node) {
    const OpCall call = CallOf(graph, node);
    if (def->flops) flops += def->flops(call);
    bytes += TouchedBytes(*def, call);
  };
  add(graph.nodes[span.node]);
  for (int node : span.more_nodes) add(graph.nodes[node]);
  if (def->flops) arguments["flops"] = flops;
  if (bytes > 0) arguments["bytes"] = bytes;
  if (!span.more_nodes.empty()) arguments["nodes"] = span.more_nodes.size() + 1;
}

// The module of all of the span's nodes; empty where they differ.
std::string ModuleOf(const Graph& graph, const TraceSpan& span) {
  const std::string& module = graph.nodes[span.node].module;
  const bool differ = std::any_of(span.more_nodes.begin(), span.more_nodes.end(),
                                  [&](int node) { return graph.nodes[node].module != module; });
  return differ ? "" : module;
}

// A message says with which stage.
std::string NameOf(const Node& collective) {
  const Op& op = collective.op;
  if (op == Op::kSend) return absl::StrCat(op.name(), " to stage ", GetAttr<int64_t>(collective.attrs, "to"));
  if (op == Op::kRecv) return absl::StrCat(op.name(), " from stage ", GetAttr<int64_t>(collective.attrs, "from"));
  return std::string(op.name());
}

}  // namespace

struct StepTrace::Slice {
  std::string name;
  const char* category;
  int thread;
  double begin, end;
  json arguments = json::object();
};

std::string CommunicatorOf(const Node& node) {
  if (node.op == Op::kSend || node.op == Op::kRecv)
    return absl::StrCat("channel ", GetAttr<int64_t>(node.attrs, "channel"));
  if (!GetAttr<std::vector<int64_t>>(node.attrs, "stages").empty()) return kStageAxis;
  return absl::StrJoin(GetAttr<std::vector<std::string>>(node.attrs, "over"), " ");
}

int ForwardEnd(const Graph& graph, const Program& program) {
  int end = 0;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].op != Op::kStore) continue;
    const State* state = program.FindState(graph.nodes[i].symbol);
    if (state != nullptr && state->kind == StateKind::kCounter) end = static_cast<int>(i) + 1;
  }
  return end;
}

std::string LayoutOf(const Program& program) {
  std::string text;
  if (program.num_stages > 1 && program.mesh.Find(kStageAxis) < 0)
    absl::StrAppend(&text, kStageAxis, "=", program.num_stages, " ");
  absl::StrAppend(&text, program.mesh.ToString());
  int64_t num_micro_batches = 0;
  bool repeats = false;
  std::set<std::string> chunks;
  for (const Call& call : program.step) {
    num_micro_batches = std::max(num_micro_batches, call.micro_batch + 1);
    if (absl::StartsWith(call.graph, "forward.")) chunks.insert(call.graph);
  }
  for (const Graph& graph : program.graphs)
    repeats |= std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) { return node.recompute > 0; });
  if (chunks.size() > 1) absl::StrAppend(&text, ", ", Name(PipelineSchedule::kInterleaved), " x ", chunks.size());
  absl::StrAppend(&text, ", ", num_micro_batches, num_micro_batches == 1 ? " micro-batch" : " micro-batches",
                  repeats ? ", gc" : "");
  return text;
}

StepTrace::StepTrace(int process, const std::string& name, const Program* program, const OpTable* ops, Detail detail)
    : process_(process), program_(*program), ops_(*ops), detail_(detail) {
  Describe("process_name", ThreadOf(kComputeThread), {{"name", name}});
  Describe("process_labels", ThreadOf(kComputeThread), {{"labels", LayoutOf(program_)}});
}

void StepTrace::Describe(const char* what, int thread, const json& arguments) {
  const json event = {{"ph", "M"}, {"name", what}, {"pid", process_}, {"tid", thread}, {"args", arguments}};
  absl::StrAppend(&text_, text_.empty() ? "" : ",\n", event.dump());
}

int StepTrace::ThreadOf(const std::string& name) {
  const auto [thread, is_new] = threads_.try_emplace(name, static_cast<int>(threads_.size()));
  if (is_new) {
    Describe("thread_name", thread->second, {{"name", name}});
    Describe("thread_sort_index", thread->second, {{"sort_index", SortIndex(name)}});
  }
  return thread->second;
}

void StepTrace::Add(const Slice& slice) {
  const double from = Microseconds(slice.begin);
  const json event = {{"ph", "X"},
                      {"name", slice.name},
                      {"cat", slice.category},
                      {"pid", process_},
                      {"tid", slice.thread},
                      {"ts", from},
                      {"dur", Microseconds(slice.end) - from},
                      {"args", slice.arguments}};
  absl::StrAppend(&text_, ",\n", event.dump());
}

void StepTrace::AddCall(int call, const std::vector<TraceSpan>& spans) {
  const Call& the_call = program_.step[call];
  const Graph& graph = *program_.FindGraph(the_call.graph);
  std::vector<const TraceSpan*> computed;
  for (const TraceSpan& span : spans) {
    if (span.communicator.empty()) {
      computed.push_back(&span);
      continue;
    }
    const Node& node = graph.nodes[span.node];
    json arguments = NodeArguments(graph, node);
    arguments["micro_batch"] = the_call.micro_batch;
    arguments["exposed_us"] = span.exposed * 1e6;
    if (span.sent_bytes > 0) arguments["sent_bytes"] = span.sent_bytes;
    Add({NameOf(node), "collective", ThreadOf(absl::StrCat("communication ", span.communicator)), span.begin, span.end,
         std::move(arguments)});
  }
  if (computed.empty()) return;
  json arguments = {{"micro_batch", the_call.micro_batch}};
  Add({absl::StrCat(graph.name, " ", the_call.micro_batch), "call", ThreadOf(kComputeThread), computed.front()->begin,
       computed.back()->end, std::move(arguments)});
  if (detail_ == Detail::kNodes) AddNodes(graph, computed);
}

void StepTrace::AddNodes(const Graph& graph, const std::vector<const TraceSpan*>& spans) {
  const int thread = ThreadOf(kComputeThread);
  const auto add = [&](const std::string& name, const char* category, size_t begin, size_t end) {
    if (begin < end && spans[end - 1]->end > spans[begin]->begin)
      Add({name, category, thread, spans[begin]->begin, spans[end - 1]->end});
  };
  // The stages of a pipeline have a graph for each.
  const int forward_nodes = program_.num_stages > 1 || graph.name == kUpdateGraph ? 0 : ForwardEnd(graph, program_);
  const auto first_backward =
      std::find_if(spans.begin(), spans.end(), [&](const TraceSpan* span) { return span->node >= forward_nodes; });
  const size_t middle = first_backward - spans.begin();
  const bool has_phases = middle > 0 && middle < spans.size();
  if (has_phases) {
    add("forward", "phase", 0, middle);
    add("backward", "phase", middle, spans.size());
  }
  for (size_t i = 0; i < spans.size();) {
    const std::string module = ModuleOf(graph, *spans[i]);
    size_t end = i + 1;
    while (end < spans.size() && ModuleOf(graph, *spans[end]) == module && !(has_phases && end == middle)) ++end;
    if (!module.empty()) add(module, "module", i, end);
    for (; i < end; ++i) {
      const Node& node = graph.nodes[spans[i]->node];
      json arguments = NodeArguments(graph, node);
      if (module.empty()) arguments.erase("module");
      AddWork(graph, *spans[i], ops_, arguments);
      Add({std::string(node.op.name()), "node", thread, spans[i]->begin, spans[i]->end, std::move(arguments)});
    }
  }
}

void StepTrace::AddCopy(const TraceCopy& copy) {
  Add({copy.name, "copy", ThreadOf(kCopyThread), copy.begin, copy.end, {{"name", copy.values}, {"bytes", copy.bytes}}});
}

void StepTrace::AddMemory(double seconds, int64_t bytes) {
  const json event = {
      {"ph", "C"}, {"name", "memory"}, {"pid", process_}, {"ts", Microseconds(seconds)}, {"args", {{"bytes", bytes}}}};
  absl::StrAppend(&text_, ",\n", event.dump());
}

std::string StepTrace::Events() && { return std::move(text_); }

std::string TraceText(const std::vector<std::string>& processes) {
  return absl::StrCat("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", absl::StrJoin(processes, ",\n"), "\n]}\n");
}

}  // namespace tacc::graph
