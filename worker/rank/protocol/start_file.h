#ifndef TACC_WORKER_RANK_PROTOCOL_START_FILE_H_
#define TACC_WORKER_RANK_PROTOCOL_START_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "protocol/start_file.h"

namespace tacc::worker {

using protocol::StartFile;

// InvalidArgument: the file cannot be read, is not JSON, lacks a field or has one of another type or out of range; path
// and field are named.
absl::StatusOr<StartFile> ReadStartFile(const std::string& path);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROTOCOL_START_FILE_H_
