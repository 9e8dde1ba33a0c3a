#include "graph/passes/stages/pipeline_calls.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"

namespace tacc::graph {
namespace {

// Warm-up, then one forward and one backward by turns, then what is left. `forward` and `backward` give the k-th pass.
template <typename Forward, typename Backward>
std::vector<PassCall> OneForwardOneBackward(int64_t warmup, int64_t total, const Forward& forward,
                                            const Backward& backward) {
  std::vector<PassCall> passes;
  warmup = std::min(warmup, total);
  for (int64_t k = 0; k < warmup; ++k) passes.push_back(forward(k));
  for (int64_t k = warmup; k < total; ++k) {
    passes.push_back(forward(k));
    passes.push_back(backward(k - warmup));
  }
  for (int64_t k = total - warmup; k < total; ++k) passes.push_back(backward(k));
  return passes;
}

std::vector<PassCall> Plain(const PipelineShape& shape, int stage) {
  return OneForwardOneBackward(
      shape.num_stages - stage - 1, shape.num_micro_batches,
      [](int64_t k) { return PassCall{PassKind::kForward, 0, k}; },
      [](int64_t k) { return PassCall{PassKind::kBackward, 0, k}; });
}

// A round is num_stages micro-batches through all chunks.
absl::StatusOr<std::vector<PassCall>> Interleaved(const PipelineShape& shape, int stage) {
  const int64_t stages = shape.num_stages, chunks = shape.num_chunks;
  if (shape.num_micro_batches % stages != 0) {
    const int64_t below = shape.num_micro_batches / stages * stages;
    return absl::InvalidArgumentError(absl::StrCat("the interleaved schedule needs a number of micro-batches that ",
                                                   stages, " stages divide, got ", shape.num_micro_batches, "; use ",
                                                   below > 0 ? absl::StrCat(below, " or ") : "", below + stages));
  }
  const auto pass = [stages, chunks](PassKind kind, int64_t k) {
    const int64_t round = k / (stages * chunks), within = k % (stages * chunks);
    const int64_t chunk = within / stages;
    return PassCall{kind, static_cast<int>(kind == PassKind::kForward ? chunk : chunks - 1 - chunk),
                    round * stages + within % stages};
  };
  return OneForwardOneBackward((stages - stage - 1) * 2 + (chunks - 1) * stages, shape.num_micro_batches * chunks,
                               [&](int64_t k) { return pass(PassKind::kForward, k); },
                               [&](int64_t k) { return pass(PassKind::kBackward, k); });
}

// 1F1B, each weight pass `stage` backwards later: as many micro-batches in flight on every stage as 1F1B has on the
// first.
std::vector<PassCall> ZeroBubble(const PipelineShape& shape, int stage) {
  std::vector<PassCall> passes;
  for (const PassCall& pass : Plain(shape, stage)) {
    passes.push_back(pass);
    if (stage > 0 && pass.kind == PassKind::kBackward && pass.micro_batch >= stage)
      passes.push_back({PassKind::kWeight, 0, pass.micro_batch - stage});
  }
  if (stage == 0) return passes;
  for (int64_t m = std::max<int64_t>(0, shape.num_micro_batches - stage); m < shape.num_micro_batches; ++m)
    passes.push_back({PassKind::kWeight, 0, m});
  return passes;
}

}  // namespace

absl::StatusOr<std::vector<PassCall>> PassesOf(const PipelineShape& shape, int stage) {
  switch (shape.schedule) {
    case PipelineSchedule::k1F1B:
      return Plain(shape, stage);
    case PipelineSchedule::kInterleaved:
      return Interleaved(shape, stage);
    case PipelineSchedule::kZeroBubble:
      return ZeroBubble(shape, stage);
  }
  return absl::InternalError("unknown schedule");
}

std::string GraphName(PassKind kind, int chunk) {
  constexpr const char* kNames[] = {"forward", "backward", "weight"};
  return absl::StrCat(kNames[static_cast<int>(kind)], ".", chunk);
}

std::vector<Call> CallsOf(const Program& program, const std::vector<PassCall>& passes) {
  constexpr size_t kMessagesInFlight = 2;  // of one graph
  std::vector<Call> calls;
  std::map<std::string, std::deque<int64_t>> unfinished;  // graph -> micro-batches
  const auto has = [&](const std::string& graph) { return program.FindGraph(graph) != nullptr; };
  const auto receive = [&](size_t i) {
    if (i >= passes.size()) return;
    const std::string graph = absl::StrCat("receive.", GraphName(passes[i].kind, passes[i].chunk));
    if (has(graph)) calls.push_back({graph, passes[i].micro_batch});
  };
  receive(0);
  for (size_t i = 0; i < passes.size(); ++i) {
    receive(i + 1);
    const std::string graph = GraphName(passes[i].kind, passes[i].chunk);
    const std::string finish = absl::StrCat("finish.", graph);
    if (has(finish)) {
      std::deque<int64_t>& open = unfinished[finish];
      if (open.size() == kMessagesInFlight) {
        calls.push_back({finish, open.front()});
        open.pop_front();
      }
      open.push_back(passes[i].micro_batch);
    }
    if (has(graph)) calls.push_back({graph, passes[i].micro_batch});
  }
  for (const auto& [finish, micro_batches] : unfinished) {
    for (int64_t m : micro_batches) calls.push_back({finish, m});
  }
  return calls;
}

void AssignSlots(Program& program) {
  const StateIndex states(program);
  std::map<std::string, std::set<std::string>> touched;  // graph -> stashes
  for (const Graph& graph : program.graphs) {
    for (const Node& node : graph.nodes) {
      if (const State* state = node.symbol.empty() ? nullptr : states.Find(node.symbol);
          state != nullptr && state->kind == StateKind::kStash)
        touched[graph.name].insert(node.symbol);
    }
  }
  struct Life {
    int first = 0;
    int last = 0;
  };
  std::map<std::string, std::map<int64_t, Life>> lives;  // stash -> micro-batch
  for (const std::vector<Call>* calls : {&program.step, &program.eval}) {
    for (int t = 0; t < static_cast<int>(calls->size()); ++t) {
      for (const std::string& stash : touched[(*calls)[t].graph]) {
        const auto [it, inserted] = lives[stash].try_emplace((*calls)[t].micro_batch, Life{t, t});
        it->second.last = t;
      }
    }
  }
  for (State& state : program.states) {
    if (state.kind != StateKind::kStash) continue;
    const std::map<int64_t, Life>& of = lives[state.name];
    // m and m + slots share a copy: the first must be done with before the second begins.
    const auto fits = [&](int64_t slots) {
      std::map<int64_t, int> busy_until;  // slot -> call
      for (const auto& [m, life] : of) {
        const auto [it, is_free] = busy_until.try_emplace(m % slots, life.last);
        if (is_free) continue;
        if (life.first <= it->second) return false;
        it->second = life.last;
      }
      return true;
    };
    state.slots = 1;
    while (!fits(state.slots)) ++state.slots;
  }
}

}  // namespace tacc::graph
