// For tests: whole commands against a fake coordinator, with their exit codes, stdout and stderr.
#ifndef TACC_CLIENT_TACCCTL_TESTING_TACCCTL_TEST_H_
#define TACC_CLIENT_TACCCTL_TESTING_TACCCTL_TEST_H_

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "client/taccctl/taccctl.h"
#include "client/taccctl/testing/fake_coordinator.h"
#include "gtest/gtest.h"

namespace tacc::client {

class TaccctlTest : public testing::Test {
 protected:
  TaccctlTest() {
    directory_ = testing::TempDir() + "taccctl_test_" + std::to_string(getpid()) +
                 testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(directory_);
    environment_ = {
        {"TACC_ADDRESS", server_.address()}, {"XDG_STATE_HOME", directory_}, {"HOME", directory_}, {"TZ", "UTC"}};
    job_.set_id("tiny-1");
    job_.set_name("tiny");
    job_.set_max_steps(10);
    job_.set_phase(v1::PHASE_RUNNING);
    server_.workers = [](const v1::ListWorkersRequest&, v1::ListWorkersResponse* response) {
      for (const char* state : {"idle", "busy", "lost"}) response->add_workers()->set_state(state);
      return grpc::Status::OK;
    };
    server_.get = [this](const v1::GetRequest& request, v1::GetResponse* response) {
      if (request.job() != "tiny-1" && request.job() != "tiny")
        return grpc::Status(grpc::StatusCode::NOT_FOUND, "no job \"" + request.job() + "\"");
      *response->mutable_job() = job_;
      return grpc::Status::OK;
    };
    server_.watch = [this](grpc::ServerContext*, const v1::WatchRequest& request,
                           grpc::ServerWriter<v1::WatchResponse>* writer) {
      for (const v1::WatchResponse& item : items_) {
        if (item.cursor() > request.cursor()) writer->Write(item);
      }
      return grpc::Status::OK;
    };
  }
  ~TaccctlTest() override { std::filesystem::remove_all(directory_); }

  int Run(const std::vector<std::string>& arguments) {
    std::ostringstream out, err;
    std::istringstream in(in_);
    Context context{"taccctl", in, out, err, is_terminal_, 80, environment_, directory_, interrupt_};
    const int code = RunTaccctl(arguments, context);
    out_ = out.str();
    err_ = err.str();
    return code;
  }

  std::string WriteFile(const std::string& name, const std::string& text) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  std::string JobFile() {
    return WriteFile("job.yaml", "name: tiny\nmodel: {path: m}\ndata: {path: d}\ntrain: {max_steps: 10}\n");
  }

  // A program beside taccctl.
  void WriteTool(const std::string& name, const std::string& script) {
    const std::string path = WriteFile(name, "#!/bin/sh\n" + script);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

  void AddStep(int step, double loss) {
    v1::WatchResponse item;
    item.set_cursor(items_.size() + 1);
    item.mutable_step()->set_step(step);
    item.mutable_step()->set_loss(loss);
    item.mutable_step()->set_grad_norm(0.1);
    item.mutable_step()->set_learning_rate(3e-4);
    item.mutable_step()->set_tokens_per_second(8192);
    item.mutable_step()->set_mfu(0.413);
    items_.push_back(item);
  }

  void AddEvent(const std::string& type, const std::string& message) {
    v1::WatchResponse item;
    item.set_cursor(items_.size() + 1);
    item.mutable_event()->set_type(type);
    item.mutable_event()->set_message(message);
    items_.push_back(item);
  }

  FakeCoordinator server_;
  Interrupt interrupt_;
  std::string directory_;
  std::map<std::string, std::string> environment_;
  v1::Job job_;
  std::vector<v1::WatchResponse> items_;
  bool is_terminal_ = false;
  std::string in_, out_, err_;
};

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_TESTING_TACCCTL_TEST_H_
