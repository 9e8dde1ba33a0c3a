#include "worker/daemon/answers/upload_cache.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "confinement/confine.h"
#include "machine/clock.h"
#include "tacc/v1/worker.grpc.pb.h"

namespace tacc::worker {
namespace {

constexpr auto kCallTimeout = std::chrono::seconds(10);
constexpr absl::Duration kPause = absl::Milliseconds(200);

absl::Status FromGrpc(const grpc::Status& status) {
  // It has too many calls now. Room that is used up is told by our own store alone.
  if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED)
    return absl::UnavailableError(status.error_message());
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace

struct UploadCache::Channel {
  std::unique_ptr<v1::WorkerService::Stub> stub;
};

UploadCache::~UploadCache() {
  is_ending_ = true;
  absl::MutexLock lock(&mutex_);
  if (call_ != nullptr) call_->TryCancel();
}

std::string UploadCache::Path(const std::string& id) const {
  return ContentStore::FolderPathIn(options_.directory, id);
}

void UploadCache::Fetch(const std::string& id) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = fetched_.find(id);
    if (found != fetched_.end() && !found->second.is_over) {
      found->second.is_asked_again = true;
      return;
    }
    fetched_[id] = Fetched();
  }
  thread_.Run([this, id] {
    while (true) {
      const absl::Status status = FetchNow(id);
      absl::MutexLock lock(&mutex_);
      Fetched& fetched = fetched_[id];
      // What the coordinator refused to an earlier job it may give to this one.
      if (std::exchange(fetched.is_asked_again, false) && absl::IsFailedPrecondition(status) && !is_ending_) continue;
      fetched.status = status;
      fetched.is_over = true;
      return;
    }
  });
}

absl::Status UploadCache::Wait(const std::string& id, double seconds) {
  absl::MutexLock lock(&mutex_);
  const Fetched* fetched = &fetched_[id];
  if (mutex_.AwaitWithTimeout(absl::Condition(&fetched->is_over), absl::Seconds(seconds))) return fetched->status;
  return absl::DeadlineExceededError(absl::StrCat("upload ", id, " is on its way from the coordinator at ",
                                                  options_.coordinator, " to ", options_.directory));
}

absl::Status UploadCache::Hold(const std::string& id, double seconds) {
  const absl::Status status = Wait(id, seconds);
  // A job that has not run waits for what may pass.
  if (absl::IsDeadlineExceeded(status)) return absl::UnavailableError(status.message());
  if (!status.ok()) return status;
  absl::MutexLock lock(&mutex_);
  if (held_id_ == id) return status;
  absl::StatusOr<std::unique_ptr<ContentStore::Use>> use = store_->Hold(id);
  if (!use.ok()) return absl::UnavailableError(use.status().message());
  held_ = *std::move(use);
  held_id_ = id;
  return absl::OkStatus();
}

std::unique_ptr<grpc::ClientContext> UploadCache::Begin() {
  auto context = std::make_unique<grpc::ClientContext>();
  absl::MutexLock lock(&mutex_);
  call_ = context.get();
  if (is_ending_) context->TryCancel();
  return context;
}

void UploadCache::End() {
  absl::MutexLock lock(&mutex_);
  call_ = nullptr;
}

template <typename Work>
auto UploadCache::AsUser(const Work& work) const {
  decltype(work()) result = absl::InternalError("not done");
  const absl::Status status = RunConfined({AllowedPaths(), options_.user}, [&] { result = work(); });
  if (!status.ok()) result = status;
  return result;
}

absl::Status UploadCache::Open() {
  if (store_ == nullptr) {
    auto store = AsUser([this] { return ContentStore::Open(options_.directory, options_.limits); });
    if (!store.ok()) return store.status();
    absl::MutexLock lock(&mutex_);
    store_ = *std::move(store);
  }
  if (channel_ == nullptr) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // A connection of its own, beside that of the daemon's stream: its heartbeats do not wait behind files.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    // A coordinator that has gone without a word is noticed.
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
    channel_ = std::make_shared<Channel>();
    channel_->stub = v1::WorkerService::NewStub(identity::MakeChannel(options_.coordinator, options_.tls, arguments));
  }
  return absl::OkStatus();
}

absl::StatusOr<FileList> UploadCache::List(const std::string& id) {
  v1::GetUploadRequest request;
  v1::GetUploadResponse response;
  request.set_id(id);
  const std::unique_ptr<grpc::ClientContext> context = Begin();
  context->set_deadline(std::chrono::system_clock::now() + kCallTimeout);
  const grpc::Status status = channel_->stub->GetUpload(context.get(), request, &response);
  End();
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) {
    // Not NotFound, as of a path that is away.
    return absl::FailedPreconditionError(
        absl::StrCat("the coordinator has upload ", id, " no more; upload the folder again (tacc.Client.upload)"));
  }
  if (!status.ok()) return FromGrpc(status);
  FileList files;
  for (const v1::UploadFile& file : response.files()) files.push_back({file.name(), file.sha256(), file.size_bytes()});
  if (absl::Status checked = CheckFileList(files); !checked.ok()) return checked;
  if (FolderId(files) != id)
    return absl::DataLossError(absl::StrCat("the coordinator's list of upload ", id, " is of another one"));
  return files;
}

absl::Status UploadCache::FetchFile(const ListedFile& file, int64_t offset) {
  auto writer = AsUser([&] { return store_->Write(file.sha256, file.num_bytes, offset); });
  if (!writer.ok()) return writer.status();
  v1::GetFileRequest request;
  request.set_sha256(file.sha256);
  request.set_offset(offset);
  const std::unique_ptr<grpc::ClientContext> context = Begin();
  const std::unique_ptr<grpc::ClientReader<v1::GetFileResponse>> reader =
      channel_->stub->GetFile(context.get(), request);
  absl::Status status;
  v1::GetFileResponse piece;
  while (status.ok() && reader->Read(&piece)) status = (*writer)->Append(piece.data());
  if (!status.ok()) context->TryCancel();
  const grpc::Status end = reader->Finish();
  End();
  if (status.ok() && !end.ok()) status = FromGrpc(end);
  return AsUser([&] {
    if (status.ok()) status = (*writer)->Finish();
    writer->reset();  // It may remove its file.
    return status;
  });
}

absl::Status UploadCache::FetchNow(const std::string& id) {
  if (absl::Status status = Open(); !status.ok()) return status;
  // What is here is not asked for again.
  absl::StatusOr<FileList> files = AsUser([&] { return store_->List(id); });
  double since = SteadySeconds();
  int64_t had = -1;
  absl::Status trouble;
  while (!is_ending_ && SteadySeconds() - since < options_.patience_seconds) {
    if (!files.ok()) files = List(id);
    if (files.ok()) {
      const absl::StatusOr<ContentStore::Contents> contents = AsUser([&] { return store_->Prepare(*files, {}); });
      if (!contents.ok()) return contents.status();
      if (contents->is_whole) return absl::OkStatus();
      int64_t has = 0;
      for (const int64_t bytes : contents->num_bytes) has += bytes;
      // Also what another daemon brings.
      if (has > had) since = SteadySeconds();
      had = std::max(had, has);
      trouble = absl::OkStatus();
      for (size_t i = 0; i < files->size() && trouble.ok(); ++i) {
        if (contents->num_bytes[i] == (*files)[i].num_bytes) continue;
        trouble = FetchFile((*files)[i], contents->num_bytes[i]);
        if (absl::IsAlreadyExists(trouble)) trouble = absl::OkStatus();
      }
      if (trouble.ok()) continue;
    } else {
      trouble = files.status();
    }
    const bool may_pass = absl::IsUnavailable(trouble) || absl::IsOutOfRange(trouble) ||
                          absl::IsDeadlineExceeded(trouble) || absl::IsDataLoss(trouble);
    if (!may_pass) return trouble;
    absl::SleepFor(kPause);
  }
  return absl::UnavailableError(absl::StrCat("upload ", id, " cannot be fetched from the coordinator at ",
                                             options_.coordinator, ": ", trouble.message()));
}

}  // namespace tacc::worker
