// What the core decides and shows, as text for scripts.
#ifndef TACC_COORDINATOR_CORE_TESTING_CORE_TEXT_H_
#define TACC_COORDINATOR_CORE_TESTING_CORE_TEXT_H_

#include <cstdint>
#include <map>
#include <string>

#include "coordinator/core/types.h"
#include "google/protobuf/message.h"

namespace tacc::coordinator {

// JOB/ATTEMPT/RANK.
std::string RankName(const v1::RankId& id);

// `message`'s fields that are set, on one line. (What DebugString writes, newer releases of Protocol Buffers vary.)
std::string FieldsText(const google::protobuf::Message& message);

// A line, with its newline. `workers`: session -> name, of all sessions that there have been.
std::string DecisionText(const Decision& decision, const std::map<uint64_t, std::string>& workers);

// What `taccctl get` would show, in lines.
std::string JobText(const v1::Job& view);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_CORE_TESTING_CORE_TEXT_H_
