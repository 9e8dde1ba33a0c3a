// The definition of each op: a function that computes it over doubles.
#ifndef TACC_GRAPH_INTERPRETER_EVALUATE_H_
#define TACC_GRAPH_INTERPRETER_EVALUATE_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/interpreter/array.h"
#include "graph/ir/graph.h"
#include "graph/ir/sequence_order.h"

namespace tacc::interpreter {

// One node on one rank: what the op is defined to compute, in plain loops over doubles.
struct Request {
  const graph::Node* node = nullptr;
  std::vector<const Array*> in;
  std::vector<graph::TensorType> out_types;  // the rank's own
  // The logical range that the rank holds of each dim of each operand and result.
  std::vector<std::vector<graph::Range>> in_ranges;
  std::vector<std::vector<graph::Range>> out_ranges;
  // The logical dims of each operand and result.
  std::vector<Dims> in_logical, out_logical;

  template <typename T>
  T attr(const std::string& name, T fallback = T()) const {
    return graph::GetAttr<T>(node->attrs, name, fallback);
  }
  const Dims& out_dims(int i) const { return out_types[i].dims; }
  // The position of index `i` of the rank's part of a sequence that lies in `range` of `extent`.
  int64_t Position(const graph::Range& range, int64_t extent, int64_t i, int64_t shift = 0) const {
    const graph::SequenceOrder order{extent, attr<int64_t>("zigzag")};
    return order.PositionOf(shift == 0 ? range.begin + i : ((range.begin + i - shift) % extent + extent) % extent);
  }
  Array NewResult(int i, double value = 0) const { return Array::Filled(out_types[i].dims, value); }
};

using Results = std::vector<Array>;
using Evaluator = std::function<Results(const Request&)>;

// All ops but leaves, ends and collectives. Values of a padded part are undefined, as a kernel's.
class EvaluatorTable {
 public:
  EvaluatorTable();
  // Errors: Unimplemented for an op that has no evaluator; those of `aten` are named "OP SCHEMA".
  absl::StatusOr<Results> Evaluate(const Request& request) const;
  void Add(const std::string& op, Evaluator evaluator) { evaluators_[op] = std::move(evaluator); }
  bool Has(const std::string& op) const { return evaluators_.count(op) > 0; }

 private:
  std::map<std::string, Evaluator> evaluators_;
};

void AddPointwiseEvaluators(EvaluatorTable& table);
void AddShapeEvaluators(EvaluatorTable& table);
void AddModelEvaluators(EvaluatorTable& table);  // einsum, norms, tokens
void AddAttentionEvaluators(EvaluatorTable& table);
void AddExpertEvaluators(EvaluatorTable& table);    // softmax, top_k, experts
void AddImageEvaluators(EvaluatorTable& table);     // convolutions, pools, channels, interpolate
void AddTrainingEvaluators(EvaluatorTable& table);  // cross_entropy, dropout, random
void AddIndexingEvaluators(EvaluatorTable& table);  // compare, gather, cumsum
void AddAtenEvaluators(EvaluatorTable& table);      // aten of the schemas that split
void AddOptimizerEvaluators(EvaluatorTable& table);

}  // namespace tacc::interpreter

#endif  // TACC_GRAPH_INTERPRETER_EVALUATE_H_
