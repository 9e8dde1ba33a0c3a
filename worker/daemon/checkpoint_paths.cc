#include "worker/daemon/checkpoint_paths.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/checkpoint_name.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/posix_file.h"
#include "worker/checkpoint/reader.h"
#include "worker/daemon/line_splitter.h"

namespace tacc::worker {
namespace {

constexpr int64_t kMaxOwnerBytes = 1 << 20;
constexpr char kOwnerFileName[] = "job.json";
constexpr char kTemporaryPrefix[] = ".tmp-";

std::string Join(const std::string& directory, const std::string& name) { return absl::StrCat(directory, "/", name); }

void CheckReadable(const std::string& path, v1::CheckPathsResult* result) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || access(path.c_str(), S_ISDIR(info.st_mode) ? R_OK | X_OK : R_OK) != 0) {
    result->add_errors(absl::StrCat(path, ": ", std::strerror(errno)));
  }
}

// OK when the directory is there (it is made) and takes files.
absl::Status CheckWritable(const std::string& directory) {
  if (directory[0] != '/') return absl::InvalidArgumentError(absl::StrCat(directory, ": not an absolute path"));
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat(directory, ": cannot be made"));
  const std::string trial = Join(directory, absl::StrCat(".tmp-trial-", getpid()));
  absl::Status status = WriteSmallFile(trial, "x");
  (void)RemoveTree(trial);
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(directory, ": not writable: ", status.message()));
  return status;
}

std::string OwnerField(const std::string& text, const char* field) {
  const nlohmann::json owner = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!owner.is_object() || !owner.contains(field) || !owner[field].is_string()) return "";
  return owner[field].get<std::string>();
}

absl::Status WriteAtomically(const std::string& path, const std::string& content) {
  const std::string temporary = absl::StrCat(path, ".tmp");
  absl::Status status = WriteSmallFile(temporary, content);
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(errno, absl::StrCat(path, ": cannot be replaced"));
  }
  if (!status.ok()) (void)RemoveTree(temporary);
  return status;
}

absl::Status Claim(const v1::CheckPaths& request, v1::CheckPathsResult* result) {
  const std::string path = Join(request.checkpoint_dir(), kOwnerFileName);
  const absl::StatusOr<std::string> before = ReadSmallFile(path, kMaxOwnerBytes);
  if (!before.ok() && !absl::IsNotFound(before.status())) return before.status();
  if (before.ok()) {
    const std::string name = OwnerField(*before, "name");
    if (name.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path,
          ": damaged: names no job; remove it if the directory belongs to this job, or choose another checkpoint.dir"));
    }
    if (name != OwnerField(request.owner(), "name")) {
      return absl::FailedPreconditionError(absl::StrCat(request.checkpoint_dir(), ": belongs to job \"", name, "\" (",
                                                        OwnerField(*before, "job"),
                                                        "); choose another checkpoint.dir"));
    }
    result->set_previous_owner(ValidUtf8(*before));
  }
  return WriteAtomically(path, request.owner());
}

absl::Status Expect(const v1::CheckPaths& request, double patience_seconds) {
  const std::string path = Join(request.checkpoint_dir(), kOwnerFileName);
  const absl::Time deadline = absl::Now() + absl::Seconds(patience_seconds);
  while (true) {
    const absl::StatusOr<std::string> owner = ReadSmallFile(path, kMaxOwnerBytes);
    if (owner.ok() && *owner == request.owner()) return absl::OkStatus();
    if (absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(100));
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat(request.checkpoint_dir(), ": not the directory that rank 0's worker sees: ",
                     owner.ok() ? absl::StrCat(path, " belongs to ", OwnerField(*owner, "job"))
                                : std::string(owner.status().message()),
                     "; checkpoint.dir must be on a file system that all workers share"));
  }
}

v1::FoundCheckpoint Describe(const std::string& name, const std::string& path) {
  v1::FoundCheckpoint found;
  found.set_name(name);
  const absl::optional<CheckpointId> id = ParseCheckpointName(std::filesystem::path(path).filename().string());
  if (id.has_value()) {
    found.set_step(id->step);
    found.set_attempt(static_cast<int32_t>(id->attempt));
  }
  const absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(path);
  if (!checkpoint.ok()) {
    found.set_damage(ValidUtf8(std::string(checkpoint.status().message())));
    return found;
  }
  const Manifest& manifest = (*checkpoint)->manifest();
  found.set_step(manifest.step);
  found.set_attempt(static_cast<int32_t>(manifest.attempt));
  found.set_identity(manifest.identity);
  int64_t num_bytes = 0;
  for (const ManifestFile& file : manifest.files) num_bytes += file.num_bytes;
  found.set_size_bytes(num_bytes);
  return found;
}

// Returns the id of a step-* or .tmp-step-* name.
absl::optional<CheckpointId> ParseEitherName(const std::string& name) {
  return ParseCheckpointName(absl::StartsWith(name, kTemporaryPrefix) ? name.substr(sizeof(kTemporaryPrefix) - 1)
                                                                      : name);
}

bool IsExported(const std::string& export_dir, const std::string& newest_manifest) {
  std::error_code config_error, manifest_error;
  const auto exported = std::filesystem::last_write_time(Join(export_dir, "config.json"), config_error);
  const auto written = std::filesystem::last_write_time(newest_manifest, manifest_error);
  return !config_error && !manifest_error && exported >= written;
}

absl::Status ListAll(const v1::CheckPaths& request, v1::CheckPathsResult* result) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(request.checkpoint_dir());
  if (!names.ok()) return names.status();
  CheckpointId newest{-1, -1};
  for (const std::string& name : *names) {
    const absl::optional<CheckpointId> id = ParseEitherName(name);
    if (!id.has_value()) continue;
    result->set_max_attempt(std::max<int32_t>(result->max_attempt(), static_cast<int32_t>(id->attempt)));
    if (absl::StartsWith(name, kTemporaryPrefix)) continue;
    *result->add_checkpoints() = Describe(name, Join(request.checkpoint_dir(), name));
    if (std::tie(id->step, id->attempt) > std::tie(newest.step, newest.attempt)) newest = *id;
  }
  if (!request.export_dir().empty() && newest.step >= 0) {
    const std::string manifest = Join(Join(request.checkpoint_dir(), CheckpointName(newest)), kManifestFileName);
    result->set_exported(IsExported(request.export_dir(), manifest));
  }
  return absl::OkStatus();
}

// Deletes a checkpoint so that one killed in the middle leaves no directory that looks like a checkpoint.
absl::Status Delete(const std::string& directory, const std::string& name) {
  const std::string path = Join(directory, name);
  std::error_code error;
  if (std::filesystem::symlink_status(path, error).type() != std::filesystem::file_type::directory) {
    return absl::NotFoundError(absl::StrCat(path, ": no such directory"));
  }
  if (absl::StartsWith(name, kTemporaryPrefix)) return RemoveTree(path);
  const std::string temporary = Join(directory, absl::StrCat(kTemporaryPrefix, name));
  if (absl::Status status = RemoveTree(temporary); !status.ok()) return status;
  if (rename(path.c_str(), temporary.c_str()) != 0)
    return ErrnoStatus(errno, absl::StrCat(path, ": cannot be renamed"));
  return RemoveTree(temporary);
}

}  // namespace

v1::CheckPathsResult CheckPaths(const v1::CheckPaths& request, double patience_seconds) {
  v1::CheckPathsResult result;
  result.set_request(request.request());
  for (const std::string& path : request.readable()) CheckReadable(path, &result);
  absl::Status status;
  if (!request.checkpoint_dir().empty()) {
    status = CheckWritable(request.checkpoint_dir());
    if (status.ok() && request.mode() == v1::CHECK_PATHS_MODE_CLAIM && result.errors().empty())
      status = Claim(request, &result);
    if (status.ok() && request.mode() == v1::CHECK_PATHS_MODE_EXPECT) status = Expect(request, patience_seconds);
    if (status.ok() && request.mode() == v1::CHECK_PATHS_MODE_CLAIM) status = ListAll(request, &result);
  }
  if (!status.ok()) result.add_errors(ValidUtf8(std::string(status.message())));
  if (!request.resume_path().empty() && request.mode() == v1::CHECK_PATHS_MODE_CLAIM) {
    *result.add_checkpoints() = Describe(request.resume_path(), request.resume_path());
  }
  return result;
}

v1::DeleteCheckpointsResult DeleteCheckpoints(const v1::DeleteCheckpoints& request) {
  v1::DeleteCheckpointsResult result;
  result.set_request(request.request());
  const std::string& directory = request.checkpoint_dir();
  if (directory.empty() || directory[0] != '/') {
    result.add_errors(absl::StrCat("\"", directory, "\": not an absolute path"));
    return result;
  }
  std::set<std::string> doomed;
  for (const std::string& name : request.names()) {
    if (ParseCheckpointName(name).has_value()) {
      doomed.insert(name);
    } else {
      result.add_errors(absl::StrCat("\"", name, "\": not the name of a checkpoint"));
    }
  }
  if (request.older_than_attempt() > 0) {
    const std::set<std::string> keep(request.keep().begin(), request.keep().end());
    const absl::StatusOr<std::vector<std::string>> names = ListDirectory(directory);
    if (!names.ok()) {
      result.add_errors(std::string(names.status().message()));
      return result;
    }
    for (const std::string& name : *names) {
      const absl::optional<CheckpointId> id = ParseEitherName(name);
      if (!id.has_value() || keep.count(name) != 0) continue;
      if (id->attempt >= request.first_attempt() && id->attempt < request.older_than_attempt()) doomed.insert(name);
    }
  }
  for (const std::string& name : doomed) {
    if (absl::Status status = Delete(directory, name); status.ok()) {
      result.add_deleted(name);
    } else {
      result.add_errors(std::string(status.message()));
    }
  }
  return result;
}

}  // namespace tacc::worker
