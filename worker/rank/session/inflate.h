#ifndef TACC_WORKER_RANK_SESSION_INFLATE_H_
#define TACC_WORKER_RANK_SESSION_INFLATE_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tacc::worker {

// Fills `to` with what a zlib stream holds, and writes nothing behind it whatever the stream says. InvalidArgument: the
// stream is damaged, holds more or less than `to` takes, or does not end with `packed`.
absl::Status Inflate(absl::string_view packed, absl::Span<char> to);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_SESSION_INFLATE_H_
