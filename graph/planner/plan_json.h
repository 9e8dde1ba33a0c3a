// Plans as JSON (docs/contracts.md).
#ifndef TACC_GRAPH_PLANNER_PLAN_JSON_H_
#define TACC_GRAPH_PLANNER_PLAN_JSON_H_

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "graph/ir/program.h"
#include "graph/planner/compile_buckets.h"
#include "graph/planner/planner.h"
#include "graph/planner/request.h"

namespace tacc::graph {

// The fields of a job file, with their sections, that make the planner choose this candidate.
nlohmann::json SettingsJson(const CompileRequest& request, const Candidate& candidate);
// An entry of `tacc-plan plan`'s candidates.
nlohmann::json CandidateJson(const CompileRequest& request, const Candidate& candidate);
// An entry of its losers: the same, as far as an estimate goes. `best`: the candidate that is taken.
nlohmann::json LoserJson(const CompileRequest& request, const Loser& loser, const Candidate& best);

// The parts of the stages' graphs that ranks on GPUs capture as CUDA graphs, when each has a GPU to itself; null on
// CPUs.
nlohmann::json CaptureJson(const CompileRequest& request, const std::vector<Program>& stages);

// What a rank takes beside the plan, at most, once a client asks for what the model returns: a copy of it, and the
// answers with that of a whole batch that are there at a time. Of the stage that returns most.
int64_t OutputsBytes(const Candidate& candidate, const std::vector<Program>& stages);

// What summary.json says beside a candidate.
struct SummaryParts {
  std::vector<std::string> notes;                // Planned::notes
  std::string fingerprint;                       // of the programs' texts
  std::string architecture;                      // of a Hugging Face folder, else empty
  std::map<std::string, std::string> facts;      // of the model's mathematics, by name
  std::map<std::string, std::string> fact_keys;  // what config.json calls them, where that is another name
  std::string adapter_config;                    // of adapters, else empty
  bool is_pretrained = false;                    // the initial weights are files'
  std::vector<Bucket> buckets;                   // all lengths, where there are several
};
// summary.json. `stages`: the candidate's programs.
std::string SummaryJson(const CompileRequest& request, const Candidate& candidate, const std::vector<Program>& stages,
                        const SummaryParts& parts);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_PLAN_JSON_H_
