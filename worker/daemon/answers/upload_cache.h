// What clients have uploaded, as the daemons of this machine fetch it from the coordinator: once for all of them.
#ifndef TACC_WORKER_DAEMON_ANSWERS_UPLOAD_CACHE_H_
#define TACC_WORKER_DAEMON_ANSWERS_UPLOAD_CACHE_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "confinement/user.h"
#include "content_store/content_store.h"
#include "identity/credentials.h"
#include "worker/daemon/answers/path_thread.h"

namespace grpc {
class ClientContext;
}

namespace tacc::worker {

// Thread-safe. Fetches on a thread of its own, one upload after the other. Of several daemons that share the directory
// one fetches a file, and the others wait for it.
class UploadCache {
 public:
  struct Options {
    std::string coordinator;  // HOST:PORT or unix:PATH.
    identity::Tls tls;
    std::string directory;
    ContentStore::Limits limits;
    // How long a coordinator that brings nothing is asked again.
    double patience_seconds = 20;
    std::optional<User> user;  // Whose files they are; otherwise this process's user's.
  };
  explicit UploadCache(Options options) : options_(std::move(options)) {}
  // Breaks off.
  ~UploadCache();

  // Begins to fetch it, unless it is there or on its way. What failed before is tried again.
  void Fetch(const std::string& id);

  // After Fetch. OK: it is at Path(id). DeadlineExceeded: it was not there after so many seconds. Unavailable: the
  // coordinator cannot be reached. Other errors: why it cannot be had.
  absl::Status Wait(const std::string& id, double seconds);
  // As Wait, but Unavailable while it is on its way. It stays until another one is held.
  absl::Status Hold(const std::string& id, double seconds);

  std::string Path(const std::string& id) const;

 private:
  // Does what is done with the store's files, with the rights of whose they are. What asks the coordinator has this
  // process's own: the key of its certificate and a coordinator's socket are not that user's.
  template <typename Work>
  auto AsUser(const Work& work) const;
  absl::Status FetchNow(const std::string& id);
  absl::Status Open();
  absl::StatusOr<FileList> List(const std::string& id);
  absl::Status FetchFile(const ListedFile& file, int64_t offset);
  bool IsEnding() const { return is_ending_; }
  // A call that the destructor may break off.
  std::unique_ptr<grpc::ClientContext> Begin();
  void End();

  const Options options_;
  struct Channel;
  std::shared_ptr<Channel> channel_;  // Of the thread.
  std::atomic<bool> is_ending_ = false;
  absl::Mutex mutex_;
  std::unique_ptr<ContentStore> store_;  // Set once.
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;
  struct Fetched {
    bool is_over = false;
    bool is_asked_again = false;  // Meanwhile.
    absl::Status status;
  };
  std::map<std::string, Fetched> fetched_ ABSL_GUARDED_BY(mutex_);
  std::string held_id_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ContentStore::Use> held_ ABSL_GUARDED_BY(mutex_);
  PathThread thread_;  // Last: it uses the others.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_ANSWERS_UPLOAD_CACHE_H_
