// The programs of a pipeline's stages against each other: a run of their calls with messages and sums in place of data.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/ir/status_macros.h"
#include "graph/verify/checks.h"
#include "graph/verify/verify.h"

namespace tacc::graph {
namespace {

// One end of a channel: the nodes must agree.
struct End {
  int stage = -1;
  int other = -1;
  const State* state = nullptr;
};

class StageRun {
 public:
  StageRun(const Program& program, const std::vector<Call>& calls) : program_(program), calls_(calls) {}

  // What this stage waits for, on the next node that may block.
  const Node* node() const { return Done() ? nullptr : &graph().nodes[at_]; }
  const Graph& graph() const { return *program_.FindGraph(calls_[call_].graph); }
  const Call& call() const { return calls_[call_]; }
  const Program& program() const { return program_; }
  bool Done() const { return call_ >= calls_.size(); }
  void Advance() {
    ++at_;
    SkipEmpty();
  }
  void SkipEmpty() {
    while (!Done() && at_ >= graph().nodes.size()) {
      ++call_;
      at_ = 0;
    }
  }
  std::string Where() const {
    return absl::StrCat("stage ", program_.stage, ": graph ", graph().name, ", micro-batch ", call().micro_batch, ": ",
                        Describe(graph(), graph().nodes[at_]));
  }

 private:
  const Program& program_;
  const std::vector<Call>& calls_;
  size_t call_ = 0;
  size_t at_ = 0;
};

class StagesCheck {
 public:
  explicit StagesCheck(const std::vector<Program>& stages) : stages_(stages), states_(stages.begin(), stages.end()) {}

  absl::Status Run() {
    TACC_RETURN_IF_ERROR(CheckChannels());
    for (const bool is_eval : {false, true}) {
      sent_.clear();
      received_.clear();
      written_.clear();
      std::vector<StageRun> runs;
      for (const Program& program : stages_) {
        runs.emplace_back(program, is_eval ? program.eval : program.step);
        runs.back().SkipEmpty();
      }
      TACC_RETURN_IF_ERROR(RunTogether(runs));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckChannels() {
    std::map<int64_t, End> sends, receives;
    for (const Program& program : stages_) {
      for (const Graph& graph : program.graphs) {
        for (const Node& node : graph.nodes) {
          if (node.op != Op::kSend && node.op != Op::kRecv) continue;
          const bool is_send = node.op == Op::kSend;
          const int64_t channel = GetAttr<int64_t>(node.attrs, "channel");
          const End end{program.stage, static_cast<int>(GetAttr<int64_t>(node.attrs, is_send ? "to" : "from")),
                        states_[program.stage].Find(node.symbol)};
          if (!(is_send ? sends : receives).emplace(channel, end).second) {
            return absl::InvalidArgumentError(absl::StrCat("stage ", program.stage, ": ", Describe(graph, node),
                                                           ": another line has channel=", channel));
          }
          if (!is_send) receive_of_.emplace(std::make_pair(program.stage, channel), 1);
        }
      }
    }
    for (const auto& [channel, receive] : receives) {
      const auto send = sends.find(channel);
      if (send == sends.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("stage ", receive.stage, " receives on channel ", channel, ", but no stage sends on it"));
      }
      const bool agree = send->second.other == receive.stage && receive.other == send->second.stage &&
                         send->second.state->name == receive.state->name &&
                         send->second.state->type == receive.state->type &&
                         send->second.state->placement == receive.state->placement;
      if (!agree) {
        return absl::InvalidArgumentError(absl::StrCat(
            "channel ", channel, ": stage ", send->second.stage, " sends \"", send->second.state->name, "\" ",
            send->second.state->type.ToString(), " to stage ", send->second.other, ", but stage ", receive.stage,
            " receives \"", receive.state->name, "\" ", receive.state->type.ToString(), " from stage ", receive.other));
      }
      sends.erase(send);
    }
    if (sends.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("stage ", sends.begin()->second.stage, " sends on channel ",
                                                   sends.begin()->first, ", but no stage receives on it"));
  }

  absl::Status RunTogether(std::vector<StageRun>& runs) {
    while (true) {
      bool moved = false, all_done = true;
      for (StageRun& run : runs) {
        while (!run.Done()) {
          TACC_ASSIGN_OR_RETURN(const bool steps, Step(run));
          if (!steps) break;
          run.Advance();
          moved = true;
        }
        all_done = all_done && run.Done();
      }
      if (all_done) return absl::OkStatus();
      if (MeetInSum(runs)) continue;
      if (!moved) {
        std::vector<std::string> waiting;
        for (const StageRun& run : runs) waiting.push_back(run.Done() ? "at its end" : run.Where());
        return absl::InvalidArgumentError(
            absl::StrCat("the stages wait for each other: ", absl::StrJoin(waiting, "; ")));
      }
    }
  }

  static bool IsSumOverStages(const Node& node) { return node.op == Op::kStageSum; }

  static std::vector<int64_t> StagesOf(const Node& node) { return GetAttr<std::vector<int64_t>>(node.attrs, "stages"); }

  // Lets a sum go on that all of its stages have come to.
  bool MeetInSum(std::vector<StageRun>& runs) const {
    for (const StageRun& run : runs) {
      if (run.Done() || !IsSumOverStages(*run.node())) continue;
      const std::vector<int64_t> stages = StagesOf(*run.node());
      const bool here = std::all_of(stages.begin(), stages.end(), [&](int64_t s) {
        return !runs[s].Done() && IsSumOverStages(*runs[s].node()) && StagesOf(*runs[s].node()) == stages &&
               runs[s].graph().type(runs[s].node()->operands[0]) == run.graph().type(run.node()->operands[0]);
      });
      if (!here) continue;
      for (int64_t s : stages) runs[s].Advance();
      return true;
    }
    return false;
  }

  // True when the node can be done now.
  absl::StatusOr<bool> Step(StageRun& run) {
    const Node& node = *run.node();
    if (IsSumOverStages(node)) return false;
    const int stage = run.program().stage;
    const int64_t m = run.call().micro_batch;
    const auto fail = [&](const std::string& what) {
      return absl::InvalidArgumentError(absl::StrCat(run.Where(), ": ", what));
    };
    const State* state = node.symbol.empty() ? nullptr : states_[stage].Find(node.symbol);
    if (state == nullptr || state->kind != StateKind::kStash) return true;
    const auto copy = std::make_pair(stage, absl::StrCat(state->name, " ", m % state->slots));
    const int64_t channel = GetAttr<int64_t>(node.attrs, "channel");
    if (node.op == Op::kStore) {
      written_[copy] = m;
    } else if (node.op == Op::kRead || node.op == Op::kSend) {
      const auto it = written_.find(copy);
      if (it == written_.end() || it->second != m) {
        return fail(absl::StrCat("copy ", m % state->slots, " of the stash holds ",
                                 it == written_.end() ? "nothing" : absl::StrCat("micro-batch ", it->second)));
      }
      if (node.op == Op::kSend && !sent_[channel].insert(m).second) return fail("is sent twice");
    } else if (node.op == Op::kRecv) {
      written_.erase(copy);
      received_[channel].insert(m);
    } else if (node.op == Op::kFinish) {
      // The other side must have come to its end of the message.
      const bool is_receive = receive_of_.count({stage, channel}) > 0;
      if ((is_receive ? received_ : sent_)[channel].count(m) == 0)
        return fail(absl::StrCat("no message of this micro-batch is under way on channel ", channel));
      if ((is_receive ? sent_ : received_)[channel].count(m) == 0) return false;
      if (is_receive) written_[copy] = m;
    }
    return true;
  }

  const std::vector<Program>& stages_;
  std::vector<StateIndex> states_;                          // by stage
  std::map<std::pair<int, int64_t>, int> receive_of_;       // (stage, channel) that receives
  std::map<int64_t, std::set<int64_t>> sent_, received_;    // channel -> micro-batches
  std::map<std::pair<int, std::string>, int64_t> written_;  // copy of a stash -> micro-batch
};

}  // namespace

absl::Status VerifyStages(const std::vector<Program>& stages, const OpTable& ops) {
  for (const Program& program : stages) {
    if (absl::Status status = Verify(program, ops); !status.ok()) {
      return stages.size() == 1
                 ? status
                 : absl::Status(status.code(), absl::StrCat("stage ", program.stage, ": ", status.message()));
    }
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    if (stages[i].stage != static_cast<int>(i) || stages[i].num_stages != static_cast<int>(stages.size())) {
      if (stages.size() == 1) return absl::OkStatus();  // one stage's program by itself
      return absl::InvalidArgumentError(absl::StrCat("program ", i, " of ", stages.size(), " is stage ",
                                                     stages[i].stage, " of ", stages[i].num_stages));
    }
  }
  return StagesCheck(stages).Run();
}

}  // namespace tacc::graph
