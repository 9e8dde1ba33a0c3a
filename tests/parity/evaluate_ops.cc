// What ops are defined to compute, for comparisons in Python: each line of stdin is {"op": "scale f64[2] factor=3.0",
// "operands": [[1, 2]]}, values row-major, and its answer a line of stdout, {"results": [[3, 6]]} or {"error": TEXT}.
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "graph/ops/op_cases.h"
#include "nlohmann/json.hpp"
#include "tests/interpreter/simulation.h"

namespace tacc {
namespace {

using interpreter::Arrays;

absl::StatusOr<nlohmann::json> Evaluate(const graph::OpTable& ops, const nlohmann::json& request) {
  absl::StatusOr<graph::OpCase> op = graph::ParseOpCase(ops, request.at("op").get<std::string>());
  if (!op.ok()) return op.status();
  Arrays leaves;
  const graph::Node& node = op->op_node();
  for (size_t i = 0; i < node.operands.size(); ++i) {
    leaves[absl::StrCat("a", i)] = {op->graph.type(node.operands[i]).dims,
                                    request.at("operands").at(i).get<std::vector<double>>()};
  }
  absl::StatusOr<Arrays> results = interpreter::RunGraph(op->graph, graph::Mesh(), leaves);
  if (!results.ok()) return results.status();
  nlohmann::json values = nlohmann::json::array();
  for (size_t i = 0; i < node.results.size(); ++i) values.push_back(results->at(absl::StrCat("r", i)).values);
  return values;
}

}  // namespace
}  // namespace tacc

int main() {
  const tacc::graph::OpTable ops;
  for (std::string line; std::getline(std::cin, line);) {
    const absl::StatusOr<nlohmann::json> results = tacc::Evaluate(ops, nlohmann::json::parse(line));
    nlohmann::json answer;
    if (results.ok()) {
      answer["results"] = *results;
    } else {
      answer["error"] = std::string(results.status().message());
    }
    std::cout << answer.dump() << "\n";
  }
}
