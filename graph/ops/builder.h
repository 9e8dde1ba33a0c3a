#ifndef TACC_GRAPH_OPS_BUILDER_H_
#define TACC_GRAPH_OPS_BUILDER_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "graph/ir/graph.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// Appends nodes to a graph with inferred types. The first error sticks: later calls return kNoValue (a node with a
// kNoValue operand is not made), and `status()` tells it with op and module path. So a builder of a model reads as the
// model, and asks once.
class Builder {
 public:
  Builder(Graph& graph, const OpTable& ops) : graph_(graph), ops_(ops) {}

  // Module path of the nodes that follow.
  void SetModule(std::string module) { module_ = std::move(module); }
  const std::string& module() const { return module_; }
  void SetRecompute(int recompute) { recompute_ = recompute; }

  // A node with one result.
  ValueId Add(absl::string_view op, std::vector<ValueId> operands, Attrs attrs = {});
  // A node with any number of results (kNoValue entries on error, `expected` of them).
  std::vector<ValueId> AddMany(absl::string_view op, std::vector<ValueId> operands, Attrs attrs, int expected);

  // input, param and read have no inference: their type is declared. Attributes of input: axes (InputAxes), default
  // (its value where none is given); of param: init (see State::init), stored (dims in the model's files, when another
  // shape), axes (what each dim is, see State::axes), role (see WeightRole), and what it has in place of the training's
  // own: learning_rate, weight_decay, optim.
  ValueId Leaf(const Op& op, absl::string_view symbol, TensorType type, Attrs attrs = {});
  // output and store.
  void End(const Op& op, absl::string_view symbol, ValueId value, Attrs attrs = {});

  ValueId Einsum(absl::string_view spec, ValueId a, ValueId b) {
    return Add("einsum", {a, b}, {{"spec", std::string(spec)}});
  }
  ValueId Scale(ValueId x, double factor) { return Add("scale", {x}, {{"factor", factor}}); }
  ValueId Cast(ValueId x, DType dtype);  // x itself when it has that dtype
  ValueId Reshape(ValueId x, Dims shape);
  ValueId Slice(ValueId x, int64_t dim, int64_t start, int64_t limit);
  ValueId Constant(double value, TensorType type);

  const TensorType& type(ValueId v) const;
  Graph& graph() { return graph_; }
  const OpTable& ops() const { return ops_; }
  const absl::Status& status() const { return status_; }
  void Fail(absl::Status status);  // keeps the first

 private:
  Graph& graph_;
  const OpTable& ops_;
  std::string module_;
  int recompute_ = 0;
  absl::Status status_;
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_BUILDER_H_
