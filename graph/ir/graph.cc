#include "graph/ir/graph.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tacc::graph {

ValueId Graph::AddValue(absl::string_view hint, TensorType type) {
  // Names are hint.N with a running N; a parsed graph may hold any names, so the counter starts past its size.
  if (next_name_ < static_cast<int64_t>(values.size())) next_name_ = static_cast<int64_t>(values.size());
  Value value;
  const size_t dot = hint.rfind('.');
  // Clones of a clone keep one number.
  if (dot != absl::string_view::npos && dot > 0 &&
      hint.find_first_not_of("0123456789", dot + 1) == absl::string_view::npos) {
    hint = hint.substr(0, dot);
  }
  value.name = absl::StrCat(hint, ".", next_name_++);
  value.type = std::move(type);
  values.push_back(std::move(value));
  return static_cast<ValueId>(values.size() - 1);
}

Graph Graph::EmptyPart(std::string part_name) const {
  Graph part;
  part.name = std::move(part_name);
  part.next_name_ = std::max(next_name_, static_cast<int64_t>(values.size()));
  return part;
}

ValueId Graph::Output(absl::string_view output_name) const {
  for (const Node& node : nodes) {
    if (node.op == Op::kOutput && output_name == node.symbol.c_str()) return node.operands[0];
  }
  return kNoValue;
}

std::vector<int> Graph::Producers() const {
  std::vector<int> producers(values.size(), -1);
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (ValueId v : nodes[i].results) producers[v] = static_cast<int>(i);
  }
  return producers;
}

std::vector<int> Graph::LastUses() const {
  std::vector<int> uses(values.size(), -1);
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (ValueId v : nodes[i].operands) uses[v] = static_cast<int>(i);
  }
  return uses;
}

void Graph::RemoveNodes(const std::vector<char>& marked) {
  std::vector<Node> kept;
  kept.reserve(nodes.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!marked[i]) kept.push_back(std::move(nodes[i]));
  }
  nodes = std::move(kept);
  CompactValues();
}

void Graph::CompactValues() {
  std::vector<ValueId> renumbered(values.size(), kNoValue);
  std::vector<Value> kept;
  auto keep = [&](ValueId& v) {
    if (renumbered[v] == kNoValue) {
      renumbered[v] = static_cast<ValueId>(kept.size());
      kept.push_back(std::move(values[v]));
    }
    v = renumbered[v];
  };
  for (Node& node : nodes) {
    for (ValueId& v : node.operands) keep(v);
    for (ValueId& v : node.results) keep(v);
  }
  if (next_name_ < static_cast<int64_t>(values.size())) next_name_ = static_cast<int64_t>(values.size());
  values = std::move(kept);
}

}  // namespace tacc::graph
