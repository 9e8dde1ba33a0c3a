// Folders that clients upload and daemons fetch: the calls of both services, on gRPC's threads, beside the loop.
#ifndef TACC_COORDINATOR_SERVICE_UPLOADS_H_
#define TACC_COORDINATOR_SERVICE_UPLOADS_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "content_store/content_store.h"
#include "coordinator/service/loop.h"
#include "tacc/v1/coordinator.pb.h"
#include "tacc/v1/worker.pb.h"

namespace tacc::coordinator {

class Uploads {
 public:
  // Of file data since this process began.
  struct Traffic {
    std::atomic<int64_t> received_bytes{0};
    std::atomic<int64_t> sent_bytes{0};
  };

  // `store` and `loop`, which says what jobs use, are borrowed and outlive the object.
  Uploads(ContentStore* store, Loop* loop) : store_(*store), loop_(*loop) {}

  const Traffic& traffic() const { return traffic_; }

  // FailedPrecondition: a job names an upload that is not there, and what to do. Counts as a use of it.
  absl::Status Check(const v1::JobSpec& spec) const;

  grpc::ServerUnaryReactor* PutFolder(grpc::CallbackServerContext* context, const v1::PutFolderRequest& request,
                                      v1::PutFolderResponse* response);
  grpc::ServerReadReactor<v1::PutFileRequest>* PutFile();
  grpc::ServerUnaryReactor* GetUpload(grpc::CallbackServerContext* context, const v1::GetUploadRequest& request,
                                      v1::GetUploadResponse* response) const;
  grpc::ServerWriteReactor<v1::GetFileResponse>* GetFile(grpc::CallbackServerContext* context,
                                                         const v1::GetFileRequest& request);

 private:
  // Of the jobs that `jobs` names. Unavailable: the loop waits for its disk.
  using JobsOf = std::function<std::vector<const JobState*>(const Core&)>;
  absl::StatusOr<std::set<std::string>> NamedBy(JobsOf jobs) const;
  // Those that workers of the caller's certificate were told to fetch, of jobs that have not ended; nothing: it has no
  // certificate, being of this machine or of a service without TLS, and reads all. Costs a turn of the loop, and a look
  // at each worker of that certificate.
  absl::StatusOr<std::optional<std::set<std::string>>> Readable(const grpc::CallbackServerContext& context) const;

  ContentStore& store_;
  Loop& loop_;
  Traffic traffic_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_SERVICE_UPLOADS_H_
