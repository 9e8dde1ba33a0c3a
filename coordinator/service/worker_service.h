// gRPC side of WorkerService: one stream per daemon, messages in as inputs of the loop, decisions out.
#ifndef TACC_COORDINATOR_SERVICE_WORKER_SERVICE_H_
#define TACC_COORDINATOR_SERVICE_WORKER_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "coordinator/service/loop.h"
#include "coordinator/service/uploads.h"
#include "tacc/v1/worker.grpc.pb.h"

namespace tacc::coordinator {

class WorkerStream;

class WorkerHandlers : public v1::WorkerService::CallbackService, public WorkerOutlet {
 public:
  // Must be called before the server starts; both outlive the server.
  void set_loop(Loop* loop, Uploads* uploads) {
    loop_ = loop;
    uploads_ = uploads;
  }

  grpc::ServerBidiReactor<v1::AttachRequest, v1::AttachResponse>* Attach(grpc::CallbackServerContext* context) override;

  grpc::ServerUnaryReactor* GetUpload(grpc::CallbackServerContext* context, const v1::GetUploadRequest* request,
                                      v1::GetUploadResponse* response) override {
    return uploads_->GetUpload(context, *request, response);
  }
  grpc::ServerWriteReactor<v1::GetFileResponse>* GetFile(grpc::CallbackServerContext* context,
                                                         const v1::GetFileRequest* request) override {
    return uploads_->GetFile(context, *request);
  }

  void Send(uint64_t session, v1::AttachResponse message) override;
  void Close(uint64_t session, const absl::Status& status) override;

 private:
  friend class WorkerStream;
  std::shared_ptr<WorkerStream> Find(uint64_t session);
  void Remove(uint64_t session);

  Loop* loop_ = nullptr;
  Uploads* uploads_ = nullptr;
  std::mutex mutex_;
  uint64_t last_session_ = 0;
  std::map<uint64_t, std::weak_ptr<WorkerStream>> streams_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_SERVICE_WORKER_SERVICE_H_
