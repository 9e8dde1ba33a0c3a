// Versions of what daemons and the coordinator say to each other (proto/tacc/v1/worker.proto). Each speaks its own and
// the one before, so that machines can be upgraded one after the other.
#ifndef TACC_PROTOCOL_ATTACH_PROTOCOL_H_
#define TACC_PROTOCOL_ATTACH_PROTOCOL_H_

namespace tacc::protocol {

// 1: before there were numbers. 2: both say a number.
// Of a new one: what has changed is told apart by what Registered says that both speak, and what only the one before
// the last had is deleted.
inline constexpr int kAttachProtocol = 2;

// Whether two that speak `one` and `other`, and each the protocol before, understand each other.
inline constexpr bool CanTalk(int one, int other) { return one - other <= 1 && other - one <= 1; }

}  // namespace tacc::protocol

#endif  // TACC_PROTOCOL_ATTACH_PROTOCOL_H_
