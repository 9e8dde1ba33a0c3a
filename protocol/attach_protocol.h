// Versions of what daemons and the coordinator say to each other (proto/tacc/v1/worker.proto). Each speaks its own and
// the one before, so that machines can be upgraded one after the other.
#ifndef TACC_PROTOCOL_ATTACH_PROTOCOL_H_
#define TACC_PROTOCOL_ATTACH_PROTOCOL_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace tacc::protocol {

// 1: before there were numbers. 2: both say a number. Whoever adds one keeps the behaviour of the one before for a peer
// that speaks only that (`Registered.protocol` is the older of the two), and deletes what only still older ones had.
inline constexpr int kAttachProtocol = 2;

// Whether two that speak `one` and `other`, and each the protocol before, understand each other.
inline constexpr bool CanTalk(int one, int other) { return one - other <= 1 && other - one <= 1; }

// Of a worker. It becomes a folder's name, and part of lines in logs.
inline constexpr size_t kMaxWorkerNameBytes = 128;
inline bool IsWorkerName(absl::string_view name) {
  constexpr absl::string_view kCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  return !name.empty() && name.size() <= kMaxWorkerNameBytes && name != "." && name != ".." &&
         name.find_first_not_of(kCharacters) == name.npos;
}

}  // namespace tacc::protocol

#endif  // TACC_PROTOCOL_ATTACH_PROTOCOL_H_
