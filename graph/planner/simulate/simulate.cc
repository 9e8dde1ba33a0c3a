#include "graph/planner/simulate/simulate.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/planner/simulate/task_simulator.h"

namespace tacc::graph {
namespace {

// Local nodes that follow each other, one collective, or one wait.
struct Block {
  enum Kind { kLocal, kCollective, kStart, kWait } kind = kLocal;
  int first_node = 0;
  int last_node = 0;
  NodeTime time;
};

bool IsMessage(const Node& node) { return node.op == Op::kSend || node.op == Op::kRecv; }

std::vector<Block> Blocks(int stage, const Graph& graph, const NodeTimes& times) {
  std::vector<Block> blocks;
  for (int i = 0; i < static_cast<int>(graph.nodes.size()); ++i) {
    const Node& node = graph.nodes[i];
    Block block{Block::kWait, i, i, {}};
    if (node.op != Op::kWait && node.op != Op::kFinish) {
      block.time = times(stage, graph, node);
      if (!block.time.communicator.empty()) {
        block.kind = GetAttr<bool>(node.attrs, "async") || IsMessage(node) ? Block::kStart : Block::kCollective;
      } else {
        block.kind = Block::kLocal;
        if (!blocks.empty() && blocks.back().kind == Block::kLocal) {
          blocks.back().time.seconds += block.time.seconds;
          blocks.back().last_node = i;
          continue;
        }
      }
    }
    blocks.push_back(std::move(block));
  }
  return blocks;
}

class Lowering {
 public:
  Lowering(const std::vector<const Program*>& stages, const NodeTimes& times) : stages_(stages), times_(times) {}

  absl::StatusOr<Simulation> Run() {
    ranks_.resize(stages_.size());
    host_ = tasks_.AddResource();
    for (size_t s = 0; s < stages_.size(); ++s) {
      Rank& rank = ranks_[s];
      rank.compute = tasks_.AddStream();
      rank.device = tasks_.AddResource();
      rank.link = tasks_.AddResource();
      rank.network = tasks_.AddResource();
      TACC_RETURN_IF_ERROR(AddStage(static_cast<int>(s)));
    }
    for (const auto& [name, meetings] : meetings_) {
      for (const Meeting& meeting : meetings) {
        if (meeting.missing > 0) {
          return absl::FailedPreconditionError(absl::StrCat("the stages do not meet: ", meeting.missing,
                                                            " of them never come to ", name, " number ",
                                                            &meeting - meetings.data()));
        }
      }
    }
    if (const std::vector<int> stuck = tasks_.Run(); !stuck.empty()) return Stuck(stuck);
    return Results();
  }

 private:
  // One stage's representative.
  struct Rank {
    int compute = 0;                                      // stream
    std::map<std::string, int> communicators;             // streams
    int device = 0, link = 0, network = 0;                // resources
    std::map<std::string, size_t> met;                    // times that it came to each meeting
    int last_local = -1;                                  // task on the compute stream
    std::vector<int> waits;                               // tasks that the next on the compute stream waits for
    std::map<std::pair<int64_t, int64_t>, int> messages;  // under way: channel, micro-batch -> task
  };
  struct Meeting {
    int task = 0;
    int missing = 0;  // parties
  };

  absl::Status AddStage(int s) {
    std::map<std::string, std::vector<Block>> blocks;
    const Program& program = *stages_[s];
    for (const Graph& graph : program.graphs) blocks[graph.name] = Blocks(s, graph, times_);
    for (size_t c = 0; c < program.step.size(); ++c) {
      const Graph* graph = program.FindGraph(program.step[c].graph);
      if (graph == nullptr)
        return absl::InvalidArgumentError(absl::StrCat("there is no graph ", program.step[c].graph, " to call"));
      std::map<ValueId, int> handles;
      for (const Block& block : blocks[graph->name]) {
        TACC_RETURN_IF_ERROR(AddBlock(s, static_cast<int>(c), *graph, block, handles));
      }
    }
    return absl::OkStatus();
  }

  absl::Status AddBlock(int s, int call, const Graph& graph, const Block& block, std::map<ValueId, int>& handles) {
    Rank& rank = ranks_[s];
    const Node& node = graph.nodes[block.first_node];
    const auto message = [&] {
      return std::make_pair(GetAttr<int64_t>(node.attrs, "channel"), stages_[s]->step[call].micro_batch);
    };
    if (block.kind == Block::kWait) {
      const bool is_finish = node.op == Op::kFinish;
      const auto handle = is_finish ? handles.end() : handles.find(node.operands[0]);
      const auto sent = is_finish ? rank.messages.find(message()) : rank.messages.end();
      if (handle == handles.end() && sent == rank.messages.end())
        return absl::InvalidArgumentError(
            absl::StrCat(graph.name, ", node ", block.first_node, ": nothing to wait for"));
      rank.waits.push_back(is_finish ? sent->second : handle->second);
      if (is_finish) rank.messages.erase(sent);
      return absl::OkStatus();
    }
    if (block.kind == Block::kLocal && block.time.seconds <= 0) return absl::OkStatus();
    const int task = TaskOf(rank, block.time);
    if (block.kind == Block::kStart) {
      if (rank.last_local >= 0) tasks_.Wait(task, rank.last_local);
      for (int before : rank.waits) tasks_.Wait(task, before);
      if (IsMessage(node)) {
        rank.messages[message()] = task;
      } else {
        handles[node.results[0]] = task;
      }
    } else {
      tasks_.Append(rank.compute, task);
      for (int before : rank.waits) tasks_.Wait(task, before);
      rank.waits.clear();
      rank.last_local = task;
    }
    const auto take = [&](int resource, double demand) {
      if (demand > 0) tasks_.Take(task, resource, std::min(demand, 1.0));
    };
    take(rank.device, block.time.device);
    take(rank.link, block.time.link);
    take(rank.network, block.time.network);
    if (block.time.host > 0) tasks_.Take(task, host_, block.time.host);
    Span span;
    span.stage = s;
    span.call = call;
    span.first_node = block.first_node;
    span.last_node = block.last_node;
    if (block.kind != Block::kLocal) {
      span.lane = Lane::kCommunication;
      auto [stream, is_new] = rank.communicators.try_emplace(block.time.communicator, 0);
      if (is_new) stream->second = tasks_.AddStream();
      tasks_.Append(stream->second, task);
    }
    spans_.push_back(span);
    span_tasks_.push_back(task);
    is_blocking_.push_back(block.kind == Block::kCollective);
    return absl::OkStatus();
  }

  // A new task, or the one that other stages have made for the same meeting.
  int TaskOf(Rank& rank, const NodeTime& time) {
    if (time.meeting.empty()) return tasks_.AddTask(time.seconds);
    std::vector<Meeting>& meetings = meetings_[time.meeting];
    const size_t number = rank.met[time.meeting]++;
    if (number == meetings.size()) meetings.push_back({tasks_.AddTask(time.seconds), time.parties});
    --meetings[number].missing;
    return meetings[number].task;
  }

  absl::Status Stuck(const std::vector<int>& stuck) const {
    std::vector<char> is_stuck(tasks_.num_tasks(), 0);
    for (int task : stuck) is_stuck[task] = 1;
    std::string places;
    int stage = -1;
    for (size_t i = 0; i < spans_.size(); ++i) {
      if (!is_stuck[span_tasks_[i]] || spans_[i].stage == stage) continue;
      stage = spans_[i].stage;
      const Program& program = *stages_[stage];
      const Call& call = program.step[spans_[i].call];
      const Node& node = program.FindGraph(call.graph)->nodes[spans_[i].first_node];
      absl::StrAppend(&places, places.empty() ? "" : ", ", "stage ", stage, " at ", call.graph, " of micro-batch ",
                      call.micro_batch, ", node ", spans_[i].first_node, " (", node.op.name(), ")");
    }
    return absl::FailedPreconditionError(absl::StrCat("the stages wait for each other in a circle: ", places));
  }

  Simulation Results() {
    Simulation result;
    result.step_seconds = tasks_.makespan();
    result.stages.resize(stages_.size());
    size_t begin = 0;
    for (size_t s = 0; s < stages_.size(); ++s) {
      size_t end = begin;
      StageTimes& stage = result.stages[s];
      std::vector<std::pair<double, double>> computing, communicating;
      for (; end < spans_.size() && spans_[end].stage == static_cast<int>(s); ++end) {
        Span& span = spans_[end];
        const int task = span_tasks_[end];
        span.begin = tasks_.begin(task);
        span.end = tasks_.end(task);
        if (span.lane == Lane::kCompute) {
          stage.compute_seconds += span.end - span.begin;
          stage.contention_seconds += span.end - span.begin - tasks_.seconds(task);
          computing.emplace_back(span.begin, span.end);
        } else {
          communicating.emplace_back(span.begin, span.end);
          if (is_blocking_[end]) stage.blocking_seconds += span.end - span.begin;
        }
      }
      for (size_t i = begin; i < end; ++i) {
        if (spans_[i].lane == Lane::kCommunication)
          spans_[i].exposed = spans_[i].end - spans_[i].begin - Overlap(computing, spans_[i].begin, spans_[i].end);
      }
      std::sort(communicating.begin(), communicating.end());
      double covered = 0;
      for (const auto& [from, to] : communicating) {
        const double fresh = std::max(from, covered);
        if (to <= fresh) continue;
        stage.communication_seconds += to - fresh;
        stage.exposed_seconds += to - fresh - Overlap(computing, fresh, to);
        covered = to;
      }
      stage.idle_seconds = std::max(0.0, result.step_seconds - stage.compute_seconds - stage.exposed_seconds);
      begin = end;
    }
    result.timeline = std::move(spans_);
    return result;
  }

  // Seconds of [from, to) that the intervals, sorted and apart, cover.
  static double Overlap(const std::vector<std::pair<double, double>>& intervals, double from, double to) {
    auto it = std::upper_bound(intervals.begin(), intervals.end(), from,
                               [](double time, const auto& interval) { return time < interval.second; });
    double seconds = 0;
    for (; it != intervals.end() && it->first < to; ++it)
      seconds += std::min(to, it->second) - std::max(from, it->first);
    return seconds;
  }

  const std::vector<const Program*>& stages_;
  const NodeTimes& times_;
  TaskSimulator tasks_;
  int host_ = 0;  // resource
  std::vector<Rank> ranks_;
  std::map<std::string, std::vector<Meeting>> meetings_;
  std::vector<Span> spans_;  // by stage
  std::vector<int> span_tasks_;
  std::vector<char> is_blocking_;  // of the spans
};

// Where the states end and the temporaries begin. Gradients may lie among the temporaries; other states never do.
int64_t StatesEnd(const Program& program) {
  int64_t end = 0;
  for (const State& state : program.states) {
    if (state.kind != StateKind::kGradient) end = std::max(end, state.offset + state.slots * SlotStride(state));
  }
  return end;
}

// Bytes of temporaries, gradients among them included, that hold what is still needed, at each node.
std::vector<int64_t> LiveTemporaryBytes(const Program& program, const Graph& graph) {
  const int64_t states_end = StatesEnd(program);
  const StateIndex states(program);
  const std::vector<int> last_uses = graph.LastUses();
  const int num_nodes = static_cast<int>(graph.nodes.size());
  std::vector<int> last(last_uses);
  std::map<ValueId, ValueId> started;  // an asynchronous collective's operand lives to the wait
  for (int i = 0; i < num_nodes; ++i) {
    const Node& node = graph.nodes[i];
    if (GetAttr<bool>(node.attrs, "async")) started[node.results[0]] = node.operands[0];
    // A gradient among the temporaries is kept for a later graph.
    if (node.op == Op::kStore && states.Find(node.symbol)->kind == StateKind::kGradient)
      last[node.operands[0]] = num_nodes - 1;
    if (node.op != Op::kWait) continue;
    if (const auto it = started.find(node.operands[0]); it != started.end())
      last[it->second] = std::max(last[it->second], i);
  }
  std::vector<std::vector<ValueId>> ends(num_nodes);
  std::map<std::pair<int64_t, int64_t>, int> live;  // [begin, end) -> values there
  std::vector<int64_t> bytes(num_nodes, 0);
  for (int i = 0; i < num_nodes; ++i) {
    for (ValueId v : graph.nodes[i].results) {
      const int64_t begin = graph.values[v].offset;
      if (begin < states_end) continue;  // it lies in a state's place
      ++live[{begin, begin + graph.type(v).bytes()}];
      ends[std::max(i, last[v])].push_back(v);
    }
    int64_t covered = 0;
    for (const auto& [range, count] : live) {
      bytes[i] += std::max<int64_t>(0, range.second - std::max(range.first, covered));
      covered = std::max(covered, range.second);
    }
    for (ValueId v : ends[i]) {
      const int64_t begin = graph.values[v].offset;
      const auto it = live.find({begin, begin + graph.type(v).bytes()});
      if (--it->second == 0) live.erase(it);
    }
  }
  return bytes;
}

}  // namespace

absl::StatusOr<Simulation> Simulate(const std::vector<const Program*>& stages, const NodeTimes& times) {
  return Lowering(stages, times).Run();
}

std::vector<Span> SplitByNode(const Span& span, const Graph& graph, const NodeTimes& times) {
  std::vector<double> seconds;
  double sum = 0;
  for (int i = span.first_node; i <= span.last_node; ++i) {
    seconds.push_back(span.lane == Lane::kCompute ? times(span.stage, graph, graph.nodes[i]).seconds : 1);
    sum += seconds.back();
  }
  std::vector<Span> nodes;
  double before = 0;
  for (size_t i = 0; i < seconds.size(); ++i) {
    Span node = span;
    node.first_node = node.last_node = span.first_node + static_cast<int>(i);
    node.begin = span.begin + (span.end - span.begin) * before / sum;
    before += seconds[i];
    node.end = i + 1 == seconds.size() ? span.end : span.begin + (span.end - span.begin) * before / sum;
    nodes.push_back(node);
  }
  return nodes;
}

std::vector<MemoryPoint> MemoryOverTime(const Simulation& simulation, const Program& program, int stage,
                                        const NodeTimes& times) {
  std::map<std::string, std::vector<int64_t>> live;
  for (const Graph& graph : program.graphs) live[graph.name] = LiveTemporaryBytes(program, graph);
  int64_t constant = std::max<int64_t>(0, program.workspace_bytes);
  const int64_t states_end = StatesEnd(program);
  for (const State& state : program.states) {
    if (state.offset < states_end) constant += state.slots * state.type.bytes();
  }
  std::vector<MemoryPoint> points;
  for (const Span& span : simulation.timeline) {
    if (span.stage != stage || span.lane != Lane::kCompute) continue;
    const Graph& graph = *program.FindGraph(program.step[span.call].graph);
    for (const Span& node : SplitByNode(span, graph, times)) {
      const int64_t bytes = constant + live[graph.name][node.first_node];
      if (points.empty() || points.back().bytes != bytes) points.push_back({node.begin, bytes});
    }
  }
  points.push_back({simulation.step_seconds, constant});
  return points;
}

}  // namespace tacc::graph
