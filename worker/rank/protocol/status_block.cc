#include "worker/rank/protocol/status_block.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tacc::worker {
namespace {

absl::Status SharedMemoryError(const std::string& name, const char* what, int error) {
  const std::string message = absl::StrCat("status block ", name, " ", what, ": ", std::strerror(error));
  return error == ENOENT ? absl::NotFoundError(message) : absl::InternalError(message);
}

absl::StatusOr<StatusFields*> Map(const std::string& name, int fd) {
  void* memory = mmap(nullptr, sizeof(StatusFields), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return SharedMemoryError(name, "cannot be mapped", errno);
  return static_cast<StatusFields*>(memory);
}

}  // namespace

std::string StatusBlockPath(const std::string& name) { return absl::StrCat("/dev/shm", name); }

const char* ActivityText(Activity activity) {
  switch (activity) {
    case Activity::kStarting:
      return "reading its program";
    case Activity::kBinding:
      return "binding its program";
    case Activity::kLoadingWeights:
      return "loading weights";
    case Activity::kLoadingCheckpoint:
      return "loading a checkpoint";
    case Activity::kMeeting:
      return "waiting for the other ranks";
    case Activity::kOpeningData:
      return "opening the data";
    case Activity::kBetweenSteps:
      return "between two steps";
    case Activity::kInNode:
      return "in an instruction";
    case Activity::kInCollective:
      return "in a collective";
    case Activity::kWaitingForClient:
      return "waiting for the job's client";
  }
  return "";
}

absl::StatusOr<std::unique_ptr<StatusBlock>> StatusBlock::Create(const std::string& name, int64_t attempt) {
  shm_unlink(name.c_str());
  const int fd = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return SharedMemoryError(name, "cannot be made", errno);
  // Not ftruncate, which takes no memory: where there is none left the first write would be a SIGBUS.
  if (const int error = posix_fallocate(fd, 0, sizeof(StatusFields)); error != 0) {
    close(fd);
    shm_unlink(name.c_str());
    if (error != ENOSPC) return SharedMemoryError(name, "cannot be sized", error);
    return absl::ResourceExhaustedError(absl::StrCat(
        "status block ", name, " cannot be made: /dev/shm is full; remove what is left over there, or give ",
        "it more room (mount -o remount,size=1G /dev/shm; of a container --shm-size)"));
  }
  absl::StatusOr<StatusFields*> fields = Map(name, fd);
  close(fd);
  if (!fields.ok()) {
    shm_unlink(name.c_str());
    return fields.status();
  }
  new (*fields) StatusFields{};
  (*fields)->attempt.store(static_cast<uint32_t>(attempt));
  (*fields)->magic.store(kStatusMagic);
  return std::unique_ptr<StatusBlock>(new StatusBlock(*fields, name));
}

absl::StatusOr<std::unique_ptr<StatusBlock>> StatusBlock::Open(const std::string& name) {
  const int fd = shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) return SharedMemoryError(name, "cannot be opened", errno);
  struct stat info;
  if (fstat(fd, &info) != 0 || info.st_size < static_cast<off_t>(sizeof(StatusFields))) {
    close(fd);
    return absl::InvalidArgumentError(
        absl::StrCat("status block ", name, ": smaller than ", sizeof(StatusFields), " bytes"));
  }
  absl::StatusOr<StatusFields*> fields = Map(name, fd);
  close(fd);
  if (!fields.ok()) return fields.status();
  if ((*fields)->magic.load() != kStatusMagic) {
    munmap(*fields, sizeof(StatusFields));
    return absl::InvalidArgumentError(absl::StrCat("status block ", name, ": made by another version"));
  }
  return std::unique_ptr<StatusBlock>(new StatusBlock(*fields, ""));
}

absl::StatusOr<std::unique_ptr<StatusBlock>> StatusBlock::TakeOver(const std::string& name) {
  absl::StatusOr<std::unique_ptr<StatusBlock>> block = Open(name);
  if (block.ok()) (*block)->name_to_remove_ = name;
  return block;
}

StatusBlock::~StatusBlock() {
  munmap(fields_, sizeof(StatusFields));
  if (!name_to_remove_.empty()) shm_unlink(name_to_remove_.c_str());
}

RankStatus StatusBlock::Sample() const {
  RankStatus status;
  status.attempt = fields_->attempt.load(std::memory_order_relaxed);
  status.step = static_cast<int64_t>(fields_->step.load(std::memory_order_relaxed));
  status.call = fields_->call.load(std::memory_order_relaxed);
  status.node = fields_->node.load(std::memory_order_relaxed);
  // A damaged value must not become an enum that nothing handles.
  const uint32_t activity = fields_->activity.load(std::memory_order_relaxed);
  if (activity <= static_cast<uint32_t>(Activity::kWaitingForClient)) status.activity = static_cast<Activity>(activity);
  status.heartbeat = fields_->heartbeat.load(std::memory_order_relaxed);
  return status;
}

}  // namespace tacc::worker
