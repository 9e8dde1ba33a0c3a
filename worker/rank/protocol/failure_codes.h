// The codes of `failed` events (docs/contracts.md).
#ifndef TACC_WORKER_RANK_PROTOCOL_FAILURE_CODES_H_
#define TACC_WORKER_RANK_PROTOCOL_FAILURE_CODES_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "machine/exit_code.h"

namespace tacc::worker {

// Exit code of a `failed` event's code.
int ExitCode(absl::string_view code);

// `status` with the code of its `failed` event, where its own code cannot say it; the first that it was given counts.
absl::Status WithFailureCode(absl::Status status, absl::string_view code);

// Of errors that may pass.
inline constexpr char kUnavailableCode[] = "unavailable";

// An error of files, with that code where they are not there, or could not be read or written for now.
absl::Status OfFiles(absl::Status status);
template <typename T>
absl::StatusOr<T> OfFiles(absl::StatusOr<T> result) {
  return result.ok() ? std::move(result) : absl::StatusOr<T>(OfFiles(result.status()));
}

// The code that it was given; empty: none.
std::string GivenFailureCode(const absl::Status& status);

// The code of an error of the steps: the one that it was given, else by its own.
std::string FailureCode(const absl::Status& status);

// The same while loading, where what does not fit is the input's fault.
std::string LoadFailureCode(const absl::Status& status);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROTOCOL_FAILURE_CODES_H_
