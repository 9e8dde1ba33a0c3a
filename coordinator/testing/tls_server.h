// A coordinator with TLS in this process, and its clients.
#ifndef TACC_COORDINATOR_TESTING_TLS_SERVER_H_
#define TACC_COORDINATOR_TESTING_TLS_SERVER_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/service/server.h"
#include "coordinator/testing/fake_daemon.h"
#include "identity/credentials.h"
#include "identity/folder.h"

namespace tacc::coordinator {

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

inline grpc::ByteBuffer Buffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// Calls any method with one message, and hands over the last answer.
inline grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                         const std::string& message, std::string* answer = nullptr,
                         const std::vector<std::string>& authorizations = {}) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  for (const std::string& authorization : authorizations) context.AddMetadata("authorization", authorization);
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  grpc::CompletionQueue queue;
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  auto call = stub.PrepareCall(&context, method, &queue);
  call->StartCall(nullptr);
  bool goes_on = done();
  if (goes_on) {
    call->Write(Buffer(message), nullptr);
    goes_on = done();
  }
  if (goes_on) {
    call->WritesDone(nullptr);
    goes_on = done();
  }
  while (goes_on) {
    grpc::ByteBuffer read;
    call->Read(&read, nullptr);
    goes_on = done();
    grpc::Slice bytes;
    if (goes_on && answer != nullptr && read.DumpToSingleSlice(&bytes).ok()) answer->assign(bytes.begin(), bytes.end());
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  done();
  return status;
}

// A coordinator with TLS in this process, and folders of clients of each role.
class TlsServerTest : public testing::Test {
 protected:
  void SetUp() override {
    pki_ = dir_.path() + "/pki";
    const identity::Validity validity = identity::ValidFor(2, now_);
    ASSERT_TRUE(identity::MakeFolders(pki_, validity,
                                      {{{identity::Role::kServer, "server", ""}, {"localhost", "127.0.0.1"}, validity},
                                       {{identity::Role::kAdmin, "admin", ""}, {}, validity},
                                       {{identity::Role::kUser, "alice", "vision"}, {}, validity},
                                       {{identity::Role::kUser, "bob", "audio"}, {}, validity},
                                       {{identity::Role::kViewer, "viewer", ""}, {}, validity},
                                       {{identity::Role::kWorker, "worker", ""}, {}, validity},
                                       {{identity::Role::kMetrics, "metrics", ""}, {}, validity}})
                    .ok());
    options_.version = "0.1.0";
    options_.listen = "127.0.0.1:0";
    options_.state_dir = dir_.path() + "/state";
    options_.tls_dir = pki_ + "/server";
    options_.plan_binary = dir_.Script("tacc-plan", FakePlan(1));
    options_.data_binary = dir_.Script("tacc-data", FakeData());
    Start();
  }
  // In place of one that was there.
  void Start() {
    server_.reset();
    auto server = Server::Start(options_, &failpoints_, [this](const absl::Status&) { ++num_stops_; });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  std::string Folder(const std::string& name) const { return absl::StrCat(pki_, "/", name); }
  // A connection of its own.
  std::shared_ptr<grpc::Channel> Connect(const std::string& name) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return identity::MakeChannel(server_->address(), {Folder(name), ""}, arguments);
  }
  std::unique_ptr<v1::CoordinatorService::Stub> Client(const std::string& name) const {
    return v1::CoordinatorService::NewStub(Connect(name));
  }

  const std::time_t now_ = std::time(nullptr);
  TestDirectory dir_;
  Failpoints failpoints_;
  ServerOptions options_;
  std::string pki_;
  std::atomic<int> num_stops_{0};
  std::unique_ptr<Server> server_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_TESTING_TLS_SERVER_H_
