// A coordinator for tests: answers what the test sets, at a free port of 127.0.0.1.
#ifndef TACC_CLIENT_TACCCTL_TESTING_FAKE_COORDINATOR_H_
#define TACC_CLIENT_TACCCTL_TESTING_FAKE_COORDINATOR_H_

#include <unistd.h>

#include <functional>
#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"
#include "tacc/v1/coordinator.grpc.pb.h"

namespace tacc::client {

class FakeCoordinator : public v1::CoordinatorService::Service {
 public:
  FakeCoordinator() { Start("127.0.0.1:0"); }
  ~FakeCoordinator() override { Stop(); }

  const std::string& address() const { return address_; }

  void Stop() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  void StartAgain() { Start(address_); }

  // When it says that it is a process of this machine.
  std::string state_dir;
  // What the calls do; unset ones answer with an empty message.
  std::function<grpc::Status(const v1::SubmitRequest&, v1::SubmitResponse*)> submit;
  std::function<grpc::Status(const v1::GetRequest&, v1::GetResponse*)> get;
  std::function<grpc::Status(const v1::ListRequest&, v1::ListResponse*)> list;
  std::function<grpc::Status(const v1::CancelRequest&, v1::CancelResponse*)> cancel;
  std::function<grpc::Status(const v1::PlanRequest&, v1::PlanResponse*)> plan;
  std::function<grpc::Status(const v1::ListWorkersRequest&, v1::ListWorkersResponse*)> workers;
  std::function<grpc::Status(grpc::ServerContext*, const v1::WatchRequest&, grpc::ServerWriter<v1::WatchResponse>*)>
      watch;
  std::function<grpc::Status(grpc::ServerContext*, const v1::LogsRequest&, grpc::ServerWriter<v1::LogsResponse>*)> logs;

  grpc::Status Submit(grpc::ServerContext*, const v1::SubmitRequest* request, v1::SubmitResponse* response) override {
    return submit ? submit(*request, response) : grpc::Status::OK;
  }
  grpc::Status Get(grpc::ServerContext*, const v1::GetRequest* request, v1::GetResponse* response) override {
    return get ? get(*request, response) : grpc::Status::OK;
  }
  grpc::Status List(grpc::ServerContext*, const v1::ListRequest* request, v1::ListResponse* response) override {
    return list ? list(*request, response) : grpc::Status::OK;
  }
  grpc::Status Cancel(grpc::ServerContext*, const v1::CancelRequest* request, v1::CancelResponse* response) override {
    return cancel ? cancel(*request, response) : grpc::Status::OK;
  }
  grpc::Status Plan(grpc::ServerContext*, const v1::PlanRequest* request, v1::PlanResponse* response) override {
    return plan ? plan(*request, response) : grpc::Status::OK;
  }
  grpc::Status ListWorkers(grpc::ServerContext*, const v1::ListWorkersRequest* request,
                           v1::ListWorkersResponse* response) override {
    return workers ? workers(*request, response) : grpc::Status::OK;
  }
  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::WatchResponse>* writer) override {
    return watch ? watch(context, *request, writer) : grpc::Status::OK;
  }
  grpc::Status Logs(grpc::ServerContext* context, const v1::LogsRequest* request,
                    grpc::ServerWriter<v1::LogsResponse>* writer) override {
    return logs ? logs(context, *request, writer) : grpc::Status::OK;
  }
  grpc::Status GetVersion(grpc::ServerContext*, const v1::GetVersionRequest*,
                          v1::GetVersionResponse* response) override {
    response->set_version("0.1.0");
    if (!state_dir.empty()) response->set_pid(getpid());
    response->set_state_dir(state_dir);
    return grpc::Status::OK;
  }

 private:
  void Start(const std::string& address) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    address_ = "127.0.0.1:" + std::to_string(port);
  }

  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_TESTING_FAKE_COORDINATOR_H_
