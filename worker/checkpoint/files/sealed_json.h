// JSON files that carry their own checksum: the last entry of the object is the SHA-256 of all bytes before it, so a
// change of any byte of the file is seen.
#ifndef TACC_WORKER_CHECKPOINT_FILES_SEALED_JSON_H_
#define TACC_WORKER_CHECKPOINT_FILES_SEALED_JSON_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tacc::worker {

inline constexpr char kSealKey[] = "sha256";

// `object`: the text of a JSON object with at least one entry, none of them kSealKey. Returns it with the checksum as
// its last entry, ending in a newline.
std::string SealJson(const std::string& object);

// Returns the checksum, 64 hex digits, of a text as SealJson returns it, byte for byte. InvalidArgument, with `path` in
// the message, when the text has none or another one.
absl::StatusOr<std::string> CheckSeal(const std::string& text, const std::string& path);

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_FILES_SEALED_JSON_H_
