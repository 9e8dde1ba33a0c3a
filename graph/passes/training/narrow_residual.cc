#include "graph/passes/training/narrow_residual.h"

#include <map>
#include <string>
#include <utility>

#include "graph/passes/training/remat.h"

namespace tacc::graph {
namespace {

bool IsWider(const TensorType& type, DType dtype) {
  return IsFloating(type.dtype) && ByteSize(type.dtype) > ByteSize(dtype);
}

class Narrowing {
 public:
  Narrowing(const Program& program, Graph& graph, DType dtype)
      : graph_(graph),
        dtype_(dtype),
        forward_(ForwardNodes(program, graph)),
        before_(graph.nodes.size()),
        after_(graph.nodes.size()) {}

  bool Run() {
    const std::vector<char> stream = ResidualStream(graph_, forward_);
    std::vector<std::vector<int>> readers(stream.size());
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      for (ValueId v : graph_.nodes[i].operands) {
        if (stream[v] && (readers[v].empty() || readers[v].back() != static_cast<int>(i))) readers[v].push_back(i);
      }
    }
    bool changed = false;
    for (size_t v = 0; v < stream.size(); ++v) {
      if (stream[v] && IsWider(graph_.type(static_cast<ValueId>(v)), dtype_))
        changed |= Narrow(static_cast<ValueId>(v), readers[v]);
    }
    if (changed) Insert();
    return changed;
  }

 private:
  bool Narrow(ValueId v, const std::vector<int>& readers) {
    int first = -1;
    ValueId copy = kNoValue;
    for (int reader : readers) {
      if (!forward_[reader]) continue;
      const Node& node = graph_.nodes[reader];
      if (first < 0) first = reader;
      if (node.op == "cast" && graph_.type(node.results[0]).dtype == dtype_) {
        copy = node.results[0];  // what a product reads anyway
        first = reader;
        break;
      }
    }
    std::map<int, ValueId> wide;  // by recompute number: clones and gradients lie far apart
    for (int reader : readers) {
      if (forward_[reader] || reader < first) continue;
      const int recompute = graph_.nodes[reader].recompute;
      const auto [it, is_new] = wide.try_emplace(recompute, kNoValue);
      if (is_new) {
        if (copy == kNoValue) copy = AddCast(v, dtype_, 0, first, after_[first]);
        it->second = AddCast(copy, graph_.type(v).dtype, recompute, reader, before_[reader]);
      }
      for (ValueId& operand : graph_.nodes[reader].operands) {
        if (operand == v) operand = it->second;
      }
    }
    return !wide.empty();
  }

  // In the module of node `at`, among `nodes`.
  ValueId AddCast(ValueId v, DType dtype, int recompute, int at, std::vector<Node>& nodes) {
    Node cast;
    cast.op = "cast";
    cast.operands = {v};
    cast.attrs = {{"dtype", std::string(Name(dtype))}};
    cast.module = graph_.nodes[at].module;
    cast.recompute = recompute;
    TensorType type = graph_.type(v);
    type.dtype = dtype;
    cast.results = {graph_.AddValue("cast", std::move(type))};
    nodes.push_back(std::move(cast));
    return nodes.back().results[0];
  }

  void Insert() {
    std::vector<Node> nodes;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      for (Node& node : before_[i]) nodes.push_back(std::move(node));
      nodes.push_back(std::move(graph_.nodes[i]));
      for (Node& node : after_[i]) nodes.push_back(std::move(node));
    }
    graph_.nodes = std::move(nodes);
  }

  Graph& graph_;
  const DType dtype_;
  const std::vector<char> forward_;
  std::vector<std::vector<Node>> before_, after_;  // each node: what is put there
};

}  // namespace

std::vector<char> ResidualStream(const Graph& graph, const std::vector<char>& forward) {
  std::vector<char> stream(graph.values.size(), 0);
  for (int i = static_cast<int>(graph.nodes.size()) - 1; i >= 0; --i) {
    const Node& node = graph.nodes[i];
    if (!forward[i]) continue;
    if (node.op == "rms_norm" || node.op == "layer_norm") stream[node.operands[0]] = 1;
    if (node.operands.empty()) {
      for (ValueId v : node.results) stream[v] = 0;
    }
    if (node.op != "add" || !stream[node.results[0]]) continue;
    for (ValueId v : node.operands) {
      if (graph.type(v).dims == graph.type(node.results[0]).dims) stream[v] = 1;
    }
  }
  return stream;
}

bool NarrowResidual(Program& program, const OpTable&, DType dtype) {
  bool changed = false;
  for (Graph& graph : program.graphs) changed |= Narrowing(program, graph, dtype).Run();
  return changed;
}

}  // namespace tacc::graph
