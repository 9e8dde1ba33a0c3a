#ifndef TACC_GRAPH_PLANNER_TESTING_TEST_REQUEST_H_
#define TACC_GRAPH_PLANNER_TESTING_TEST_REQUEST_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "graph/ir/text.h"
#include "graph/passes/testing/test_model.h"
#include "graph/planner/planner.h"
#include "graph/planner/request.h"
#include "gtest/gtest.h"

// A request of a job on two workers, and the model that it is planned for.
namespace tacc::graph {

inline constexpr char kRequest[] =
    R"({"job": {"name": "t", "model": {"path": "/m", "weights": "WEIGHTS_RANDOM"}, "data": {"seq_len": 6},
 "train": {"max_steps": 10, "global_batch_size": 8, "learning_rate": 0.001, "lr_scheduler_type": "LR_SCHEDULER_TYPE_COSINE"},
 "dist": {"fsdp": {"wrap_layer_cls": ["A"]}}}, "world": 2,
 "device": {"threads": 1, "memory_bytes": "8000000000", "matmul_flops_per_second": {"f32": 1e11, "bf16": 2e11}, "memory_bytes_per_second": 1e10,
 "link_bytes_per_second": 1e9, "link_latency_seconds": 1e-4}})";

inline ForwardBuilder TestModel(int num_layers = 2) {
  return [num_layers](int64_t batch, int64_t seq_len) -> absl::StatusOr<ForwardModel> {
    ParseOptions options;
    options.symbols = {{"B", batch}, {"S", seq_len}};
    auto graph = ParseGraph(TestModelText(num_layers), options);
    if (!graph.ok()) return graph.status();
    ForwardModel model;
    model.forward = *std::move(graph);
    for (int i = 0; i < num_layers; ++i) model.units.push_back(absl::StrCat("layers.", i));
    model.residual_module = "embed";
    model.num_parameters = 1;
    return model;
  };
}

inline CompileRequest Parse(const std::string& text) {
  auto request = ParseCompileRequest(text);
  EXPECT_TRUE(request.ok()) << request.status();
  return *std::move(request);
}

inline std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_TESTING_TEST_REQUEST_H_
