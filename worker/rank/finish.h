#ifndef TACC_WORKER_RANK_FINISH_H_
#define TACC_WORKER_RANK_FINISH_H_

#include "absl/status/status.h"
#include "worker/rank/load_states.h"
#include "worker/rank/rank_parts.h"
#include "worker/rank/train_loop.h"

namespace tacc::worker {

// What a start leaves behind after its last step: a checkpoint of the states, if the job saves any and it is not the
// one that training began with; and, when it was not stopped, on rank 0 the exported model. All ranks call it. Errors:
// of the talk between ranks; Internal: the checkpoint of a run that was not stopped could not be written; of the
// export.
absl::Status Finish(RankParts& parts, const StartPoint& begin, const TrainLoop& loop);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_FINISH_H_
