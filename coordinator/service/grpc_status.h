#ifndef TACC_COORDINATOR_SERVICE_GRPC_STATUS_H_
#define TACC_COORDINATOR_SERVICE_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include <string>

#include "absl/status/status.h"

namespace tacc::coordinator {

// Same code (the numbers are the same), same message.
inline grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_SERVICE_GRPC_STATUS_H_
