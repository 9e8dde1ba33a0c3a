#ifndef TACC_GRAPH_PLANNER_REQUEST_H_
#define TACC_GRAPH_PLANNER_REQUEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/import/finetune/request.h"
#include "graph/planner/plan_request.h"

namespace tacc::graph {

// The compile request of docs/contracts.md: the job, the device, the data's facts.
struct CompileRequest {
  std::string name;
  PlanRequest plan;
  std::string model_path;        // a Hugging Face directory, or
  std::string graph_path;        // a text graph
  std::string weights = "auto";  // pretrained, random, auto
  std::vector<std::string> wrap_layer_cls, gc_cls;
  FinetuneRequest finetune;
  std::string lr_factors_path;  // of the learning rate's factors; or empty
  uint64_t seed = 42;           // of dropout
  std::string data_path;
  int64_t vocab_size = 0;           // of the data; 0: unknown
  int64_t num_tokens = 0;           // the same
  bool traces = false;              // the job has a train.trace_step
  bool separate_documents = false;  // the data says where documents begin, and they are kept apart
  bool is_for_sheet = false;        // the cluster is a sheet's: neither devices nor weights need be here
};

// Errors: InvalidArgument naming the field.
absl::StatusOr<CompileRequest> ParseCompileRequest(absl::string_view json);

// Reads the file that the request names for its factors of the learning rate, if any. Errors: NotFound, InvalidArgument
// naming file and line.
absl::Status ReadLrFactors(CompileRequest& request);

// InvalidArgument when the global batch has more samples than the data, where that is known: each update would hold the
// same ones several times.
absl::Status CheckBatchAgainstData(const CompileRequest& request, int64_t global_batch);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_REQUEST_H_
