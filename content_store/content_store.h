// Files that are named by what is in them, and folders of them, within a bound: what clients have uploaded, with the
// coordinator, and copies of it, with the daemons of a machine.
//
// In its directory:
//   files/SHA256     a whole file
//   partial/SHA256   the beginning of one; whoever writes it holds a lock (flock)
//   folders/ID/NAME  a link to a file; the folder comes into being in one step
//   lists/ID         its list; its time of change is when the folder was used last. Who uses it holds a shared lock
//   lock             held while folders are made and removed
#ifndef TACC_CONTENT_STORE_CONTENT_STORE_H_
#define TACC_CONTENT_STORE_CONTENT_STORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "content_store/file_list.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/files/sha256.h"

namespace tacc {

// Thread-safe, and several processes may have one for the same directory. All that is made is readable by this user
// alone. Errors of files are those of ErrnoStatus.
class ContentStore {
 public:
  struct Limits {
    // Of all together, files and lists by the blocks of a disk that they take; 0: half of what the file system holds.
    int64_t max_bytes = 0;
    // What was used in so many last seconds is not removed, nor what was begun.
    double keep_seconds = 3600;
    // That removing leaves free on the file system.
    int64_t reserve_bytes = 256 << 20;
  };

  // Makes the directory where it is missing.
  static absl::StatusOr<std::unique_ptr<ContentStore>> Open(const std::string& directory, const Limits& limits);

  // What is there of a folder.
  struct Contents {
    std::string id;
    bool is_whole = false;           // It is at FolderPath(id).
    std::vector<int64_t> num_bytes;  // By file, in the order of the list: from its beginning. All: it is whole.
  };
  // Makes the folder if all its files are there, and counts as a use of it. Else removes folders, those that were used
  // longest ago first and none of `in_use`, until what is missing has room. InvalidArgument: as CheckFileList.
  // ResourceExhausted: there is no room, and why.
  absl::StatusOr<Contents> Prepare(const FileList& files, const std::set<std::string>& in_use);

  // The beginning of a file that grows.
  class Writer {
   public:
    ~Writer();
    Writer(const Writer&) = delete;
    Writer& operator=(const Writer&) = delete;
    // InvalidArgument: it becomes longer than was said.
    absl::Status Append(absl::string_view data);
    // The file is whole. DataLoss: it is another than was said; what was written is gone.
    absl::Status Finish();

   private:
    friend class ContentStore;
    Writer(const ContentStore& store, std::string sha256, int64_t num_bytes, bool is_new, int fd)
        : store_(store), name_(std::move(sha256)), num_bytes_(num_bytes), is_new_(is_new), fd_(fd) {}
    const ContentStore& store_;
    const std::string name_;
    const int64_t num_bytes_;
    const bool is_new_;
    const int fd_;
    int64_t num_written_ = 0;
    worker::Sha256 sha256_;
  };
  // Goes on behind the first `offset` bytes. AlreadyExists: the file is whole. Unavailable: another one is being
  // written. OutOfRange: less of it is there. ResourceExhausted: there is no room for the rest, beside what the other
  // writers of this process have to come; nothing is removed for it.
  absl::StatusOr<std::unique_ptr<Writer>> Write(const std::string& sha256, int64_t num_bytes, int64_t offset) const;

  // A whole file. NotFound.
  absl::StatusOr<std::unique_ptr<worker::InputFile>> Read(const std::string& sha256) const;

  // The files of a folder that is whole; counts as a use of it. NotFound.
  absl::StatusOr<FileList> List(const std::string& id) const;
  std::string FolderPath(const std::string& id) const { return FolderPathIn(directory_, id); }
  static std::string FolderPathIn(const std::string& directory, const std::string& id);

  // While it lives the folder is not removed, by no process. NotFound.
  class Use {
   public:
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    friend class ContentStore;
    explicit Use(int fd) : fd_(fd) {}
    const int fd_;
  };
  absl::StatusOr<std::unique_ptr<Use>> Hold(const std::string& id) const;

 private:
  ContentStore(std::string directory, const Limits& limits) : directory_(std::move(directory)), limits_(limits) {}
  std::string Path(absl::string_view room, const std::string& name) const;
  absl::Status MakeFolder(const std::string& id, const FileList& files) const;
  absl::Status MakeRoom(int64_t num_bytes, const FileList& files, const std::set<std::string>& in_use) const;
  // Room for further files and lists beside those that are there, in bytes.
  absl::StatusOr<int64_t> Room() const;
  // Bytes that writers of this process have room for and have not written, but for those of some files.
  int64_t ToCome(const std::set<std::string>& but) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Claim(const std::string& sha256, int64_t num_bytes) const;
  absl::Status NoRoom(int64_t num_bytes, int64_t room) const;
  // Files that no folder has and nobody writes any more, but for those that are wanted.
  void RemoveLeftovers(const std::set<std::string>& wanted) const;
  void RemoveFolder(const std::string& id) const;
  // Folders that may be removed, those that were used longest ago first.
  std::vector<std::string> Removable(const std::set<std::string>& in_use) const;

  const std::string directory_;
  const Limits limits_;
  mutable absl::Mutex mutex_;
  mutable std::map<std::string, int64_t> to_come_ ABSL_GUARDED_BY(mutex_);  // By SHA-256.
};

}  // namespace tacc

#endif  // TACC_CONTENT_STORE_CONTENT_STORE_H_
