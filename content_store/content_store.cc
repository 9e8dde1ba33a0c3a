#include "content_store/content_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tacc {
namespace {

using worker::ErrnoStatus;
using worker::ListDirectory;

constexpr char kFiles[] = "files", kPartial[] = "partial", kFolders[] = "folders", kLists[] = "lists";
constexpr int64_t kMaxListBytes = 8 << 20;
constexpr size_t kHashBytes = 1 << 20;
// What was written is given to the disk in pieces, so that forcing it there does not take long at the end.
constexpr int64_t kWriteBackBytes = 32 << 20;
// What a file takes of a disk at least, and in steps of.
constexpr int64_t kBlockBytes = 4096;

// Closes its descriptor, which lets go of a lock on it.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

int64_t SizeOf(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 ? info.st_size : -1;
}

double Age(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return 0;
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec - info.st_mtim.tv_sec) + 1e-9 * (now.tv_nsec - info.st_mtim.tv_nsec);
}

// What so many bytes take of a disk: also an empty file is no nothing there.
int64_t SpaceOf(int64_t num_bytes) {
  return std::max<int64_t>(num_bytes + kBlockBytes - 1, kBlockBytes) / kBlockBytes * kBlockBytes;
}

// What a folder takes beside its files: its list, and as much for the links.
int64_t SpaceOfFolder(int64_t list_bytes) { return 2 * SpaceOf(list_bytes); }

std::string Gigabytes(int64_t bytes) { return absl::StrFormat("%.2f GB", static_cast<double>(bytes) * 1e-9); }

absl::Status MakePrivate(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat(path, ": cannot be made"));
  if (chmod(path.c_str(), 0700) != 0) return ErrnoStatus(errno, path);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ContentStore>> ContentStore::Open(const std::string& directory, const Limits& limits) {
  std::unique_ptr<ContentStore> store(new ContentStore(directory, limits));
  for (const char* room : {kFiles, kPartial, kFolders, kLists}) {
    if (absl::Status status = MakePrivate(store->Path(room, "")); !status.ok()) return status;
  }
  if (absl::Status status = MakePrivate(directory); !status.ok()) return status;
  return store;
}

std::string ContentStore::Path(absl::string_view room, const std::string& name) const {
  return absl::StrCat(directory_, "/", room, name.empty() ? "" : "/", name);
}

std::string ContentStore::FolderPathIn(const std::string& directory, const std::string& id) {
  return absl::StrCat(directory, "/", kFolders, "/", id);
}

absl::StatusOr<ContentStore::Contents> ContentStore::Prepare(const FileList& files,
                                                             const std::set<std::string>& in_use) {
  if (absl::Status status = CheckFileList(files); !status.ok()) return status;
  const std::string lock_path = Path("lock", "");
  const Descriptor lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (lock.get() < 0 || flock(lock.get(), LOCK_EX) != 0) return ErrnoStatus(errno, lock_path);
  Contents contents;
  contents.id = FolderId(files);
  contents.is_whole = true;
  const bool is_listed = SizeOf(Path(kLists, contents.id)) >= 0;
  int64_t needed = is_listed ? 0 : SpaceOfFolder(static_cast<int64_t>(FileListText(files).size()));
  std::set<std::string> counted, empty;
  for (const ListedFile& file : files) {
    const int64_t whole = SizeOf(Path(kFiles, file.sha256));
    if (whole >= 0 && whole != file.num_bytes)
      return absl::InvalidArgumentError(
          absl::StrCat(file.name, " has ", file.num_bytes, " bytes, but what has its SHA-256 has ", whole));
    // The last byte of one that is not in its place is asked for again.
    const int64_t begun = std::min(SizeOf(Path(kPartial, file.sha256)), file.num_bytes - 1);
    contents.num_bytes.push_back(whole >= 0 ? whole : std::max<int64_t>(begun, 0));
    if (whole >= 0 || !counted.insert(file.sha256).second) continue;
    needed += SpaceOf(file.num_bytes) - (begun < 0 ? 0 : SpaceOf(begun));
    if (file.num_bytes == 0) {
      empty.insert(file.sha256);
    } else {
      contents.is_whole = false;
    }
  }
  if (needed > 0) {
    if (absl::Status status = MakeRoom(needed, files, in_use); !status.ok()) return status;
  }
  // A file without bytes is there at once.
  for (const std::string& sha256 : empty) {
    auto writer = Write(sha256, 0, 0);
    if (!writer.ok()) return writer.status();
    if (absl::Status status = (*writer)->Finish(); !status.ok()) return status;
  }
  if (!contents.is_whole) return contents;
  if (absl::Status status = MakeFolder(contents.id, files); !status.ok()) return status;
  return contents;
}

absl::Status ContentStore::MakeFolder(const std::string& id, const FileList& files) const {
  const std::string list = Path(kLists, id), folder = FolderPath(id);
  if (SizeOf(list) >= 0 && SizeOf(folder) >= 0) {
    utimensat(AT_FDCWD, list.c_str(), nullptr, 0);
    return absl::OkStatus();
  }
  // Without its list it was being removed when its process ended.
  if (absl::Status status = worker::RemoveTree(folder); !status.ok()) return status;
  std::string made = Path(kFolders, ".new-XXXXXX");
  if (mkdtemp(made.data()) == nullptr) return ErrnoStatus(errno, absl::StrCat(made, ": cannot be made"));
  const auto write = [&]() -> absl::Status {
    for (const ListedFile& file : files) {
      const std::string place = absl::StrCat(made, "/", file.name);
      if (link(Path(kFiles, file.sha256).c_str(), place.c_str()) != 0)
        return ErrnoStatus(errno, absl::StrCat(place, ": cannot be linked"));
    }
    if (absl::Status status = worker::SyncDirectory(made); !status.ok()) return status;
    if (absl::Status status = worker::WriteSmallFile(absl::StrCat(list, ".tmp"), FileListText(files)); !status.ok())
      return status;
    chmod(absl::StrCat(list, ".tmp").c_str(), 0600);
    if (rename(absl::StrCat(list, ".tmp").c_str(), list.c_str()) != 0 || rename(made.c_str(), folder.c_str()) != 0)
      return ErrnoStatus(errno, absl::StrCat(folder, ": cannot be put in its place"));
    for (const char* room : {kLists, kFolders}) {
      if (absl::Status status = worker::SyncDirectory(Path(room, "")); !status.ok()) return status;
    }
    return absl::OkStatus();
  };
  const absl::Status status = write();
  if (!status.ok()) (void)worker::RemoveTree(made);
  return status;
}

absl::StatusOr<int64_t> ContentStore::Room() const {
  struct statvfs disk;
  if (statvfs(directory_.c_str(), &disk) != 0) return ErrnoStatus(errno, directory_);
  const auto block = static_cast<int64_t>(disk.f_frsize);
  int64_t used = 0;
  for (const char* room : {kFiles, kPartial, kLists}) {
    const absl::StatusOr<std::vector<std::string>> names = ListDirectory(Path(room, ""));
    if (!names.ok()) return names.status();
    for (const std::string& name : *names) {
      const int64_t size = SizeOf(Path(room, name));
      used += room == kLists ? SpaceOfFolder(size) : SpaceOf(size);
    }
  }
  const int64_t most = limits_.max_bytes > 0 ? limits_.max_bytes : static_cast<int64_t>(disk.f_blocks) * block / 2;
  return std::min(most - used, static_cast<int64_t>(disk.f_bavail) * block - limits_.reserve_bytes);
}

int64_t ContentStore::ToCome(const std::set<std::string>& but) const {
  int64_t sum = 0;
  for (const auto& [sha256, num_bytes] : to_come_) sum += but.count(sha256) == 0 ? num_bytes : 0;
  return sum;
}

absl::Status ContentStore::Claim(const std::string& sha256, int64_t num_bytes) const {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<int64_t> room = Room();
  if (!room.ok()) return room.status();
  if (const int64_t left = *room - ToCome({}); left < num_bytes) return NoRoom(num_bytes, left);
  to_come_[sha256] = num_bytes;
  return absl::OkStatus();
}

absl::Status ContentStore::NoRoom(int64_t num_bytes, int64_t room) const {
  return absl::ResourceExhaustedError(absl::StrCat(
      "no room in ", directory_, " for ", Gigabytes(num_bytes), ": there is room for ",
      Gigabytes(std::max<int64_t>(room, 0)), ", and the rest belongs to jobs that have not ended, was used in the ",
      "last ", static_cast<int64_t>(limits_.keep_seconds), " s, or is taken by other files of the disk; free some, ",
      limits_.max_bytes > 0 ? absl::StrCat("or allow more than ", Gigabytes(limits_.max_bytes), ", ") : "",
      "or name a folder that the workers share"));
}

absl::Status ContentStore::MakeRoom(int64_t num_bytes, const FileList& files,
                                    const std::set<std::string>& in_use) const {
  std::set<std::string> wanted;
  for (const ListedFile& file : files) wanted.insert(file.sha256);
  const auto room_now = [&]() -> absl::StatusOr<int64_t> {
    const absl::StatusOr<int64_t> room = Room();
    if (!room.ok()) return room.status();
    absl::MutexLock lock(&mutex_);
    return *room - ToCome(wanted);
  };
  absl::StatusOr<int64_t> room = room_now();
  if (!room.ok() || *room >= num_bytes) return room.status();
  RemoveLeftovers(wanted);
  room = room_now();
  for (const std::string& id : Removable(in_use)) {
    if (!room.ok() || *room >= num_bytes) break;
    RemoveFolder(id);
    // Those of the folder, where no other has them.
    RemoveLeftovers(wanted);
    room = room_now();
  }
  if (!room.ok() || *room >= num_bytes) return room.status();
  return NoRoom(num_bytes, *room);
}

void ContentStore::RemoveLeftovers(const std::set<std::string>& wanted) const {
  for (const std::string& name : ListDirectory(Path(kFolders, "")).value_or(std::vector<std::string>())) {
    // Of a process that was killed.
    if (name[0] == '.' || SizeOf(Path(kLists, name)) < 0) (void)worker::RemoveTree(Path(kFolders, name));
  }
  for (const char* room : {kFiles, kPartial}) {
    for (const std::string& name : ListDirectory(Path(room, "")).value_or(std::vector<std::string>())) {
      const std::string path = Path(room, name);
      struct stat info;
      if (wanted.count(name) != 0 || stat(path.c_str(), &info) != 0 || info.st_nlink > 1) continue;
      if (Age(path) < limits_.keep_seconds) continue;
      const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
      if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) unlink(path.c_str());
    }
  }
}

std::vector<std::string> ContentStore::Removable(const std::set<std::string>& in_use) const {
  std::vector<std::pair<double, std::string>> found;
  for (const std::string& id : ListDirectory(Path(kLists, "")).value_or(std::vector<std::string>())) {
    const double age = Age(Path(kLists, id));
    if (in_use.count(id) == 0 && age >= limits_.keep_seconds) found.emplace_back(-age, id);
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> ids;
  for (auto& [age, id] : found) ids.push_back(std::move(id));
  return ids;
}

void ContentStore::RemoveFolder(const std::string& id) const {
  const std::string list = Path(kLists, id);
  const Descriptor use(open(list.c_str(), O_RDONLY | O_CLOEXEC));
  if (use.get() < 0 || flock(use.get(), LOCK_EX | LOCK_NB) != 0) return;
  const std::string doomed = Path(kFolders, absl::StrCat(".old-", id));
  // Without its list it is not there.
  unlink(list.c_str());
  rename(FolderPath(id).c_str(), doomed.c_str());
  (void)worker::RemoveTree(doomed);
}

absl::StatusOr<std::unique_ptr<ContentStore::Writer>> ContentStore::Write(const std::string& sha256, int64_t num_bytes,
                                                                          int64_t offset) const {
  if (!IsSha256(sha256) || num_bytes < 0 || num_bytes > kMaxListedBytes || offset < 0 || offset > num_bytes)
    return absl::InvalidArgumentError("a file wants a SHA-256 of 64 hex digits, its size, and an offset within it");
  if (SizeOf(Path(kFiles, sha256)) >= 0) return absl::AlreadyExistsError(absl::StrCat(sha256, " is there"));
  const std::string path = Path(kPartial, sha256);
  Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (file.get() < 0) return ErrnoStatus(errno, absl::StrCat(path, ": cannot be made"));
  struct stat own, named;
  // Whoever had the lock before may have put the file in its place.
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0 || fstat(file.get(), &own) != 0 || stat(path.c_str(), &named) != 0 ||
      own.st_ino != named.st_ino)
    return absl::UnavailableError(absl::StrCat(sha256, " is being written by another one"));
  if (SizeOf(Path(kFiles, sha256)) >= 0) {
    unlink(path.c_str());
    return absl::AlreadyExistsError(absl::StrCat(sha256, " is there"));
  }
  if (own.st_size < offset)
    return absl::OutOfRangeError(absl::StrCat(sha256, ": ", own.st_size, " bytes are there, not ", offset));
  if (ftruncate(file.get(), offset) != 0) return ErrnoStatus(errno, path);
  std::unique_ptr<Writer> writer(new Writer(*this, sha256, num_bytes, /*is_new=*/offset == 0, file.Release()));
  if (absl::Status status = Claim(sha256, SpaceOf(num_bytes) - SpaceOf(offset)); !status.ok()) return status;
  std::string buffer(std::min<size_t>(kHashBytes, static_cast<size_t>(offset)), '\0');
  while (writer->num_written_ < offset) {
    const ssize_t count = pread(writer->fd_, buffer.data(), buffer.size(), writer->num_written_);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return ErrnoStatus(errno, absl::StrCat(path, ": cannot be read"));
    const auto take = std::min<int64_t>(count, offset - writer->num_written_);
    writer->sha256_.Update(buffer.data(), static_cast<size_t>(take));
    writer->num_written_ += take;
  }
  return writer;
}

ContentStore::Writer::~Writer() {
  {
    absl::MutexLock lock(&store_.mutex_);
    store_.to_come_.erase(name_);
  }
  // Under its lock: nobody else has begun it.
  if (is_new_ && num_written_ < num_bytes_ && num_written_ == 0) unlink(store_.Path(kPartial, name_).c_str());
  close(fd_);
}

absl::Status ContentStore::Writer::Append(absl::string_view data) {
  if (static_cast<int64_t>(data.size()) > num_bytes_ - num_written_)
    return absl::InvalidArgumentError(
        absl::StrCat(name_, " has ", num_bytes_, " bytes; at byte ", num_written_, " came ", data.size(), " more"));
  sha256_.Update(data.data(), data.size());
  while (!data.empty()) {
    const ssize_t count = pwrite(fd_, data.data(), data.size(), num_written_);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      return ErrnoStatus(errno, absl::StrCat(store_.Path(kPartial, name_), ": cannot write after ", num_written_,
                                             " of ", num_bytes_, " bytes"));
    const int64_t before = num_written_;
    num_written_ += count;
    {
      absl::MutexLock lock(&store_.mutex_);
      int64_t& to_come = store_.to_come_[name_];
      to_come = std::max<int64_t>(to_come - count, 0);
    }
    data.remove_prefix(static_cast<size_t>(count));
    if (before / kWriteBackBytes != num_written_ / kWriteBackBytes)
      (void)sync_file_range(fd_, 0, num_written_, SYNC_FILE_RANGE_WRITE);
  }
  return absl::OkStatus();
}

absl::Status ContentStore::Writer::Finish() {
  const std::string path = store_.Path(kPartial, name_);
  if (num_written_ != num_bytes_)
    return absl::DataLossError(absl::StrCat(name_, ": ", num_written_, " of ", num_bytes_, " bytes came"));
  if (const std::string found = sha256_.HexDigest(); found != name_) {
    unlink(path.c_str());
    return absl::DataLossError(
        absl::StrCat("what came as ", name_, " has the SHA-256 ", found, "; it was changed on its way, or meanwhile"));
  }
  if (fsync(fd_) != 0) return ErrnoStatus(errno, absl::StrCat(path, ": cannot be forced to the disk"));
  if (rename(path.c_str(), store_.Path(kFiles, name_).c_str()) != 0)
    return ErrnoStatus(errno, absl::StrCat(path, ": cannot be put in its place"));
  return worker::SyncDirectory(store_.Path(kFiles, ""));
}

absl::StatusOr<std::unique_ptr<worker::InputFile>> ContentStore::Read(const std::string& sha256) const {
  if (!IsSha256(sha256)) return absl::InvalidArgumentError("a SHA-256 has 64 lower-case hex digits");
  return worker::InputFile::Open(Path(kFiles, sha256));
}

absl::StatusOr<FileList> ContentStore::List(const std::string& id) const {
  if (!IsSha256(id)) return absl::InvalidArgumentError("an upload has 64 lower-case hex digits");
  const std::string path = Path(kLists, id);
  const absl::StatusOr<std::string> text = worker::ReadSmallFile(path, kMaxListBytes);
  if (!text.ok()) return text.status();
  if (SizeOf(FolderPath(id)) < 0) return absl::NotFoundError(absl::StrCat(FolderPath(id), ": is not there"));
  utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  return ParseFileList(*text);
}

absl::StatusOr<std::unique_ptr<ContentStore::Use>> ContentStore::Hold(const std::string& id) const {
  const std::string path = Path(kLists, id);
  Descriptor list(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  // One that is being removed is as good as gone.
  if (list.get() < 0 || flock(list.get(), LOCK_SH | LOCK_NB) != 0 || SizeOf(FolderPath(id)) < 0)
    return absl::NotFoundError(absl::StrCat(path, ": is not there"));
  utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  return std::unique_ptr<Use>(new Use(list.Release()));
}

ContentStore::Use::~Use() { close(fd_); }

}  // namespace tacc
