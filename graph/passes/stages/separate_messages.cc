#include "graph/passes/stages/separate_messages.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace tacc::graph {
namespace {

bool IsAsync(const Node& node) { return GetAttr<bool>(node.attrs, "async"); }

void SeparateFromFinish(Graph& graph, const OpTable& ops) {
  std::vector<Node>& nodes = graph.nodes;
  const auto is_finish = [](const Node& node) { return node.op == Op::kFinish; };
  const auto finish = std::find_if(nodes.begin(), nodes.end(), is_finish);
  std::stable_partition(finish, nodes.end(), is_finish);
  const auto product =
      std::find_if(finish, nodes.end(), [&](const Node& node) { return ops.Find(node.op)->is_matmul; });
  if (product == nodes.end()) return;
  std::set<ValueId> awaited;
  for (auto node = nodes.begin(); node != product; ++node) {
    if (node->op == Op::kWait) awaited.insert(node->operands[0]);
  }
  std::stable_partition(nodes.begin(), product,
                        [&](const Node& node) { return !IsAsync(node) || awaited.count(node.results[0]) > 0; });
}

// Which nodes what the `send` at `send` sends comes from.
std::vector<char> OriginsOf(const Graph& graph, size_t send) {
  const std::vector<int> producers = graph.Producers();
  std::vector<char> origins(graph.nodes.size(), 0);
  for (size_t i = send; i-- > 0;) {
    const Node& node = graph.nodes[i];
    if (node.op == Op::kStore && node.symbol == graph.nodes[send].symbol) origins[i] = 1;
    if (!origins[i]) continue;
    for (ValueId v : node.operands) origins[producers[v]] = 1;
  }
  return origins;
}

// A collective from `start` to the `wait` for it.
struct UnderWay {
  size_t start = 0, wait = 0;
};

// Those at node `at`, in the order in which they start.
std::vector<UnderWay> UnderWayAt(const Graph& graph, size_t at) {
  std::vector<size_t> wait_of(graph.values.size(), 0);
  for (size_t i = at; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].op == Op::kWait) wait_of[graph.nodes[i].operands[0]] = i;
  }
  std::vector<UnderWay> under_way;
  for (size_t i = 0; i < at; ++i) {
    const Node& node = graph.nodes[i];
    if (IsAsync(node) && wait_of[node.results[0]] > at) under_way.push_back({i, wait_of[node.results[0]]});
  }
  return under_way;
}

// How many of them, the last ones, have an operand that is made with what is sent.
size_t NumMadeWith(const Graph& graph, const std::vector<UnderWay>& under_way, size_t send) {
  const std::vector<char> origins = OriginsOf(graph, send);
  const std::vector<int> producers = graph.Producers();
  const auto is_made_with = [&](const UnderWay& collective) {
    int from = producers[graph.nodes[collective.start].operands[0]];
    while (graph.nodes[from].op == "cast") from = producers[graph.nodes[from].operands[0]];
    return origins[from] != 0;
  };
  return std::find_if_not(under_way.rbegin(), under_way.rend(), is_made_with) - under_way.rbegin();
}

void SeparateFromSend(Graph& graph, size_t send) {
  std::vector<Node>& nodes = graph.nodes;
  const std::vector<UnderWay> under_way = UnderWayAt(graph, send);
  if (under_way.empty()) return;
  const size_t num_before = under_way.size() - NumMadeWith(graph, under_way, send);
  std::vector<char> moved(nodes.size(), 0);
  std::vector<Node> before, after, ordered;
  for (size_t k = 0; k < under_way.size(); ++k) {
    const size_t node = k < num_before ? under_way[k].wait : under_way[k].start;
    moved[node] = 1;
    (k < num_before ? before : after).push_back(nodes[node]);
  }
  size_t end = send + 1;  // of this message and those that follow it at once
  while (end < nodes.size() && (nodes[end].op == Op::kSend || nodes[end].op == Op::kStore)) ++end;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i == send) ordered.insert(ordered.end(), before.begin(), before.end());
    if (i == end) ordered.insert(ordered.end(), after.begin(), after.end());
    if (!moved[i]) ordered.push_back(std::move(nodes[i]));
  }
  nodes = std::move(ordered);
}

}  // namespace

bool SeparateMessages(Graph& graph, const OpTable& ops) {
  const std::vector<Node> before = graph.nodes;
  SeparateFromFinish(graph, ops);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (graph.nodes[i].op == Op::kSend) SeparateFromSend(graph, i);
  }
  // Nodes only move.
  return !std::equal(before.begin(), before.end(), graph.nodes.begin(), [](const Node& a, const Node& b) {
    return a.op == b.op && a.symbol == b.symbol && a.operands == b.operands && a.results == b.results;
  });
}

}  // namespace tacc::graph
