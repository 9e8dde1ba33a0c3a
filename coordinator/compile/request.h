// Texts that go to and come from tacc-plan and tacc-data (docs/contracts.md). Pure functions.
#ifndef TACC_COORDINATOR_COMPILE_REQUEST_H_
#define TACC_COORDINATOR_COMPILE_REQUEST_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tacc/v1/job.pb.h"
#include "tacc/v1/worker.pb.h"

namespace tacc::coordinator {

// The job with the types of its earlier attempts, where it leaves that of its products to the probe of the workers or
// that of its kept residual stream to the planner: other workers must not change them. `precision` and
// `residual_dtype`: as in a plan's summary. The job as it is where they are empty, or it names types.
v1::JobSpec InPrecision(v1::JobSpec spec, const std::string& precision, const std::string& residual_dtype);

// For what tacc-plan plans.
struct PlanTarget {
  int world = 0;  // Workers; 0: left to the planner.
  v1::DeviceProfile device;
  // JSON object of a cluster file (docs/planning.md) in place of them; empty: none.
  std::string cluster;
};

// The job with paths of this machine in place of what a client has uploaded. `path`: of an upload's folder, by its id.
v1::JobSpec WithUploadsAt(v1::JobSpec spec, const std::function<std::string(const std::string& id)>& path);

// What `tacc-data check` would say of data that a client sends: a JSON object with the length of a sample.
std::string ClientDataFacts(const v1::JobSpec& spec);

// The request of tacc-plan. `data` is the output of tacc-data check; its seq_len fills in an unset data.seq_len, and
// defaults of the schema are filled in. It may be empty for a cluster, if the job has data.seq_len. InvalidArgument:
// the cluster is no JSON object of numbers and names, or longer than 64 KiB. Internal: `data` is none.
absl::StatusOr<std::string> CompileRequest(const v1::JobSpec& spec, const PlanTarget& target, const std::string& data);

struct IdentityParts {
  std::string summary;                // As tacc-plan writes it,
  std::string data;                   // and tacc-data check.
  std::string weights;                // Of pretrained ones, what tacc-data fingerprint prints.
  std::string config_json;            // The model's, as tacc-plan has read it; empty: it has none.
  std::vector<std::string> programs;  // Of the stages: names, logical shapes and initializers of their weights count.
};

// What checkpoints of the job carry as `identity`: values that must not change for a resume to be a continuation, and
// beside them, for messages and exports, the paths of model and data, the model's class, its config.json and the names
// of what is frozen, which may.
// Internal: a part is not what its tool writes.
absl::StatusOr<std::string> Identity(const v1::JobSpec& spec, const IdentityParts& parts);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_COMPILE_REQUEST_H_
