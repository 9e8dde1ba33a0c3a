#ifndef TACC_WORKER_RANK_RUN_FINISH_H_
#define TACC_WORKER_RANK_RUN_FINISH_H_

#include "absl/status/status.h"
#include "worker/rank/run/load_states.h"
#include "worker/rank/run/rank_parts.h"
#include "worker/rank/run/train_loop.h"

namespace tacc::worker {

// What a start leaves behind after its last step: a checkpoint of the states, if the job saves any and it is not the
// one that training began with; and, when it was not stopped, on rank 0 the exported model, tried again for half a
// minute where what is in the way may pass. All ranks call it. Errors: of the talk between ranks; the checkpoint could
// not be written, the same on every rank (after a stop with the failure code `checkpoint`); the export's, on rank 0,
// with the failure code `export`: all that was trained is saved.
absl::Status Finish(RankParts& parts, const StartPoint& begin, const TrainLoop& loop);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_RUN_FINISH_H_
