// gRPC side of CoordinatorService: handlers translate and return, the loop answers.
#ifndef TACC_COORDINATOR_SERVICE_COORDINATOR_SERVICE_H_
#define TACC_COORDINATOR_SERVICE_COORDINATOR_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "coordinator/service/calls.h"
#include "coordinator/service/loop.h"
#include "coordinator/service/uploads.h"
#include "tacc/v1/coordinator.grpc.pb.h"

namespace tacc::coordinator {

class CoordinatorHandlers : public v1::CoordinatorService::CallbackService {
 public:
  struct Options {
    std::string version;
    std::string state_dir;
    std::string metrics_address;
    std::string clear_address = {};    // Where the network reaches it without TLS; empty: nowhere.
    OpenStreams::Limits streams = {};  // Of Watch and Logs.
  };
  // `shutdown` is called once Shutdown was asked for.
  CoordinatorHandlers(Options options, std::function<void()> shutdown)
      : options_(std::move(options)), shutdown_(std::move(shutdown)), streams_(options_.streams) {}
  // Must be called before the server starts; all outlive the server.
  void set_loop(Loop* loop, Compiler* compiler, Uploads* uploads) {
    loop_ = loop;
    compiler_ = compiler;
    uploads_ = uploads;
  }

  grpc::ServerUnaryReactor* Submit(grpc::CallbackServerContext* context, const v1::SubmitRequest* request,
                                   v1::SubmitResponse* response) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context, const v1::GetRequest* request,
                                v1::GetResponse* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context, const v1::ListRequest* request,
                                 v1::ListResponse* response) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context, const v1::CancelRequest* request,
                                   v1::CancelResponse* response) override;
  grpc::ServerWriteReactor<v1::WatchResponse>* Watch(grpc::CallbackServerContext* context,
                                                     const v1::WatchRequest* request) override;
  grpc::ServerWriteReactor<v1::LogsResponse>* Logs(grpc::CallbackServerContext* context,
                                                   const v1::LogsRequest* request) override;
  grpc::ServerUnaryReactor* ReadJob(grpc::CallbackServerContext* context, const v1::ReadJobRequest* request,
                                    v1::ReadJobResponse* response) override;
  grpc::ServerUnaryReactor* Plan(grpc::CallbackServerContext* context, const v1::PlanRequest* request,
                                 v1::PlanResponse* response) override;
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context, const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override;
  grpc::ServerUnaryReactor* GetEndpoints(grpc::CallbackServerContext* context, const v1::GetEndpointsRequest* request,
                                         v1::GetEndpointsResponse* response) override;
  grpc::ServerUnaryReactor* PutFolder(grpc::CallbackServerContext* context, const v1::PutFolderRequest* request,
                                      v1::PutFolderResponse* response) override;
  grpc::ServerReadReactor<v1::PutFileRequest>* PutFile(grpc::CallbackServerContext* context,
                                                       v1::PutFileResponse* response) override;
  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* context, const v1::GetVersionRequest* request,
                                       v1::GetVersionResponse* response) override;
  grpc::ServerUnaryReactor* Shutdown(grpc::CallbackServerContext* context, const v1::ShutdownRequest* request,
                                     v1::ShutdownResponse* response) override;

 private:
  const Options options_;
  const std::function<void()> shutdown_;
  Loop* loop_ = nullptr;
  Compiler* compiler_ = nullptr;
  Uploads* uploads_ = nullptr;
  OpenStreams streams_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_SERVICE_COORDINATOR_SERVICE_H_
