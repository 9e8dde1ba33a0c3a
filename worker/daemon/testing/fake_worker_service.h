// For tests: a coordinator that keeps what it receives and sends what the test tells it to.
#ifndef TACC_WORKER_DAEMON_TESTING_FAKE_WORKER_SERVICE_H_
#define TACC_WORKER_DAEMON_TESTING_FAKE_WORKER_SERVICE_H_

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "content_store/file_list.h"
#include "machine/unix_socket.h"
#include "nlohmann/json.hpp"
#include "tacc/v1/worker.grpc.pb.h"
#include "worker/checkpoint/files/sha256.h"

namespace tacc::worker {

// Thread-safe.
class FakeWorkerService : public v1::WorkerService::Service {
 public:
  ~FakeWorkerService() override { Stop(); }

  // At a port, or at `socket`.
  void Start(const std::string& socket = "") {
    grpc::ServerBuilder builder;
    if (socket.empty()) {
      builder.AddListeningPort(absl::StrCat("127.0.0.1:", port_), grpc::InsecureServerCredentials(), &port_);
    } else {
      builder.AddListeningPort(UnixAddress(socket), grpc::InsecureServerCredentials());
    }
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void Stop() {
    if (server_ == nullptr) return;
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
    server_ = nullptr;
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::Status Attach(grpc::ServerContext* context,
                      grpc::ServerReaderWriter<v1::AttachResponse, v1::AttachRequest>* stream) override {
    v1::AttachRequest message;
    if (!stream->Read(&message) || !message.has_register_())
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no Register");
    {
      absl::MutexLock lock(&mutex_);
      registrations_.push_back(message.register_());
      if (!refusal_.ok()) return refusal_;
      v1::AttachResponse welcome;
      welcome.mutable_registered()->set_lease_seconds(10);
      welcome.mutable_registered()->set_heartbeat_seconds(0.1);
      stream->Write(welcome);
      stream_ = stream;
    }
    while (stream->Read(&message)) {
      absl::MutexLock lock(&mutex_);
      received_.push_back(message);
      if (message.has_rank_report() && acknowledges_) {
        v1::AttachResponse ack;
        *ack.mutable_ack()->mutable_id() = message.rank_report().id();
        ack.mutable_ack()->set_sequence(message.rank_report().sequence());
        stream->Write(ack);
      }
    }
    absl::MutexLock lock(&mutex_);
    stream_ = nullptr;
    return grpc::Status::OK;
  }

  // Has a folder that a client has uploaded; returns its id.
  std::string AddUpload(const std::map<std::string, std::string>& contents) {
    FileList files;
    absl::MutexLock lock(&mutex_);
    for (const auto& [name, content] : contents) {
      Sha256 sha256;
      sha256.Update(content.data(), content.size());
      files.push_back({name, sha256.HexDigest(), static_cast<int64_t>(content.size())});
      contents_[files.back().sha256] = content;
    }
    uploads_[FolderId(files)] = files;
    return FolderId(files);
  }
  // Further files break off after so many bytes, so many times, as if the connection broke or as `with` says.
  void BreakFiles(size_t after, int times,
                  grpc::Status with = {grpc::StatusCode::UNAVAILABLE, "the connection broke"}) {
    absl::MutexLock lock(&mutex_);
    break_after_ = after;
    breaks_ = times;
    break_with_ = std::move(with);
  }
  int64_t sent_bytes() {
    absl::MutexLock lock(&mutex_);
    return sent_bytes_;
  }
  grpc::Status GetUpload(grpc::ServerContext* context, const v1::GetUploadRequest* request,
                         v1::GetUploadResponse* response) override {
    absl::MutexLock lock(&mutex_);
    const auto found = uploads_.find(request->id());
    if (found == uploads_.end()) return grpc::Status(grpc::StatusCode::NOT_FOUND, "no upload");
    for (const ListedFile& file : found->second) {
      v1::UploadFile& told = *response->add_files();
      told.set_name(file.name);
      told.set_sha256(file.sha256);
      told.set_size_bytes(file.num_bytes);
    }
    return grpc::Status::OK;
  }
  grpc::Status GetFile(grpc::ServerContext* context, const v1::GetFileRequest* request,
                       grpc::ServerWriter<v1::GetFileResponse>* writer) override {
    constexpr size_t kPiece = 4;
    absl::MutexLock lock(&mutex_);
    const std::string& content = contents_[request->sha256()];
    size_t sent = 0;
    for (size_t at = static_cast<size_t>(request->offset()); at < content.size(); at += kPiece) {
      if (breaks_ > 0 && sent >= break_after_) {
        --breaks_;
        return break_with_;
      }
      v1::GetFileResponse piece;
      piece.set_data(content.substr(at, kPiece));
      sent += piece.data().size();
      sent_bytes_ += static_cast<int64_t>(piece.data().size());
      writer->Write(piece);
    }
    return grpc::Status::OK;
  }

  void Send(const v1::AttachResponse& message) {
    absl::MutexLock lock(&mutex_);
    if (stream_ != nullptr) stream_->Write(message);
  }
  void Refuse(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    refusal_ = std::move(status);
  }
  void Acknowledge(bool on) {
    absl::MutexLock lock(&mutex_);
    acknowledges_ = on;
  }
  std::vector<v1::Register> registrations() {
    absl::MutexLock lock(&mutex_);
    return registrations_;
  }
  std::vector<v1::AttachRequest> received() {
    absl::MutexLock lock(&mutex_);
    return received_;
  }
  // Every report, as "attempt:sequence what".
  std::vector<std::string> Reports() {
    std::vector<std::string> texts;
    for (const v1::AttachRequest& message : received()) {
      if (!message.has_rank_report()) continue;
      const v1::RankReport& report = message.rank_report();
      std::string text = absl::StrCat(report.id().attempt(), ":", report.sequence(), " ");
      if (report.has_event()) {
        text += nlohmann::json::parse(report.event())["event"].get<std::string>();
      } else if (report.has_log()) {
        text += "log";
        for (const std::string& line : report.log().lines()) text += " [" + line + "]";
      } else {
        const v1::RankExited& exited = report.exited();
        absl::StrAppend(&text, "exit ", exited.has_exit_code() ? absl::StrCat(exited.exit_code()) : "-", " ",
                        exited.signal(), exited.killed() ? " killed" : "",
                        exited.start_error().empty() ? "" : " " + exited.start_error());
      }
      texts.push_back(text);
    }
    return texts;
  }

  static v1::RankId Id(int attempt) {
    v1::RankId id;
    id.set_job("job-1");
    id.set_attempt(attempt);
    return id;
  }
  void StartRank(int attempt, const std::string& start = R"({"job":"job-1","program":"","threads":0})") {
    v1::AttachResponse message;
    *message.mutable_start_rank()->mutable_id() = Id(attempt);
    message.mutable_start_rank()->set_start(start);
    message.mutable_start_rank()->set_program("tacc.graph 1\n");
    Send(message);
  }
  void Command(int attempt, const std::string& line) {
    v1::AttachResponse message;
    *message.mutable_rank_command()->mutable_id() = Id(attempt);
    message.mutable_rank_command()->set_line(line);
    Send(message);
  }
  void KillRank(int attempt) {
    v1::AttachResponse message;
    *message.mutable_kill_rank()->mutable_id() = Id(attempt);
    Send(message);
  }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  absl::Mutex mutex_;
  grpc::ServerReaderWriter<v1::AttachResponse, v1::AttachRequest>* stream_ = nullptr;
  grpc::Status refusal_;
  bool acknowledges_ = true;
  std::vector<v1::Register> registrations_;
  std::vector<v1::AttachRequest> received_;
  std::map<std::string, FileList> uploads_;
  std::map<std::string, std::string> contents_;  // By SHA-256.
  size_t break_after_ = 0;
  int breaks_ = 0;
  grpc::Status break_with_;
  int64_t sent_bytes_ = 0;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_TESTING_FAKE_WORKER_SERVICE_H_
