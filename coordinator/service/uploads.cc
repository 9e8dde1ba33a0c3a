#include "coordinator/service/uploads.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/service/grpc_status.h"
#include "identity/access.h"
#include "proto/tacc/v1/upload_name.h"

namespace tacc::coordinator {
namespace {

constexpr int64_t kPieceBytes = 1 << 20;
constexpr size_t kMaxShownBytes = 64;
constexpr auto kLoopPatience = std::chrono::seconds(5);

std::set<std::string> UploadsOf(const v1::JobSpec& spec) {
  std::set<std::string> ids;
  for (const std::string& path : {spec.model().path(), spec.model().graph()}) {
    if (std::string id = UploadId(path); !id.empty()) ids.insert(std::move(id));
  }
  return ids;
}

// Of what is there and what is not alike. A daemon that comes too early or too late asks again with its next job.
absl::Status NotToFetch(const char* what, const std::string& hash) {
  return absl::FailedPreconditionError(absl::StrCat("no job for which this worker is to fetch a folder names ", what,
                                                    " ", hash.substr(0, kMaxShownBytes)));
}

// Receives one file. Lives until gRPC is done with the call.
class PutFileReactor : public grpc::ServerReadReactor<v1::PutFileRequest> {
 public:
  PutFileReactor(const ContentStore& store, std::atomic<int64_t>& received) : store_(store), received_(received) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    // At its end, or the connection broke: then the file is not whole, and what came of it stays.
    const absl::Status status = ok ? Take() : writer_ == nullptr ? absl::OkStatus() : writer_->Finish();
    if (ok && status.ok()) return StartRead(&request_);
    writer_.reset();  // Its lock is gone before the client can ask again.
    Finish(absl::IsAlreadyExists(status) ? grpc::Status::OK : ToGrpc(status));
  }
  void OnDone() override { delete this; }

 private:
  absl::Status Take() {
    if (writer_ == nullptr) {
      auto writer = store_.Write(request_.sha256(), request_.size_bytes(), request_.offset());
      if (!writer.ok()) return writer.status();
      writer_ = *std::move(writer);
    }
    received_ += static_cast<int64_t>(request_.data().size());
    return writer_->Append(request_.data());
  }

  const ContentStore& store_;
  std::atomic<int64_t>& received_;
  std::unique_ptr<ContentStore::Writer> writer_;
  v1::PutFileRequest request_;
};

// Sends one file. Lives until gRPC is done with the call.
class GetFileReactor : public grpc::ServerWriteReactor<v1::GetFileResponse> {
 public:
  // `may`: why the caller does not get it.
  GetFileReactor(const ContentStore& store, const v1::GetFileRequest& request, const absl::Status& may,
                 std::atomic<int64_t>& sent)
      : next_(request.offset()), sent_(sent) {
    const absl::Status status = may.ok() ? Open(store, request.sha256()) : may;
    status.ok() ? Next() : Finish(ToGrpc(status));
  }

  void OnWriteDone(bool ok) override { ok ? Next() : Finish(grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }

 private:
  absl::Status Open(const ContentStore& store, const std::string& sha256) {
    auto file = store.Read(sha256);
    if (!file.ok()) return file.status();
    file_ = *std::move(file);
    if (next_ < 0 || next_ > file_->num_bytes())
      return absl::OutOfRangeError(absl::StrCat("byte ", next_, " of a file of ", file_->num_bytes()));
    return absl::OkStatus();
  }

  void Next() {
    const int64_t count = std::min(kPieceBytes, file_->num_bytes() - next_);
    if (count == 0) return Finish(grpc::Status::OK);
    std::string& data = *response_.mutable_data();
    data.resize(static_cast<size_t>(count));
    if (const absl::Status status = file_->Read(next_, data.data(), count); !status.ok()) return Finish(ToGrpc(status));
    next_ += count;
    sent_ += count;
    StartWrite(&response_);
  }

  std::unique_ptr<worker::InputFile> file_;
  int64_t next_;
  std::atomic<int64_t>& sent_;
  v1::GetFileResponse response_;
};

}  // namespace

absl::StatusOr<std::set<std::string>> Uploads::NamedBy(JobsOf jobs) const {
  auto promise = std::make_shared<std::promise<std::set<std::string>>>();
  auto future = promise->get_future();
  loop_.Read([promise, jobs = std::move(jobs)](const Loop::View& view) {
    std::set<std::string> ids;
    for (const JobState* job : jobs(view.core)) ids.merge(UploadsOf(job->spec));
    promise->set_value(std::move(ids));
  });
  if (future.wait_for(kLoopPatience) != std::future_status::ready)
    return absl::UnavailableError("the coordinator waits for its disk; its log says why");
  return future.get();
}

absl::StatusOr<std::optional<std::set<std::string>>> Uploads::Readable(
    const grpc::CallbackServerContext& context) const {
  const absl::StatusOr<std::optional<identity::Principal>> peer = identity::PeerOf(context);
  if (!peer.ok()) return peer.status();
  if (!peer->has_value()) return std::nullopt;
  absl::StatusOr<std::set<std::string>> ids = NamedBy([caller = **peer](const Core& core) {
    std::vector<const JobState*> jobs;
    const std::map<std::string, Worker>& workers = core.members().workers();
    // A worker's name begins with that of its certificate.
    for (auto it = workers.lower_bound(caller.name); it != workers.end() && absl::StartsWith(it->first, caller.name);
         ++it) {
      if (!identity::IsWorker(caller, it->first)) continue;
      for (const std::string& id : it->second.fetches) {
        const auto job = core.jobs().find(id);
        if (job != core.jobs().end() && !job->second.ended.has_value()) jobs.push_back(&job->second);
      }
    }
    return jobs;
  });
  if (!ids.ok()) return ids.status();
  return *std::move(ids);
}

absl::Status Uploads::Check(const v1::JobSpec& spec) const {
  for (const std::string& id : UploadsOf(spec)) {
    const absl::StatusOr<FileList> files = store_.List(id);
    if (absl::IsNotFound(files.status())) {
      return absl::FailedPreconditionError(
          absl::StrCat("the coordinator has no upload ", id, ": it was never uploaded to this one, or was removed to ",
                       "make room after no job had used it for long; upload the folder again (tacc.Client.upload)"));
    }
    if (!files.ok()) return files.status();
  }
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* Uploads::PutFolder(grpc::CallbackServerContext* context, const v1::PutFolderRequest& request,
                                             v1::PutFolderResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  FileList files;
  for (const v1::UploadFile& file : request.files()) files.push_back({file.name(), file.sha256(), file.size_bytes()});
  const auto prepare = [&]() -> absl::Status {
    const absl::StatusOr<std::set<std::string>> in_use = NamedBy([](const Core& core) {
      std::vector<const JobState*> jobs;
      for (const auto& [id, job] : core.jobs()) {
        if (!job.ended.has_value()) jobs.push_back(&job);
      }
      return jobs;
    });
    if (!in_use.ok()) return in_use.status();
    const absl::StatusOr<ContentStore::Contents> contents = store_.Prepare(files, *in_use);
    if (!contents.ok()) return contents.status();
    response->set_id(contents->id);
    response->set_whole(contents->is_whole);
    for (const int64_t bytes : contents->num_bytes) response->add_received_bytes(bytes);
    return absl::OkStatus();
  };
  reactor->Finish(ToGrpc(prepare()));
  return reactor;
}

grpc::ServerReadReactor<v1::PutFileRequest>* Uploads::PutFile() {
  return new PutFileReactor(store_, traffic_.received_bytes);
}

grpc::ServerUnaryReactor* Uploads::GetUpload(grpc::CallbackServerContext* context, const v1::GetUploadRequest& request,
                                             v1::GetUploadResponse* response) const {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto list = [&]() -> absl::StatusOr<FileList> {
    const auto readable = Readable(*context);
    if (!readable.ok()) return readable.status();
    if (readable->has_value() && (*readable)->count(request.id()) == 0) return NotToFetch("upload", request.id());
    return store_.List(request.id());
  };
  const absl::StatusOr<FileList> files = list();
  if (files.ok()) {
    for (const ListedFile& file : *files) {
      v1::UploadFile& told = *response->add_files();
      told.set_name(file.name);
      told.set_sha256(file.sha256);
      told.set_size_bytes(file.num_bytes);
    }
  }
  reactor->Finish(ToGrpc(files.status()));
  return reactor;
}

grpc::ServerWriteReactor<v1::GetFileResponse>* Uploads::GetFile(grpc::CallbackServerContext* context,
                                                                const v1::GetFileRequest& request) {
  // Costs one more reading of the lists of those uploads: two of a job, of a line a file.
  const auto may_read = [&]() -> absl::Status {
    const auto readable = Readable(*context);
    if (!readable.ok() || !readable->has_value()) return readable.status();
    for (const std::string& id : **readable) {
      const absl::StatusOr<FileList> files = store_.List(id);
      if (!files.ok()) continue;  // It was removed; then so are its files, but for those that others have.
      const auto is_asked_for = [&request](const ListedFile& file) { return file.sha256 == request.sha256(); };
      if (std::any_of(files->begin(), files->end(), is_asked_for)) return absl::OkStatus();
    }
    return NotToFetch("a file with SHA-256", request.sha256());
  };
  return new GetFileReactor(store_, request, may_read(), traffic_.sent_bytes);
}

}  // namespace tacc::coordinator
