// The JSON texts that go out with an attempt: start file, rank commands, owner of the checkpoint folder
// (docs/contracts.md).
#ifndef TACC_COORDINATOR_CORE_START_FILE_H_
#define TACC_COORDINATOR_CORE_START_FILE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/core/job_state.h"

namespace tacc::coordinator {

// Start file of one rank of job.attempt (protocol/start_file.h), without the daemon's fields. `version`, `service`:
// Core::Options.
std::string StartFile(const JobState& job, int rank, const std::string& version, const std::string& service,
                      double collective_timeout_seconds);

// `start_file`, as StartFile makes it for rank 0 of a job with a train.trace_step, with the predicted trace in it.
std::string WithPredictedTrace(const std::string& start_file, const std::string& trace);

// `run` of a start file, for a job that has run: what the record takes from the plan, and the job's history.
std::string RunText(const JobState& job);

// Lines for the stdin of ranks: where to meet, for ranks other than 0; to stop after a checkpoint.
std::string RendezvousLine(const AttemptState& attempt);
std::string StopLine();

// checkpoint.dir/job.json: the owner, and all settings of its job, to tell what changed from one job to the next in the
// same folder.
std::string OwnerText(const JobState& job, const std::string& service);
// Settings in which two owner texts differ, one line for people each: "train.max_steps 100 -> 200", "dist.dp.size unset
// -> 2". Empty when one of the texts has none.
std::vector<std::string> ChangedSettings(const std::string& before, const std::string& after);

// "pretrained" or "random": where the job's initial weights come from. `compiled`: Summary::weights.
const char* WeightsOf(const v1::JobSpec& spec, absl::string_view compiled);
// The folder with the model's files: model.path, or that of model.graph, an absolute path; or the name of an upload.
std::string ModelDir(const v1::JobSpec& spec);

// Folder of the exported model: `hf` of the job's folder, of a graph `model`.
std::string ExportDir(const v1::JobSpec& spec);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_CORE_START_FILE_H_
