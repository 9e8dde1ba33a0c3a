#include "worker/rank/run/data_source.h"

#include "graph/ir/status_macros.h"
#include "worker/rank/protocol/failure_codes.h"

namespace tacc::worker {

absl::StatusOr<Work> DataSource::Next(int64_t num_launched, bool) {
  if (IsLast(num_launched)) return Work{Work::Kind::kEnd};
  TACC_RETURN_IF_ERROR(OfFiles(batches_->Next()));
  return Work{Work::Kind::kStep, static_cast<uint64_t>(num_launched), batches_->hash()};
}

}  // namespace tacc::worker
