// From which checkpoint an attempt starts. A pure function of the job and of what its workers found in the checkpoint
// folder.
#ifndef TACC_COORDINATOR_CORE_RESUME_H_
#define TACC_COORDINATOR_CORE_RESUME_H_

#include <string>
#include <vector>

#include "coordinator/core/job_state.h"
#include "tacc/v1/worker.pb.h"

namespace tacc::coordinator {

struct Resume {
  // As checkpoint.resume of the start file; empty: initial weights.
  std::string from;
  int64_t step = 0;
  // Checkpoints of an earlier job in the folder that become this job's, oldest first.
  std::vector<v1::Checkpoint> adopted;
  // Logged checkpoints that are no longer whole.
  std::vector<std::string> damaged;
  // What people should know, one line each.
  std::vector<std::string> notes;
  // Set: what it goes on from is away, and which that is; nothing starts until it is back.
  std::string away;
  // Set: the job fails, nothing starts.
  std::string error;
  // There is nothing left to train, and the model is exported if it can be.
  bool finished = false;
};

// Rules, the first that applies:
//   the newest whole checkpoint that this job has logged (folders of its own attempts that were never logged do not
//   count); resume_from_checkpoint PATH: that one; never: none; auto: the newest whole one that an earlier job left in
//   the folder, all such being adopted.
// A checkpoint of an earlier job must have this job's identity; the error names both values.
// Only what was read and is wrong is damaged. What cannot be read is waited for; so are logged checkpoints that are not
// there, where no other one is left: training begins again from the initial weights only when all were damaged.
Resume ChooseResume(const JobState& job, const v1::CheckPathsResult& found);

// Empty when what has the identity `mine` carries on the training of identity `theirs` (JSON objects), else what
// differs, both values named.
std::string IdentityDifference(const std::string& mine, const std::string& theirs);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_CORE_RESUME_H_
