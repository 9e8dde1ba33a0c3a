#include "worker/rank/timing/rank_trace.h"

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "graph/ir/status_macros.h"
#include "graph/trace/step_trace.h"
#include "machine/clock.h"
#include "worker/checkpoint/files/posix_file.h"

namespace tacc::worker {
namespace {

using graph::TraceSpan;
using Role = StepTimes::Role;

// Instructions as spans: what waits for a collective or message shows as its exposed time.
class Spans {
 public:
  Spans(const graph::Program& program, const graph::OpTable& ops, const StepTimes& times, double origin)
      : program_(program), ops_(ops), times_(times), origin_(origin), calls_(program.step.size()) {}

  // By call.
  std::vector<std::vector<TraceSpan>> Make() {
    for (size_t i = 0; i < times_.instructions.size(); ++i) Add(i);
    KeepApart();
    return std::move(calls_);
  }

 private:
  struct Place {
    int call = 0;
    size_t index = 0;
  };

  void Add(size_t index) {
    const StepTimes::Instruction& instruction = times_.instructions[index];
    const graph::Call& call = program_.step[instruction.call];
    const graph::Graph& graph = *program_.FindGraph(call.graph);
    const graph::Node& node = graph.nodes[instruction.node];
    const double begin = instruction.begin - origin_, end = instruction.end - origin_;
    if (instruction.role == Role::kWaits) {
      const auto place = under_way_.find(KeyOf(instruction.call, graph, node));
      if (place == under_way_.end()) return;
      calls_[place->second.call][place->second.index].exposed += end - begin;
      return;
    }
    TraceSpan span{instruction.node, "", begin, end};
    if (instruction.role == Role::kComputes) {
      span.more_nodes = MoreNodes(graph, index);
    } else {
      const bool is_message = node.op == graph::Op::kSend || node.op == graph::Op::kRecv;
      span.communicator =
          times_.collectives_on_device || is_message ? graph::CommunicatorOf(node) : graph::kHostCommunicator;
      if (instruction.role == Role::kCommunicates) span.exposed = end - begin;
      const CollectiveTime& time = times_.collectives[num_collectives_++];
      span.begin = time.begin - origin_;
      span.end = time.end - origin_;
      span.sent_bytes = time.sent_bytes;
      started_.push_back({instruction.call, calls_[instruction.call].size()});
      if (instruction.role == Role::kStarts) under_way_[KeyOf(instruction.call, graph, node)] = started_.back();
    }
    calls_[instruction.call].push_back(std::move(span));
  }

  // Other nodes of a kernel's op before the next instruction: a device may do several in one call.
  std::vector<int> MoreNodes(const graph::Graph& graph, size_t index) const {
    const StepTimes::Instruction& instruction = times_.instructions[index];
    const graph::OpDef* op = ops_.Find(graph.nodes[instruction.node].op);
    if (op == nullptr || op->aliases || !graph.nodes[instruction.node].symbol.empty()) return {};
    const bool is_last =
        index + 1 == times_.instructions.size() || times_.instructions[index + 1].call != instruction.call;
    const int end = is_last ? static_cast<int>(graph.nodes.size()) : times_.instructions[index + 1].node;
    std::vector<int> nodes;
    for (int node = instruction.node + 1; node < end; ++node) {
      if (graph.nodes[node].op == graph.nodes[instruction.node].op) nodes.push_back(node);
    }
    return nodes;
  }

  // The same of what starts a collective or message and of what waits for it.
  std::string KeyOf(int call, const graph::Graph& graph, const graph::Node& node) const {
    if (node.op == graph::Op::kSend || node.op == graph::Op::kRecv || node.op == graph::Op::kFinish) {
      const graph::State* stash = program_.FindState(node.symbol);
      const int64_t slots = stash == nullptr ? 1 : stash->slots;
      return absl::StrCat("channel ", graph::GetAttr<int64_t>(node.attrs, "channel"), " slot ",
                          program_.step[call].micro_batch % slots);
    }
    const graph::ValueId value = node.op == graph::Op::kWait ? node.operands[0] : node.results[0];
    return absl::StrCat("call ", call, " value ", value);
  }

  // Those of one communicator follow each other. A CPU knows of a message only when its rank had waited for it, which
  // may be long after it ended: it ends where the next one begins, unless the rank stood still for it then.
  void KeepApart() {
    std::map<std::string, TraceSpan*> last;
    for (const Place& place : started_) {
      TraceSpan& span = calls_[place.call][place.index];
      TraceSpan*& before = last.try_emplace(span.communicator, nullptr).first->second;
      if (before != nullptr) {
        if (before->exposed < (before->end - span.begin) / 2) before->end = std::max(before->begin, span.begin);
        span.begin = std::max(span.begin, before->end);
      }
      span.end = std::max(span.begin, span.end);
      before = &span;
    }
  }

  const graph::Program& program_;
  const graph::OpTable& ops_;
  const StepTimes& times_;
  const double origin_;
  std::vector<std::vector<TraceSpan>> calls_;
  size_t num_collectives_ = 0;
  std::vector<Place> started_;              // Collectives and messages, in order.
  std::map<std::string, Place> under_way_;  // By KeyOf.
};

// When the step began; now, where nothing was timed.
double BeginOf(const StepTimes& times) {
  double begin = SteadySeconds();
  if (!times.instructions.empty()) begin = std::min(begin, times.instructions.front().begin);
  if (!times.copies.empty()) begin = std::min(begin, times.copies.front().begin);
  return begin;
}

// Seconds since the epoch in nanoseconds, at the moment that SteadySeconds() called `steady`.
int64_t WallNanoseconds(double steady) {
  // A pause between two readings makes the difference larger.
  double difference = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 8; ++i) {
    const double before = SteadySeconds();
    difference = std::min(difference, WallSeconds() - before);
  }
  return static_cast<int64_t>((difference + steady) * 1e9);
}

}  // namespace

std::string MeasuredProcess(const graph::Program& program, const graph::OpTable& ops, int rank, const StepTimes& times,
                            double origin) {
  graph::StepTrace trace(
      rank,
      program.num_stages > 1 ? absl::StrCat("rank ", rank, ", stage ", program.stage) : absl::StrCat("rank ", rank),
      &program, &ops, graph::StepTrace::Detail::kNodes);
  const std::vector<std::vector<TraceSpan>> calls = Spans(program, ops, times, origin).Make();
  for (size_t i = 0; i < calls.size(); ++i) trace.AddCall(static_cast<int>(i), calls[i]);
  for (const StepTimes::Copy& copy : times.copies) {
    const char* name = copy.direction == StepTimes::Copy::Direction::kToDevice ? "upload" : "download";
    trace.AddCopy({name, copy.names, copy.bytes, copy.begin - origin, copy.end - origin});
  }
  return std::move(trace).Events();
}

absl::Status RankTrace::WritePrediction() const {
  if (request_.predicted.empty()) return absl::OkStatus();
  return WriteSmallFile(absl::StrCat(absl::StripSuffix(request_.path, ".json"), ".predicted.json"), request_.predicted);
}

absl::Status RankTrace::Agree(int64_t steps_done, int64_t max_steps) {
  const int64_t left = max_steps - steps_done;
  const int64_t mine = request_.path.empty() || left < 1 ? 0 : steps_done + std::min(request_.step, left);
  TACC_ASSIGN_OR_RETURN(const auto all, collectives_.GatherHost({static_cast<uint64_t>(mine)}));
  for (const std::vector<uint64_t>& values : all) step_ = std::max(step_, static_cast<int64_t>(values[0]));
  return absl::OkStatus();
}

absl::Status RankTrace::Finish(const StepTimes& times) {
  // Processes of one machine have one clock; those of several are as close as their clocks are set.
  const double begin = BeginOf(times);
  const int64_t my_start = WallNanoseconds(begin);
  const uint64_t asked = request_.path.empty() ? 0 : 1;
  TACC_ASSIGN_OR_RETURN(const auto starts, collectives_.GatherHost({static_cast<uint64_t>(my_start), asked}));
  int64_t first_start = my_start;
  for (const auto& start : starts) first_start = std::min(first_start, static_cast<int64_t>(start[0]));
  const int rank = collectives_.rank(), traced = std::min(collectives_.world(), kMaxRanks);
  std::string mine;
  if (rank < traced)
    mine = MeasuredProcess(program_, ops_, rank, times, begin - static_cast<double>(my_start - first_start) * 1e-9);

  // Each sends its own to those that were asked.
  TACC_ASSIGN_OR_RETURN(const auto sizes, collectives_.GatherHost({mine.size()}));
  std::vector<std::string> processes(collectives_.world());
  CollectiveCall call;
  call.me = rank;
  for (int r = 0; r < collectives_.world(); ++r) {
    const bool sends = r != rank && starts[r][1] != 0, receives = r != rank && asked != 0;
    processes[r].resize(receives ? sizes[r][0] : 0);
    call.members.push_back(r);
    call.send.push_back(Flat(mine.data(), sends ? static_cast<int64_t>(mine.size()) : 0));
    call.receive.push_back(Flat(processes[r].data(), static_cast<int64_t>(processes[r].size())));
  }
  if (collectives_.world() > 1) TACC_RETURN_IF_ERROR(collectives_.Run(call));
  if (asked == 0) return absl::OkStatus();
  processes[rank] = std::move(mine);
  processes.resize(traced);
  const absl::Status written = WriteSmallFile(request_.path, graph::TraceText(processes));
  for (const absl::Status& status : {written, WritePrediction()}) {
    if (!status.ok()) events_.Warning("trace_failed", std::string(status.message()));
  }
  if (written.ok()) events_.Write(protocol::TraceEvent{.step = step_, .path = request_.path});
  return absl::OkStatus();
}

}  // namespace tacc::worker
