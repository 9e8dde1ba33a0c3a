// One step as spans of time, simulated or measured, and its file for Perfetto.
#ifndef TACC_GRAPH_TRACE_STEP_TRACE_H_
#define TACC_GRAPH_TRACE_STEP_TRACE_H_

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "graph/ir/program.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// One step of a program as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: JSON in the trace event
// format, times in microseconds. Simulated and measured steps are written by the same code, so they can be compared
// name by name. In a process for each rank, or for ranks that are alike:
// - a thread `compute` with slices for calls (category `call`), in them for the forward and the backward of a graph
//   that has both (`phase`), in them for modules (`module`), in them for nodes (`node`);
// - a thread `communication C` for each communicator C, with slices for collectives and messages (`collective`), a
//   message named by the stage at its other end;
// - a thread `copy` with slices for copies between host and device (`copy`), of a measured step on a device;
// - a counter `memory`, in bytes.
//
// A process says its layout in `process_labels` (LayoutOf): what was not laid out alike is not to be compared.
// Threads have sort indices, so that viewers show them in this order.
// Source: "Trace Event Format", Google, 2016.

// When a node of a call ran: what computes, or a collective or message.
struct TraceSpan {
  int node = 0;  // index in the call's graph
  // Of a collective or message: what its thread is called. Empty: it computes.
  std::string communicator;
  double begin = 0;  // seconds from the start of the trace
  double end = 0;
  // Of a collective or message: seconds in which its rank computed nothing for it, and payload that the rank sent.
  double exposed = 0;
  int64_t sent_bytes = 0;
  // Nodes of the same op that were done in the same call.
  std::vector<int> more_nodes = {};
};

// When something was copied between host and device.
struct TraceCopy {
  std::string name;    // of the slice
  std::string values;  // what is copied
  int64_t bytes = 0;
  double begin = 0;  // seconds from the start of the trace
  double end = 0;
};

// The communicator of a collective or message on a device that has one for each group of ranks: the mesh axes that it
// goes over ("dp fsdp"), "pp" of stages, "channel 3" of a message.
std::string CommunicatorOf(const Node& node);
// What it is called where one thread runs all collectives but messages: on a CPU.
inline constexpr char kHostCommunicator[] = "all";

// Where the forward of a graph ends: the index behind the node that stores the loss; 0 without one.
int ForwardEnd(const Graph& graph, const Program& program);

// How a program's step lies over its ranks: "pp=2 dp=1 fsdp=4, interleaved x 2, 8 micro-batches", with "gc" where a
// rank computes something again. The same of all stages; 1f1b and zero_bubble, of which a stage may look like either,
// are not told apart.
std::string LayoutOf(const Program& program);

// One process of a trace.
class StepTrace {
 public:
  enum class Detail { kCalls, kNodes };

  // `program` and `ops` must outlive the object. kCalls: no slices for phases, modules and nodes.
  StepTrace(int process, const std::string& name, const Program* program, const OpTable* ops, Detail detail);

  // What ran in the step's call `call` (its index). Spans that compute are in the order of nodes and apart; so are
  // those of one communicator.
  void AddCall(int call, const std::vector<TraceSpan>& spans);
  // Copies are apart.
  void AddCopy(const TraceCopy& copy);
  void AddMemory(double seconds, int64_t bytes);

  // The events; the object is used up.
  std::string Events() &&;

 private:
  struct Slice;
  void Add(const Slice& slice);
  void Describe(const char* what, int thread, const nlohmann::json& arguments);
  int ThreadOf(const std::string& name);
  void AddNodes(const Graph& graph, const std::vector<const TraceSpan*>& spans);

  const int process_;
  const Program& program_;
  const OpTable& ops_;
  const Detail detail_;
  std::map<std::string, int> threads_;
  std::string text_;
};

// The trace of these processes, each by what Events() has given, as the text of a file.
std::string TraceText(const std::vector<std::string>& processes);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_TRACE_STEP_TRACE_H_
