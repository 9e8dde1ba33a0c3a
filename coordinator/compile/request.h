// Texts that go to and come from tacc-plan and tacc-data (docs/contracts.md). Pure functions.
#ifndef COORDINATOR_COMPILE_REQUEST_H_
#define COORDINATOR_COMPILE_REQUEST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tacc/v1/job.pb.h"
#include "tacc/v1/worker.pb.h"

namespace tacc::coordinator {

// Request of tacc-plan. `data` is the output of tacc-data check; its seq_len fills in an unset data.seq_len, and
// defaults of the schema are filled in. `world` 0: left to the planner.
absl::StatusOr<std::string> CompileRequest(const v1::JobSpec& spec, int world, const v1::DeviceProfile& device,
                                           const std::string& data);

// InvalidArgument when the global batch, as planned, has more samples than the data: each update
// would hold the same ones several times.
absl::Status CheckBatchAgainstData(const v1::JobSpec& spec, const std::string& summary, const std::string& data);

// Of a text, 16 hex digits: tells a file that was torn from the whole one.
std::string Fingerprint(const std::string& text);

// What checkpoints of the job carry as `identity`: values that must not change for a resume to be a continuation, and
// beside them, for messages and exports, the paths of model and data and the model's class, which may.
// `programs` are the texts of its stages, of which names, logical shapes and initializers of the weights count;
// `fingerprint`: of pretrained weights, as tacc-data fingerprint prints it.
absl::StatusOr<std::string> Identity(const v1::JobSpec& spec, const std::string& summary, const std::string& data,
                                     const std::string& fingerprint, const std::vector<std::string>& programs);

}  // namespace tacc::coordinator

#endif  // COORDINATOR_COMPILE_REQUEST_H_
