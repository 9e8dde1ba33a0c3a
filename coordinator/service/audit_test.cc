// A coordinator in this process, and what its audit log says afterwards.
#include "coordinator/service/audit.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/service/server.h"
#include "coordinator/testing/fake_daemon.h"
#include "coordinator/testing/tls_server.h"
#include "google/protobuf/descriptor.h"
#include "nlohmann/json.hpp"

namespace tacc::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<std::string> MethodNames() {
  std::vector<std::string> names;
  for (const char* name : {"tacc.v1.CoordinatorService", "tacc.v1.WorkerService"}) {
    const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    for (int i = 0; i < service->method_count(); ++i)
      names.push_back(absl::StrCat("/", service->full_name(), "/", service->method(i)->name()));
  }
  return names;
}

std::vector<nlohmann::json> ReadEntries(const std::string& folder) {
  std::ifstream in(folder + "/000001.jsonl");
  std::vector<nlohmann::json> entries;
  for (std::string line; std::getline(in, line);) entries.push_back(nlohmann::json::parse(line));
  return entries;
}

TEST(IsAuditedTest, OnlyReadersAreNot) {
  std::vector<std::string> audited;
  for (const std::string& name : MethodNames()) {
    if (IsAudited(name)) audited.push_back(name.substr(name.rfind('/') + 1));
  }
  EXPECT_THAT(audited, testing::ElementsAre("Submit", "Cancel", "PutFolder", "PutFile", "Shutdown", "Attach"));
  EXPECT_TRUE(IsAudited("/tacc.v1.CoordinatorService/OfTomorrow"));
  EXPECT_FALSE(IsAudited("/grpc.health.v1.Health/Check"));
}

class AuditTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.version = "0.1.0";
    options_.listen = "127.0.0.1:0";
    options_.exposure = ServerOptions::Exposure::kInsecure;
    options_.state_dir = dir_.path() + "/state";
    options_.plan_binary = dir_.Script("tacc-plan", FakePlan(1));
    options_.data_binary = dir_.Script("tacc-data", FakeData());
    auto server = Server::Start(options_, &failpoints_, [](const absl::Status&) {});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ =
        v1::CoordinatorService::NewStub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  grpc::Status Submit(const v1::JobSpec& spec, const std::string& request_id = "r1") {
    grpc::ClientContext context;
    v1::SubmitRequest request;
    *request.mutable_spec() = spec;
    request.set_request_id(request_id);
    v1::SubmitResponse response;
    return stub_->Submit(&context, request, &response);
  }
  std::vector<nlohmann::json> Entries() const { return ReadEntries(options_.state_dir + "/audit"); }

  TestDirectory dir_;
  Failpoints failpoints_;
  ServerOptions options_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
};

TEST_F(AuditTest, WhatChangesSomethingIsThereBeforeItsAnswer) {
  ASSERT_TRUE(Submit(TestSpec("toy", dir_.path() + "/runs", 1)).ok());
  auto entries = Entries();
  ASSERT_EQ(entries.size(), 1);
  EXPECT_EQ(entries[0]["method"], "/tacc.v1.CoordinatorService/Submit");
  EXPECT_EQ(entries[0]["request_id"], "r1");
  EXPECT_EQ(entries[0]["subject"], "toy-1");
  EXPECT_EQ(entries[0]["result"], "OK");
  EXPECT_THAT(entries[0]["peer"].get<std::string>(), StartsWith("ipv4:127.0.0.1:"));

  v1::JobSpec wrong = TestSpec("other", dir_.path() + "/other", 1);
  wrong.mutable_train()->set_max_steps(0);
  EXPECT_FALSE(Submit(wrong, "r2").ok());
  grpc::ClientContext context;
  v1::CancelRequest cancel;
  cancel.set_job("missing");
  v1::CancelResponse cancelled;
  EXPECT_FALSE(stub_->Cancel(&context, cancel, &cancelled).ok());
  entries = Entries();
  ASSERT_EQ(entries.size(), 3);
  EXPECT_EQ(entries[1]["subject"], "other");
  EXPECT_EQ(entries[1]["result"], "INVALID_ARGUMENT");
  EXPECT_THAT(entries[1]["detail"].get<std::string>(), HasSubstr("train.max_steps"));
  EXPECT_EQ(entries[2]["result"], "NOT_FOUND");
  EXPECT_EQ(entries[2]["subject"], "missing");
}

TEST_F(AuditTest, AnUploadAndTheEndAreThere) {
  grpc::ClientContext context, again;
  v1::PutFolderRequest folder;
  folder.add_files()->set_name("config.json");
  folder.mutable_files(0)->set_sha256(std::string(64, 'a'));
  folder.mutable_files(0)->set_size_bytes(3);
  v1::PutFolderResponse put;
  ASSERT_TRUE(stub_->PutFolder(&context, folder, &put).ok());
  v1::ShutdownResponse ended;
  ASSERT_TRUE(stub_->Shutdown(&again, v1::ShutdownRequest(), &ended).ok());
  const auto entries = Entries();
  ASSERT_EQ(entries.size(), 2);
  EXPECT_EQ(entries[0]["method"], "/tacc.v1.CoordinatorService/PutFolder");
  EXPECT_EQ(entries[0]["subject"], put.id());
  EXPECT_EQ(entries[0]["result"], "OK");
  EXPECT_EQ(entries[1]["method"], "/tacc.v1.CoordinatorService/Shutdown");
  EXPECT_EQ(entries[1]["result"], "OK");
  EXPECT_THAT(entries[1]["peer"].get<std::string>(), StartsWith("ipv4:127.0.0.1:"));
}

TEST_F(AuditTest, ALongNameIsCut) {
  grpc::ClientContext context;
  v1::CancelRequest cancel;
  cancel.set_job(std::string(1 << 20, 'x'));
  v1::CancelResponse cancelled;
  const grpc::Status status = stub_->Cancel(&context, cancel, &cancelled);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "no job " + std::string(128, 'x')) << "gRPC lets no megabyte pass as a message";
}

TEST_F(AuditTest, ReadersLeaveNothing) {
  grpc::ClientContext context;
  v1::ListResponse list;
  ASSERT_TRUE(stub_->List(&context, v1::ListRequest(), &list).ok());
  EXPECT_TRUE(Entries().empty());
}

TEST_F(AuditTest, AWorkerComesAndGoes) {
  {
    FakeDaemon daemon("w0");
    ASSERT_TRUE(daemon.Connect(server_->address()).ok());
  }
  ASSERT_TRUE(WaitUntil([&] { return Entries().size() == 2; }));
  const auto entries = Entries();
  EXPECT_EQ(entries[0]["subject"], "w0");
  EXPECT_EQ(entries[0]["result"], "BEGUN");
  EXPECT_EQ(entries[1]["subject"], "w0");
}

TEST_F(AuditTest, TheChainGoesOnOverRestarts) {
  ASSERT_TRUE(Submit(TestSpec("toy", dir_.path() + "/runs", 1)).ok());
  server_.reset();
  auto server = Server::Start(options_, &failpoints_, [](const absl::Status&) {});
  ASSERT_TRUE(server.ok()) << server.status();
  stub_ =
      v1::CoordinatorService::NewStub(grpc::CreateChannel((*server)->address(), grpc::InsecureChannelCredentials()));
  ASSERT_TRUE(Submit(TestSpec("toy", dir_.path() + "/runs", 1)).ok());
  const auto head = VerifyAuditLog(options_.state_dir + "/audit", "");
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->num_entries, 2);
}

// What a log of refusals has written, of so many calls at each of these times.
std::vector<nlohmann::json> Refused(const std::vector<std::pair<double, int>>& calls) {
  TestDirectory dir;
  {
    auto log = AuditLog::Open(dir.path() + "/audit", AuditLog::Options());
    EXPECT_TRUE(log.ok()) << log.status();
    double now = 0;
    RefusalLog refusals(log->get(), [&now] { return now; });
    const identity::Principal alice = {identity::Role::kUser, "alice", "vision"};
    for (const auto& [time, num_calls] : calls) {
      now = time;
      for (int i = 0; i < num_calls; ++i)
        refusals.Write({alice, "c0ffee", "/tacc.v1.CoordinatorService/Shutdown", absl::PermissionDeniedError("no")});
    }
  }
  EXPECT_TRUE(VerifyAuditLog(dir.path() + "/audit", "").ok());
  return ReadEntries(dir.path() + "/audit");
}

TEST(RefusalLogTest, SaysWhoWasRefusedWhat) {
  const auto entries = Refused({{10, 1}});
  ASSERT_EQ(entries.size(), 1);
  EXPECT_EQ(entries[0]["principal"], "user alice of project vision");
  EXPECT_EQ(entries[0]["peer"], "certificate c0ffee");
  EXPECT_EQ(entries[0]["method"], "/tacc.v1.CoordinatorService/Shutdown");
  EXPECT_EQ(entries[0]["result"], "PERMISSION_DENIED");
  EXPECT_EQ(entries[0]["detail"], "no");
}

TEST(RefusalLogTest, IsBoundedAndCountsTheRest) {
  const auto entries = Refused({{10, 5000}, {12, 7}, {500, 1}});
  ASSERT_EQ(entries.size(), 103);
  EXPECT_EQ(entries[99]["detail"], "no");
  EXPECT_EQ(entries[100]["detail"], "(and 4900 more refused calls before this one) no");
  EXPECT_EQ(entries[101]["detail"], "no");
  EXPECT_EQ(entries[102]["detail"], "(and 5 more refused calls before this one) no");
}

TEST(RefusalLogTest, StrangersHideNobodyAndWriteLittle) {
  TestDirectory dir;
  {
    auto log = AuditLog::Open(dir.path() + "/audit", AuditLog::Options());
    ASSERT_TRUE(log.ok()) << log.status();
    double now = 0;
    RefusalLog refusals(log->get(), [&now] { return now; });
    const identity::Principal viewer = {identity::Role::kViewer, "eve", ""};
    for (; now < 3600; now += 0.5)
      refusals.Write({std::nullopt, "", "/tacc.v1.CoordinatorService/List", absl::UnauthenticatedError("nobody")});
    refusals.Write({viewer, "c0ffee", "/tacc.v1.CoordinatorService/Shutdown", absl::PermissionDeniedError("no")});
    refusals.Write({std::nullopt, "c0ffee", "/tacc.v1.CoordinatorService/List", absl::UnauthenticatedError("expired")});
  }
  const auto entries = ReadEntries(dir.path() + "/audit");
  EXPECT_NEAR(static_cast<double>(entries.size()), 100 + 60 + 2, 2);
  EXPECT_EQ(entries[entries.size() - 2]["principal"], "viewer eve");
  EXPECT_EQ(entries[entries.size() - 2]["detail"], "no");
  EXPECT_EQ(entries.back()["detail"], "expired");
}

class RefusalTest : public TlsServerTest {};

TEST_F(RefusalTest, IsInTheAuditLog) {
  const std::string log = options_.state_dir + "/audit/000001.jsonl";
  EXPECT_EQ(Call(Connect("viewer"), "/tacc.v1.CoordinatorService/Shutdown", "").error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Call(Connect("worker"), "/tacc.v1.CoordinatorService/Nothing", "").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(WaitUntil([&] { return absl::StrContains(ReadFile(log), "CoordinatorService/Nothing"); }));
  const std::string entries = ReadFile(log);
  for (const char* part : {"viewer viewer may not end the coordinator", "\"PERMISSION_DENIED\"", "\"UNIMPLEMENTED\"",
                           "\"principal\":\"viewer viewer\"", "\"principal\":\"worker worker\""})
    EXPECT_THAT(entries, HasSubstr(part));
  const std::string certificate = identity::Fingerprint(ReadFile(Folder("viewer") + "/tls.pem"));
  EXPECT_EQ(certificate.size(), 64u);
  EXPECT_THAT(entries, HasSubstr("\"peer\":\"certificate " + certificate));
}

TEST_F(RefusalTest, ALongCallIsWhoseItWasWhenItBegan) {
  const std::time_t end = std::time(nullptr) + 8;
  ASSERT_TRUE(identity::AddFolder(pki_, {{identity::Role::kUser, "carol", "vision"}, {}, {now_ - 60, end}}).ok());
  grpc::ClientContext context;
  v1::PutFileResponse response;
  const auto stub = Client("carol");
  const auto stream = stub->PutFile(&context, &response);
  v1::PutFileRequest request;
  request.set_sha256(std::string(64, 'a'));
  request.set_size_bytes(1);
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(
      WaitUntil([&] { return std::filesystem::exists(options_.state_dir + "/uploads/partial/" + request.sha256()); }));
  EXPECT_TRUE(WaitUntil([end] { return std::time(nullptr) > end; })) << "its certificate has expired";
  stream->WritesDone();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DATA_LOSS);
  const auto entries = ReadEntries(options_.state_dir + "/audit");
  ASSERT_EQ(entries.size(), 1);
  EXPECT_EQ(entries[0]["method"], "/tacc.v1.CoordinatorService/PutFile");
  EXPECT_EQ(entries[0]["principal"], "user carol of project vision");
}

}  // namespace
}  // namespace tacc::coordinator
