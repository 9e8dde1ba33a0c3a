#include "graph/passes/memory/schedule.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/text.h"
#include "graph/passes/modules/units.h"

namespace tacc::graph {
namespace {

// A stash is no state to fetch from: it holds activations, and may be under way.
bool IsStateRead(const StateIndex& states, const Node& node) {
  return node.op == Op::kRead && states.Find(node.symbol)->kind != StateKind::kStash;
}

// Which nodes bring a state's value into the form that it is used in: casts and gathers of what a `read` gives, and
// what gives the gathered value its dims.
std::vector<char> FindFetches(const StateIndex& states, const Graph& graph, const std::vector<int>& producers) {
  std::vector<char> fetches(graph.nodes.size(), 0);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (node.op != Op::kAllGather && node.op != "cast" && node.op != "reshape") continue;
    const int producer = producers[node.operands[0]];
    if (node.op == "reshape" && (producer < 0 || graph.nodes[producer].op != Op::kAllGather)) continue;
    fetches[i] = producer >= 0 && (IsStateRead(states, graph.nodes[producer]) || fetches[producer]);
  }
  return fetches;
}

// Fetches that give the same, as those of a layer and of what is computed of it again, become one.
void MergeFetches(Graph& graph, const std::vector<char>& fetch) {
  std::map<std::string, ValueId> fetched;
  std::map<ValueId, ValueId> replaced;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& node = graph.nodes[i];
    for (ValueId& v : node.operands) {
      if (const auto it = replaced.find(v); it != replaced.end()) v = it->second;
    }
    if (!fetch[i]) continue;
    std::string what = absl::StrCat(node.op.name(), " ", node.operands[0]);
    for (const auto& [name, attr] : node.attrs) absl::StrAppend(&what, " ", name, "=", Print(attr));
    const auto [first, inserted] = fetched.try_emplace(std::move(what), node.results[0]);
    if (!inserted) replaced[node.results[0]] = first->second;
  }
}

// The run of one unit that each node belongs to: runs are numbered in line order. Leaves and fetches of weights take
// the run of what follows them.
std::vector<int> Runs(const Graph& graph, Units& units, const std::vector<char>& neutral) {
  std::vector<int> runs(graph.nodes.size(), 0);
  int run = 0;
  int unit = -2;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!neutral[i]) {
      const int next = units.Of(graph.nodes[i].module);
      if (unit != -2 && next != unit) ++run;
      unit = next;
    }
    runs[i] = run;
  }
  return runs;
}

// Fetches each weight for each run of a unit that uses it, so that it is dropped in between; or, of a unit that keeps
// its weights, once.
class FetchScheduler {
 public:
  // `graph` must have fetches (FindFetches), each made once.
  FetchScheduler(Graph& graph, std::vector<char> fetch, std::vector<int> producers, const ScheduleOptions& options)
      : graph_(graph),
        options_(options),
        producers_(std::move(producers)),
        fetch_(std::move(fetch)),
        hoisted_(graph.nodes.size(), 0),
        before_(graph.nodes.size()) {}

  void Run() {
    FindRuns();
    FindFirstUses();
    original_ = graph_.nodes;
    for (int run = 0; run < num_runs_; ++run) {
      for (const auto& [index, v] : first_uses_[run]) FetchFor(run, index, v);
    }
    Reassemble();
  }

 private:
  void FindRuns() {
    std::vector<char> neutral(graph_.nodes.size(), 0);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      neutral[i] = fetch_[i] || node.op == Op::kRead || node.op == Op::kInput || node.op == Op::kConstant;
    }
    Units units(options_.units);
    runs_ = Runs(graph_, units, neutral);
    num_runs_ = runs_.back() + 1;
    unit_of_.assign(num_runs_, -1);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!neutral[i]) unit_of_[runs_[i]] = units.Of(graph_.nodes[i].module);
    }
    first_kept_ = static_cast<int64_t>(options_.units.size()) - options_.kept_units;
    casts_.resize(num_runs_ + 1);
    starts_.resize(num_runs_ + 1);
    first_uses_.resize(num_runs_);
  }

  void FindFirstUses() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (fetch_[i]) continue;
      for (ValueId v : graph_.nodes[i].operands) {
        if (producers_[v] < 0 || !fetch_[producers_[v]]) continue;
        auto [it, inserted] = fetched_[v].try_emplace(runs_[i], kNoValue);
        if (inserted) first_uses_[runs_[i]].emplace_back(static_cast<int>(i), v);
      }
    }
  }

  // The nodes from the read to the value, as they are for one more fetch.
  std::vector<Node> ChainTo(ValueId v) {
    std::vector<Node> chain;
    for (int i = producers_[v]; fetch_[i]; i = producers_[original_[i].operands[0]]) chain.push_back(original_[i]);
    std::reverse(chain.begin(), chain.end());
    hoisted_[producers_[chain.front().operands[0]]] = 1;
    const int recompute = repeats_[v]++;
    for (size_t i = 0; i < chain.size(); ++i) {
      Node& node = chain[i];
      node.recompute = recompute;
      if (i > 0) node.operands = chain[i - 1].results;
      if (made_.insert(node.results[0]).second) continue;
      node.results = {Like(node.results[0])};
    }
    return chain;
  }

  ValueId Like(ValueId v) {
    const Value like = graph_.values[v];
    const ValueId made = graph_.AddValue(like.name, like.type);
    graph_.values[made].placement = like.placement;
    return made;
  }

  // Puts what fetches `v` for a run before the node that first uses it there, or from the gather on ahead.
  void FetchFor(int run, int index, ValueId v) {
    const bool keeps = unit_of_[run] >= 0 && unit_of_[run] >= first_kept_;
    if (const auto it = kept_.find({v, unit_of_[run]}); keeps && it != kept_.end()) {
      fetched_[v][run] = it->second;
      return;
    }
    std::vector<Node> chain = ChainTo(v);
    ValueId ready = chain.back().results[0];
    auto gather_end = chain.end();
    while (gather_end != chain.begin() && std::prev(gather_end)->op == "reshape") --gather_end;
    const bool ahead =
        options_.prefetch_units > 0 && gather_end != chain.begin() && std::prev(gather_end)->op == Op::kAllGather;
    const int head = std::max(0, run - options_.prefetch_units);
    auto rest = chain.begin();
    if (ahead) {
      ready = WaitBefore(index, chain, gather_end - chain.begin());
      rest = std::find_if(chain.begin(), chain.end(), [](const Node& node) { return node.op != "cast"; });
      std::move(chain.begin(), rest, std::back_inserter(casts_[head]));
    }
    std::move(rest, chain.end(), std::back_inserter(ahead ? starts_[head] : before_[index]));
    fetched_[v][run] = ready;
    if (keeps) kept_[{v, unit_of_[run]}] = ready;
  }

  // Makes the gather that ends at `gather_end` of the chain asynchronous; its wait, and the reshapes after it, come
  // before node `index`. Returns what is ready then.
  ValueId WaitBefore(int index, std::vector<Node>& chain, int64_t gather_end) {
    Node& gather = chain[gather_end - 1];
    gather.attrs["async"] = true;
    Node wait;
    wait.op = Op::kWait;
    wait.operands = gather.results;
    wait.module = gather.module;
    wait.recompute = gather.recompute;
    ValueId waited = Like(gather.results[0]);
    wait.results = {waited};
    before_[index].push_back(std::move(wait));
    for (auto reshape = chain.begin() + gather_end; reshape != chain.end(); ++reshape) {
      reshape->operands = {waited};
      waited = reshape->results[0];
      before_[index].push_back(std::move(*reshape));
    }
    chain.resize(gather_end);
    return waited;
  }

  void Reassemble() {
    // The states that are fetched come first: a gather may start before the line that held its read.
    std::vector<Node> nodes;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (hoisted_[i]) nodes.push_back(graph_.nodes[i]);
    }
    int run = -1;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      Node& node = graph_.nodes[i];
      while (run < runs_[i]) {
        ++run;
        for (Node& cast : casts_[run]) nodes.push_back(std::move(cast));
        for (Node& start : starts_[run]) nodes.push_back(std::move(start));
      }
      if (hoisted_[i] || fetch_[i]) continue;
      for (Node& n : before_[i]) nodes.push_back(std::move(n));
      for (ValueId& v : node.operands) {
        if (auto it = fetched_.find(v); it != fetched_.end()) v = it->second.at(runs_[i]);
      }
      nodes.push_back(std::move(node));
    }
    graph_.nodes = std::move(nodes);
    graph_.CompactValues();
  }

  Graph& graph_;
  const ScheduleOptions& options_;
  const std::vector<int> producers_;
  const std::vector<char> fetch_;  // by node
  std::vector<int> runs_;          // by node
  int num_runs_ = 0;
  std::vector<int> unit_of_;  // by run
  int64_t first_kept_ = 0;    // unit
  std::vector<Node> original_;
  std::map<ValueId, std::map<int, ValueId>> fetched_;  // fetched value -> run -> value to use there
  // By run: (node, fetched value), in order of first use.
  std::vector<std::vector<std::pair<int, ValueId>>> first_uses_;
  std::vector<char> hoisted_;  // by node
  // At the head of a run; all casts come before the first gather, so that a device may do them at a time.
  std::vector<std::vector<Node>> casts_, starts_;
  std::vector<std::vector<Node>> before_;  // right before a node
  std::map<ValueId, int> repeats_;
  std::map<std::pair<ValueId, int>, ValueId> kept_;  // fetched value, unit -> what an earlier run of the unit used
  std::set<ValueId> made_;
};

void ScheduleFetches(const StateIndex& states, Graph& graph, const ScheduleOptions& options) {
  std::vector<int> producers = graph.Producers();
  std::vector<char> fetch = FindFetches(states, graph, producers);
  if (std::find(fetch.begin(), fetch.end(), 1) == fetch.end()) return;
  MergeFetches(graph, fetch);
  FetchScheduler(graph, std::move(fetch), std::move(producers), options).Run();
}

// A gradient on its way to its accumulator: the reduction, and the nodes that carry the sum into the state (add to the
// accumulator, store).
struct Reduction {
  int node;
  std::vector<int> carriers;
};

// The reductions whose sum goes nowhere but to a gradient's state.
std::vector<Reduction> FindReductions(const StateIndex& states, const Graph& graph) {
  std::vector<std::vector<int>> users(graph.values.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (ValueId v : graph.nodes[i].operands) users[v].push_back(static_cast<int>(i));
  }
  std::vector<Reduction> reductions;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].op != Op::kReduceScatter) continue;
    Reduction reduction{static_cast<int>(i), {}};
    ValueId v = graph.nodes[i].results[0];
    bool stored = false;
    while (!stored && users[v].size() == 1) {
      const int user = users[v][0];
      const Node& node = graph.nodes[user];
      reduction.carriers.push_back(user);
      stored = node.op == Op::kStore && states.Find(node.symbol)->kind == StateKind::kGradient;
      if (stored) break;
      if (node.op != "add" || node.results.size() != 1) break;
      v = node.results[0];
    }
    if (stored) reductions.push_back(std::move(reduction));
  }
  return reductions;
}

// Reductions of gradients start where the gradient is complete and are waited for when the line has left the next run
// of a unit, so that they overlap with that run's compute. The whole gradients of one unit more stay in memory
// meanwhile.
void DelayReductions(const StateIndex& states, Graph& graph, const ScheduleOptions& options) {
  const std::vector<Reduction> reductions = FindReductions(states, graph);
  if (reductions.empty()) return;
  Units units(options.units);
  const std::vector<char> fetch = FindFetches(states, graph, graph.Producers());
  std::vector<char> neutral(graph.nodes.size(), 0);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    neutral[i] =
        fetch[i] || node.op == Op::kWait || node.op == Op::kRead || node.op == Op::kInput || node.op == Op::kConstant;
  }
  const std::vector<int> runs = Runs(graph, units, neutral);
  const int num_runs = runs.back() + 1;
  // By node: the last reduction that it carries the sum of. Gradients of several uses of a parameter may share their
  // way to its state, which begins when the last of them is there.
  std::map<int, int> carries_for;
  for (const Reduction& reduction : reductions) {
    for (int carrier : reduction.carriers) carries_for[carrier] = reduction.node;
  }
  std::vector<std::vector<Node>> at_head(num_runs + 1);  // of a run; the last: at the end
  for (const Reduction& reduction : reductions) {
    Node& start = graph.nodes[reduction.node];
    std::vector<Node>& place = at_head[std::min(runs[reduction.node] + 2, num_runs)];
    start.attrs["async"] = true;
    const Value sum = graph.values[start.results[0]];
    Node wait;
    wait.op = Op::kWait;
    wait.operands = start.results;
    wait.module = start.module;
    wait.results = {graph.AddValue(sum.name, sum.type)};
    graph.values[wait.results[0]].placement = sum.placement;
    for (int carrier : reduction.carriers) {
      for (ValueId& v : graph.nodes[carrier].operands) {
        if (v == start.results[0]) v = wait.results[0];
      }
    }
    place.push_back(std::move(wait));
    for (int carrier : reduction.carriers) {
      if (carries_for[carrier] == reduction.node) place.push_back(graph.nodes[carrier]);
    }
  }
  std::vector<Node> nodes;
  int run = -1;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    while (run < runs[i]) {
      ++run;
      for (Node& node : at_head[run]) nodes.push_back(std::move(node));
    }
    if (carries_for.count(static_cast<int>(i)) == 0) nodes.push_back(std::move(graph.nodes[i]));
  }
  for (Node& node : at_head[num_runs]) nodes.push_back(std::move(node));
  graph.nodes = std::move(nodes);
}

// Blocks of keys and values that go round a ring start where the partitioner put them and are waited for at their first
// use, so that they travel while a block is computed.
void OverlapRotations(Graph& graph) {
  std::map<ValueId, ValueId> ready;     // started and not waited for yet -> the value to use
  std::map<ValueId, ValueId> replaced;  // waited for
  std::vector<Node> nodes;
  for (Node& node : graph.nodes) {
    for (ValueId& v : node.operands) {
      if (auto it = ready.find(v); it != ready.end()) {
        Node wait;
        wait.op = Op::kWait;
        wait.operands = {v};
        wait.results = {it->second};
        wait.module = node.module;
        wait.recompute = node.recompute;
        nodes.push_back(std::move(wait));
        replaced.insert(*it);
        ready.erase(it);
      }
      if (auto it = replaced.find(v); it != replaced.end()) v = it->second;
    }
    if (node.op == Op::kRotateBlocks) {
      node.attrs["async"] = true;
      const Value sent = graph.values[node.results[0]];
      const ValueId received = graph.AddValue(sent.name, sent.type);
      graph.values[received].placement = sent.placement;
      ready[node.results[0]] = received;
    }
    nodes.push_back(std::move(node));
  }
  graph.nodes = std::move(nodes);
}

}  // namespace

bool Schedule(Program& program, const OpTable& ops, const ScheduleOptions& options) {
  const StateIndex states(program);
  for (Graph& graph : program.graphs) {
    ScheduleFetches(states, graph, options);
    if (options.prefetch_units > 0) {
      DelayReductions(states, graph, options);
      OverlapRotations(graph);
    }
  }
  program.level = Level::kScheduled;
  return true;
}

}  // namespace tacc::graph
