// A graph: values, and the nodes that make them in their order.
#ifndef TACC_GRAPH_IR_GRAPH_H_
#define TACC_GRAPH_IR_GRAPH_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "graph/ir/attr.h"
#include "graph/ir/op.h"
#include "graph/ir/sharding.h"
#include "graph/ir/type.h"

namespace tacc::graph {

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

// What a partitioned value is a part of: its logical type, and how that lies on the mesh.
struct Placement {
  TensorType global;
  Sharding sharding;
  bool operator==(const Placement&) const = default;
};

struct Value {
  std::string name;  // unique in its graph, without '%'
  TensorType type;   // logical in a logical graph, the rank's own in a partitioned one
  std::optional<Placement> placement;
  int64_t offset = -1;  // bytes from the start of the arena, once planned
};

// One operation. Line order is the schedule. Leaves: `input "name"`, `param "name"` (a weight of the model),
// `read "state"`; ends: `output "name" %v`, `store "state" %v`.
struct Node {
  Op op;
  std::string symbol;  // the quoted name of input, param, read, store and output
  std::vector<ValueId> operands;
  std::vector<ValueId> results;
  Attrs attrs;
  std::string module;  // module path in the model: units of gathering, checkpointing, errors and profiles
  int recompute = 0;   // > 0: a repeat by re-gather or remat; nodes of one repeat share the number
};

struct Graph {
  std::string name;
  std::vector<Value> values;
  std::vector<Node> nodes;

  const TensorType& type(ValueId v) const { return values[v].type; }
  // Adds a value with a unique name made from `hint`. References into `values` become invalid.
  ValueId AddValue(absl::string_view hint, TensorType type);
  // Makes AddValue's running number at least `n`, for a parser whose names may already hold numbers.
  void ReserveNames(int64_t n) { next_name_ = std::max(next_name_, n); }
  // An empty graph that may take over values of this one with their names: its AddValue gives none of these.
  Graph EmptyPart(std::string part_name) const;
  // The operand of `output "name"`, or kNoValue.
  ValueId Output(absl::string_view output_name) const;
  // Index of the node that makes each value, or -1.
  std::vector<int> Producers() const;
  // Index of the last node that reads each value, or -1.
  std::vector<int> LastUses() const;
  // Removes the nodes marked (one char a node), and the values that only they mention. Renumbers the rest, so ValueIds
  // and indices held outside become invalid.
  void RemoveNodes(const std::vector<char>& marked);
  // Removes values that no node mentions. Renumbers the rest, as RemoveNodes does.
  void CompactValues();

 private:
  int64_t next_name_ = 0;
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_GRAPH_H_
