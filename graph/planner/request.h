#ifndef TACC_GRAPH_PLANNER_REQUEST_H_
#define TACC_GRAPH_PLANNER_REQUEST_H_

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/planner/planner.h"

namespace tacc::graph {

// The compile request of docs/contracts.md: the job, the device, the data's facts.
struct CompileRequest {
  std::string name;
  PlanRequest plan;
  std::string model_path;        // a Hugging Face directory, or
  std::string graph_path;        // a text graph
  std::string weights = "auto";  // pretrained, random, auto
  std::vector<std::string> wrap_layer_cls, gc_cls;
  uint64_t seed = 42;  // of dropout
  std::string data_path;
  int64_t vocab_size = 0;           // of the data; 0: unknown
  int64_t num_tokens = 0;           // the same
  bool traces = false;              // the job has a train.trace_step
  bool separate_documents = false;  // the data says where documents begin, and they are kept apart
};

// Errors: InvalidArgument naming the field.
absl::StatusOr<CompileRequest> ParseCompileRequest(absl::string_view json);

// InvalidArgument when the global batch has more samples than the data, where that is known: each update would hold the
// same ones several times.
absl::Status CheckBatchAgainstData(const CompileRequest& request, int64_t global_batch);

// summary.json of docs/contracts.md. `stages`: the candidate's programs; `notes`: Planned::notes; `architecture`: of a
// Hugging Face folder, else empty; `facts`: of the model's mathematics, by name; `fact_keys`: what config.json calls
// them, where it is another name.
std::string SummaryJson(const CompileRequest& request, const Candidate& candidate, const std::vector<Program>& stages,
                        const std::vector<std::string>& notes, absl::string_view fingerprint,
                        const std::string& architecture, const std::map<std::string, std::string>& facts,
                        const std::map<std::string, std::string>& fact_keys);

// Which parts of the stages' graphs ranks on GPUs capture as CUDA graphs, when each has a GPU to itself; null on CPUs.
nlohmann::json CaptureJson(const CompileRequest& request, const std::vector<Program>& stages);
// The fields of a job file, with their sections, that make the planner choose this candidate.
nlohmann::json SettingsJson(const CompileRequest& request, const Candidate& candidate);
// An entry of `tacc-plan plan`'s candidates.
nlohmann::json CandidateJson(const CompileRequest& request, const Candidate& candidate);
// An entry of its losers: the same, as far as an estimate goes. `best`: what is taken.
nlohmann::json LoserJson(const CompileRequest& request, const Loser& loser, const Candidate& best);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_REQUEST_H_
