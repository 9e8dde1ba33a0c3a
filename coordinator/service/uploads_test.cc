// Uploads over gRPC, with a coordinator in this process.
#include "coordinator/service/uploads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "coordinator/service/server.h"
#include "coordinator/testing/fake_daemon.h"
#include "nlohmann/json.hpp"

namespace tacc::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A folder with one file, as a client sends it.
class UploadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.version = "0.1.0";
    options_.listen = "127.0.0.1:0";
    options_.exposure = ServerOptions::Exposure::kInsecure;
    options_.state_dir = dir_.path() + "/state";
    options_.plan_binary = dir_.Script("tacc-plan", FakePlan(1));
    options_.data_binary = dir_.Script("tacc-data", FakeData());
    Start();
  }
  void Start() {
    server_.reset();
    auto server = Server::Start(options_, &failpoints_, [](const absl::Status&) {});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ =
        v1::CoordinatorService::NewStub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }
  grpc::Status Submit(const v1::JobSpec& spec) {
    grpc::ClientContext context;
    v1::SubmitRequest request;
    v1::SubmitResponse response;
    *request.mutable_spec() = spec;
    return stub_->Submit(&context, request, &response);
  }
  static constexpr char kSha256[] = "b5d4045c3f466fa91fe2cc6abe79232a1a57cdf104f7a26e716e0a1e2789df78";  // Of "ABC".
  v1::PutFolderResponse PutFolder() {
    v1::PutFolderRequest request;
    request.add_files()->set_name("config.json");
    request.mutable_files(0)->set_sha256(kSha256);
    request.mutable_files(0)->set_size_bytes(3);
    v1::PutFolderResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->PutFolder(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  grpc::Status PutFile(const std::vector<std::string>& pieces, int64_t offset = 0) {
    grpc::ClientContext context;
    v1::PutFileResponse response;
    auto writer = stub_->PutFile(&context, &response);
    for (const std::string& piece : pieces) {
      v1::PutFileRequest request;
      if (&piece == &pieces[0]) {
        request.set_sha256(kSha256);
        request.set_size_bytes(3);
        request.set_offset(offset);
      }
      request.set_data(piece);
      if (!writer->Write(request)) break;
    }
    writer->WritesDone();
    return writer->Finish();
  }

  TestDirectory dir_;
  Failpoints failpoints_;
  ServerOptions options_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::CoordinatorService::Stub> stub_;
};

TEST_F(UploadTest, AJobNamesWhatWasUploadedAndWorkersFetchIt) {
  EXPECT_THAT(PutFolder().received_bytes(), ElementsAre(0));
  EXPECT_EQ(PutFile({"ABD"}).error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(PutFile({"AB"}).error_code(), grpc::StatusCode::DATA_LOSS) << "what came of it stays";
  EXPECT_THAT(PutFolder().received_bytes(), ElementsAre(2));
  EXPECT_EQ(PutFile({"C"}, 3).error_code(), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_TRUE(PutFile({"C"}, 2).ok());
  Start();
  const v1::PutFolderResponse whole = PutFolder();
  EXPECT_TRUE(whole.whole());

  v1::JobSpec spec = TestSpec("toy", dir_.path() + "/runs", 1);
  spec.mutable_model()->set_path("upload:" + std::string(64, '0'));
  const grpc::Status refused = Submit(spec);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("the coordinator has no upload 0000"));
  EXPECT_THAT(refused.error_message(), HasSubstr("upload the folder again (tacc.Client.upload)"));
  spec.mutable_model()->set_path("upload:" + whole.id());
  const grpc::Status status = Submit(spec);
  ASSERT_TRUE(status.ok()) << status.error_message();
  FakeDaemon daemon("w0");
  ASSERT_TRUE(daemon.Connect(server_->address()).ok());
  daemon.WaitForRank(1);
  EXPECT_EQ(nlohmann::json::parse(daemon.Starts()[0].start())["model_dir"], "upload:" + whole.id());

  const auto worker =
      v1::WorkerService::NewStub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  v1::GetFileRequest request;
  request.set_sha256(kSha256);
  request.set_offset(1);
  grpc::ClientContext context;
  v1::GetFileResponse piece;
  const auto reader = worker->GetFile(&context, request);
  ASSERT_TRUE(reader->Read(&piece));
  EXPECT_EQ(piece.data(), "BC");
  EXPECT_FALSE(reader->Read(&piece));
  EXPECT_TRUE(reader->Finish().ok());
  request.set_sha256(std::string(64, '0'));
  grpc::ClientContext missing;
  EXPECT_EQ(worker->GetFile(&missing, request)->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(UploadTest, WhatHasNoRoomIsRefusedBeforeItIsSent) {
  options_.max_upload_bytes = 2;
  Start();
  v1::PutFolderRequest request;
  request.add_files()->set_name("config.json");
  request.mutable_files(0)->set_sha256(kSha256);
  request.mutable_files(0)->set_size_bytes(3);
  v1::PutFolderResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub_->PutFolder(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("no room in "));
  EXPECT_EQ(PutFile({"ABC"}).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << "of a client that did not ask, too";
}

}  // namespace
}  // namespace tacc::coordinator
