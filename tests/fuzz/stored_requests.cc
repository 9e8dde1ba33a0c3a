// Requests of clients and workers that are answered from files: what is watched, logs and uploads. The input is
// messages, each a byte for its kind, two for its length (little-endian), and so many bytes of the message. Messages of
// one kind PutFile behind one another are one stream.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "content_store/content_store.h"
#include "coordinator/service/log_files.h"
#include "coordinator/store/store.h"
#include "failpoint/failpoint.h"
#include "tacc/v1/coordinator.pb.h"
#include "tacc/v1/worker.pb.h"
#include "tests/fuzz/input.h"

namespace tacc::coordinator {
namespace {

// In the order of their bytes.
enum class Kind { kWatch, kLogs, kPutFolder, kPutFile, kGetUpload, kGetFile };
constexpr int kNumKinds = 6;
constexpr char kJob[] = "toy-1";
constexpr int kNumRecords = 20;
constexpr int64_t kMaxUploadBytes = 1 << 20;

template <typename Message>
std::optional<Message> Parse(absl::string_view bytes) {
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return std::nullopt;
  return message;
}

std::string MakeFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "stored-XXXXXX").string();
  fuzz::Require(mkdtemp(path.data()) != nullptr, "the machine has room for a folder");
  return path;
}

// A job's events, metrics and logs, which requests only read.
class Records {
 public:
  Records() {
    auto store = Store::Open(folder_ + "/tacc.db", Store::Options(), &failpoints_);
    fuzz::Require(store.ok(), "a store is made");
    store_ = *std::move(store);
    Decisions decisions;
    for (int i = 1; i <= kNumRecords; ++i) {
      StoreEvent event{kJob, {}};
      event.event.set_message("event");
      decisions.push_back(std::move(event));
      StoreStep step{kJob, {}};
      step.step.set_step(i);
      decisions.push_back(std::move(step));
      v1::RankId id;
      id.set_job(kJob);
      id.set_attempt(1);
      v1::RankLog log;
      log.add_lines("line " + std::to_string(i));
      fuzz::Require(logs_.Append(id, log).ok(), "a log is written");
    }
    fuzz::Require(store_->Commit(decisions).ok(), "records are stored");
  }

  void Watch(const v1::WatchRequest& request) {
    Store::Selection selection;
    selection.job = request.job();
    selection.after = request.cursor();
    if (request.no_events()) selection.kinds = Store::Selection::Kinds::kMetrics;
    if (request.no_metrics()) selection.kinds = Store::Selection::Kinds::kEvents;
    const auto records = store_->Read(selection);
    fuzz::Require(records.ok(), "any cursor can be asked for");
    for (const v1::WatchResponse& record : *records)
      fuzz::Require(record.cursor() > request.cursor(), "what is watched goes on");
  }

  // Only of a job that the core has found: its name is none that a client made up.
  void Logs(const v1::LogsRequest& request) {
    const int64_t position = std::max<int64_t>(0, request.cursor());
    const auto page = logs_.Read(kJob, position);
    if (page.ok()) fuzz::Require(page->lines.empty() || page->next > position, "logs go on");
  }

 private:
  const std::string folder_ = MakeFolder();
  Failpoints failpoints_;
  std::unique_ptr<Store> store_;
  LogFiles logs_{folder_, 1 << 20};
};

// A store of uploads that is made for one input.
class UploadedFiles {
 public:
  UploadedFiles() {
    ContentStore::Limits limits;
    limits.max_bytes = kMaxUploadBytes;
    limits.reserve_bytes = 0;
    auto store = ContentStore::Open(folder_ + "/uploads", limits);
    fuzz::Require(store.ok(), "a store is made");
    store_ = *std::move(store);
  }
  ~UploadedFiles() {
    writer_.reset();
    int64_t num_entries = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      ++num_entries;
      fuzz::Require(entry.path().filename() == "uploads", "nothing is made outside of the store");
    }
    fuzz::Require(num_entries == 1, "the store stays where it is");
    std::filesystem::remove_all(folder_);
  }

  void PutFolder(const v1::PutFolderRequest& request) {
    FileList files;
    for (const v1::UploadFile& file : request.files()) files.push_back({file.name(), file.sha256(), file.size_bytes()});
    const auto contents = store_->Prepare(files, {});
    if (!contents.ok()) return;
    fuzz::Require(contents->num_bytes.size() == files.size(), "there is a number for each file");
    if (contents->is_whole) fuzz::Require(store_->List(contents->id).ok(), "a whole folder has a list");
  }
  void PutFile(const v1::PutFileRequest& request) {
    if (writer_ == nullptr) {
      auto writer = store_->Write(request.sha256(), request.size_bytes(), request.offset());
      if (!writer.ok()) return;
      writer_ = *std::move(writer);
    }
    if (!writer_->Append(request.data()).ok()) writer_.reset();
  }
  void EndFile() {
    if (writer_ != nullptr) (void)writer_->Finish();
    writer_.reset();
  }
  void GetUpload(const v1::GetUploadRequest& request) {
    const auto files = store_->List(request.id());
    if (files.ok()) fuzz::Require(FolderId(*files) == request.id(), "a list is that of its ID");
  }
  void GetFile(const v1::GetFileRequest& request) {
    const auto file = store_->Read(request.sha256());
    if (!file.ok() || request.offset() < 0 || request.offset() > (*file)->num_bytes()) return;
    std::string data(static_cast<size_t>((*file)->num_bytes() - request.offset()), '\0');
    fuzz::Require((*file)->Read(request.offset(), data.data(), static_cast<int64_t>(data.size())).ok(),
                  "a whole file can be read");
  }

 private:
  const std::string folder_ = MakeFolder();
  std::unique_ptr<ContentStore> store_;
  std::unique_ptr<ContentStore::Writer> writer_;
};

void Take(Kind kind, absl::string_view bytes, Records* records, UploadedFiles* uploads) {
  if (kind != Kind::kPutFile) uploads->EndFile();
  switch (kind) {
    case Kind::kWatch:
      if (auto request = Parse<v1::WatchRequest>(bytes)) records->Watch(*request);
      return;
    case Kind::kLogs:
      if (auto request = Parse<v1::LogsRequest>(bytes)) records->Logs(*request);
      return;
    case Kind::kPutFolder:
      if (auto request = Parse<v1::PutFolderRequest>(bytes)) uploads->PutFolder(*request);
      return;
    case Kind::kPutFile:
      if (auto request = Parse<v1::PutFileRequest>(bytes)) uploads->PutFile(*request);
      return;
    case Kind::kGetUpload:
      if (auto request = Parse<v1::GetUploadRequest>(bytes)) uploads->GetUpload(*request);
      return;
    case Kind::kGetFile:
      if (auto request = Parse<v1::GetFileRequest>(bytes)) uploads->GetFile(*request);
      return;
  }
}

}  // namespace
}  // namespace tacc::coordinator

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHeadBytes = 3;
  static const google::protobuf::LogSilencer silence;
  static auto& records = *new tacc::coordinator::Records();
  absl::string_view input = tacc::fuzz::TextOf(data, size);
  tacc::coordinator::UploadedFiles uploads;
  while (input.size() >= kHeadBytes) {
    const auto byte = [&input](size_t i) { return static_cast<unsigned char>(input[i]); };
    const auto kind = static_cast<tacc::coordinator::Kind>(byte(0) % tacc::coordinator::kNumKinds);
    const size_t length = byte(1) | byte(2) << 8;
    tacc::coordinator::Take(kind, input.substr(kHeadBytes, length), &records, &uploads);
    input.remove_prefix(std::min(kHeadBytes + length, input.size()));
  }
  uploads.EndFile();
  return 0;
}
