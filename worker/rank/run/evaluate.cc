#include "worker/rank/run/evaluate.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "machine/clock.h"
#include "worker/rank/protocol/failure_codes.h"

namespace tacc::worker {

absl::Status Evaluate(RankParts& parts, int64_t step) {
  if (parts.eval_batches == nullptr) return absl::OkStatus();
  const double begin = SteadySeconds();
  double loss = 0, target_tokens = 0;
  for (int64_t i = 0; i < parts.eval_batches->num_batches(); ++i) {
    TACC_ASSIGN_OR_RETURN(const std::vector<const void*>* inputs, OfFiles(parts.eval_batches->Read(i)));
    TACC_RETURN_IF_ERROR(parts.executor->RunEval(*inputs));
    TACC_RETURN_IF_ERROR(parts.measurement->Take());
    TACC_ASSIGN_OR_RETURN(const double batch_loss, parts.executor->Output("loss"));
    TACC_ASSIGN_OR_RETURN(const double batch_tokens, parts.executor->Output("target_tokens"));
    loss += batch_loss;
    target_tokens += batch_tokens;
  }
  if (parts.start.rank != 0) return absl::OkStatus();
  if (target_tokens == 0) {
    parts.events.WarningOnce("no_eval_targets",
                             absl::StrCat("there is no eval_loss: the held-out data ", parts.start.eval_path,
                                          " has no target (loss_mask); give other data.eval_path"));
    return absl::OkStatus();
  }
  parts.WritePoint(protocol::kEvalEvent, {{"step", step},
                                          {"eval_loss", loss / target_tokens},
                                          {"target_tokens", static_cast<int64_t>(target_tokens)},
                                          {"seconds", SteadySeconds() - begin}});
  return absl::OkStatus();
}

}  // namespace tacc::worker
