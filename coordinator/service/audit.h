// Each call that changes something is in the audit log before its answer goes out; a worker's stream when it registers
// and when it ends. Beside them, calls that the check of access has refused.
#ifndef TACC_COORDINATOR_SERVICE_AUDIT_H_
#define TACC_COORDINATOR_SERVICE_AUDIT_H_

#include <grpcpp/support/server_interceptor.h>

#include <cstdint>
#include <functional>
#include <mutex>

#include "absl/strings/string_view.h"
#include "audit_log/audit_log.h"
#include "identity/access.h"
#include "machine/token_bucket.h"

namespace tacc::coordinator {

// Of a full name of a method, such as /tacc.v1.CoordinatorService/Submit: as the table of access.h has it. True also
// for one of ours that is not known.
bool IsAudited(absl::string_view method);

class AuditInterceptors : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  // `log` outlives the server.
  explicit AuditInterceptors(AuditLog* log) : log_(log) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override;

 private:
  AuditLog* const log_;
};

// Writes calls that were refused before a handler. What callers make it write is bounded: a hundred at once and then
// one a second; of strangers, who have shown neither a certificate nor a good token, a hundred and then one a minute.
// These are counted apart, so that they hide nobody. The next entry says how many were left out. Does not wait for the
// disk, and so is not on it when the answer goes out. Thread-safe.
class RefusalLog {
 public:
  // `log` outlives it; `clock` gives steady seconds.
  RefusalLog(AuditLog* log, std::function<double()> clock);
  void Write(const identity::Refusal& refusal);

 private:
  struct Share {
    TokenBucket bucket;
    int64_t num_left_out = 0;  // Since the last entry.
  };

  AuditLog* const log_;
  const std::function<double()> clock_;
  std::mutex mutex_;
  Share known_, strangers_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_SERVICE_AUDIT_H_
