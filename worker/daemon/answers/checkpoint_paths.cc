#include "worker/daemon/answers/checkpoint_paths.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "json/parse_json.h"
#include "machine/clock.h"
#include "machine/folder_lock.h"
#include "nlohmann/json.hpp"
#include "text/utf8.h"
#include "worker/checkpoint/checkpoint_name.h"
#include "worker/checkpoint/export.h"
#include "worker/checkpoint/export_record.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/folder_writer.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/writer.h"
#include "worker/run_folder/run_report.h"

namespace tacc::worker {
namespace {

constexpr int64_t kMaxOwnerBytes = 1 << 20;
constexpr char kTemporaryPrefix[] = ".tmp-";

std::string Join(const std::string& directory, const std::string& name) { return absl::StrCat(directory, "/", name); }

v1::PathProblem Problem(const absl::Status& status) {
  v1::PathProblem problem;
  problem.set_message(ValidUtf8(std::string(status.message())));
  problem.set_kind(absl::IsNotFound(status)           ? v1::PATH_PROBLEM_KIND_MISSING
                   : absl::IsPermissionDenied(status) ? v1::PATH_PROBLEM_KIND_DENIED
                   : IsOutage(status)                 ? v1::PATH_PROBLEM_KIND_UNAVAILABLE
                                                      : v1::PATH_PROBLEM_KIND_WRONG);
  return problem;
}

// Reads the first byte, which an entry of a directory alone does not promise.
absl::Status CheckFileReadable(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": neither a file nor a folder"));
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrnoStatus(errno, path);
  char byte;
  const absl::Status status = read(fd, &byte, 1) < 0 ? ErrnoStatus(errno, path) : absl::OkStatus();
  close(fd);
  return status;
}

// Of a folder, that it can be listed and has something in it, and that its first file can be read.
absl::Status CheckReadable(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISDIR(info.st_mode)) return CheckFileReadable(path);
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(path);
  if (!names.ok()) return names.status();
  if (names->empty()) {
    return absl::NotFoundError(
        absl::StrCat(path, ": the folder is empty: its file system is not mounted, or nothing was put there"));
  }
  for (const std::string& name : *names) {
    const std::string file = Join(path, name);
    if (stat(file.c_str(), &info) == 0 && S_ISREG(info.st_mode)) return CheckFileReadable(file);
  }
  return absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  return error ? ErrnoStatus(error.value(), absl::StrCat(directory, ": cannot be made")) : absl::OkStatus();
}

// OK when the directory takes files. Nothing stays in it; daemons that share it do not meet.
absl::Status CheckWritable(const std::string& directory) {
  std::string trial = Join(directory, ".tmp-trial-XXXXXX");
  const int fd = mkostemp(trial.data(), O_CLOEXEC);
  if (fd < 0) return ErrnoStatus(errno, absl::StrCat(directory, ": not writable"));
  unlink(trial.c_str());
  const bool is_written = write(fd, "x", 1) == 1 && fsync(fd) == 0;
  const absl::Status status =
      is_written ? absl::OkStatus() : ErrnoStatus(errno, absl::StrCat(directory, ": not writable"));
  close(fd);
  return status;
}

std::string OwnerField(const std::string& text, const char* field) {
  const nlohmann::json owner = ParseJson(text);
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

// This machine's, since it was started; empty: not known.
std::string BootId() { return ReadSmallFile("/proc/sys/kernel/random/boot_id", kMaxOwnerBytes).value_or(""); }

// That of a job id, NAME-N: the later job of a service has the higher one.
int64_t JobNumber(const std::string& job) {
  int64_t number = 0;
  (void)absl::SimpleAtoi(job.substr(job.rfind('-') + 1), &number);
  return number;
}

// OK when no other job that lives writes there; an outage as long as that is not known. What is said of both is the
// same, so that a job that waits says it once.
absl::Status CheckWriter(const v1::CheckPaths& request, const absl::optional<FolderWriter>& writer,
                         const std::string& service, const CheckPathsOptions& options) {
  const std::string& dir = request.checkpoint_dir();
  if (!writer.has_value()) {
    options.watch->Forget(dir);
    return absl::OkStatus();
  }
  const std::string used = absl::StrCat(FolderUser(dir, *writer, service),
                                        ": cancel that one or wait for its end, or give another checkpoint.dir");
  const bool is_ours = writer->service == service;
  if (is_ours || writer->has_ended) options.watch->Forget(dir);
  if (is_ours) {
    const std::string job = OwnerField(request.owner(), "job");
    const bool is_open =
        std::find(request.open_jobs().begin(), request.open_jobs().end(), writer->job) != request.open_jobs().end();
    if (is_open && !writer->has_ended) return absl::FailedPreconditionError(used);
    const bool is_later =
        writer->job == job ? writer->attempt > request.last_attempt() : JobNumber(writer->job) > JobNumber(job);
    return is_later ? absl::FailedPreconditionError(absl::StrCat(used, "; this was asked before that one began"))
                    : absl::OkStatus();
  }
  if (!writer->has_ended) {
    const WriterWatch::Life life = options.watch->Look(dir, request.owner(), *writer, options.clock());
    // One that trained under a lock on this machine, which is not there any more, need not be watched.
    const bool has_lost_lock = !writer->locked_boot.empty() && writer->locked_boot == BootId();
    const std::string message =
        absl::StrCat(used, "; if it has died without a word, it loses the folder when it has not renewed ",
                     kWriterFileName, " for ", WriterWatch::kDeadSeconds, " s");
    if (life == WriterWatch::Life::kLives) return absl::FailedPreconditionError(message);
    if (life == WriterWatch::Life::kUnknown && !has_lost_lock) return absl::UnavailableError(message);
  }
  if (!request.has_run()) return absl::OkStatus();
  // What each has written since would be the other's to delete.
  return absl::FailedPreconditionError(absl::StrCat(
      "checkpoint.dir ", dir, " was taken over by job ", writer->job,
      " of another service, which trains there no more: cancel this job and submit it again; it goes on then from the "
      "newest checkpoint that is there"));
}

// Of a step-* or .tmp-step-* name.
absl::optional<CheckpointId> ParseEitherName(const std::string& name) {
  return ParseCheckpointName(absl::StartsWith(name, kTemporaryPrefix) ? name.substr(sizeof(kTemporaryPrefix) - 1)
                                                                      : name);
}

int64_t LargestAttempt(const std::vector<std::string>& names) {
  int64_t largest = 0;
  for (const std::string& name : names) {
    if (const absl::optional<CheckpointId> id = ParseEitherName(name); id.has_value())
      largest = std::max(largest, id->attempt);
  }
  return largest;
}

// For the request's job, after the one that wrote there before, if any.
absl::Status TakeFolder(const v1::CheckPaths& request, const FolderWriter& before, const std::string& service,
                        const CheckPathsOptions& options, v1::CheckPathsResult* result) {
  const std::string& dir = request.checkpoint_dir();
  options.watch->Forget(dir);
  FolderWriter writer;
  // What the one before has written, logs too, or still writes should it live after all, has other names.
  writer.last_attempt = std::max(before.last_attempt, before.attempt);
  // It may still begin the attempt that it has claimed the folder for.
  const bool may_begin =
      before.attempt == 0 && !before.service.empty() && before.service != service && !before.has_ended;
  if (may_begin) {
    const absl::StatusOr<std::vector<std::string>> names = ListDirectory(dir);
    if (!names.ok()) return names.status();
    writer.last_attempt = std::max(writer.last_attempt, LargestAttempt(*names)) + 1;
  }
  result->set_max_attempt(static_cast<int32_t>(writer.last_attempt));
  writer.service = service;
  writer.job = OwnerField(request.owner(), "job");
  writer.since = before.service == service && before.job == writer.job ? before.since : WallSeconds();
  if (FolderLock::IsFor(dir, options.coordinator)) writer.locked_boot = BootId();
  return WriteFolderWriter(dir, writer);
}

absl::Status Claim(const v1::CheckPaths& request, const CheckPathsOptions& options, v1::CheckPathsResult* result) {
  const std::string& dir = request.checkpoint_dir();
  const std::string path = Join(dir, kOwnerFileName);
  if (!request.has_run()) {
    if (absl::Status status = MakeDirectories(dir); !status.ok()) return status;
  }
  const std::string service = OwnerField(request.owner(), "service");
  const absl::StatusOr<absl::optional<FolderWriter>> writer = ReadFolderWriter(dir);
  if (!writer.ok()) {
    options.watch->Forget(dir);
    return writer.status();
  }
  const absl::Status used = CheckWriter(request, *writer, service, options);
  const absl::StatusOr<std::string> before = ReadSmallFile(path, kMaxOwnerBytes);
  if (absl::IsNotFound(before.status()) && request.has_run()) {
    return absl::NotFoundError(absl::StrCat(
        before.status().message(),
        ": checkpoint.dir is away, or what the job wrote there was removed; if it is gone for good, cancel the job and "
        "submit it again: it goes on from the checkpoints that are there then, or begins anew"));
  }
  if (!before.ok() && !absl::IsNotFound(before.status())) return before.status();
  if (before.ok()) {
    const std::string name = OwnerField(*before, "name");
    // The folder is that of a job that has run: what has torn its job.json is mended.
    if (name.empty() && !request.has_run()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path,
          ": damaged: names no job; remove it if the directory belongs to this job, or choose another checkpoint.dir"));
    }
    if (!name.empty() && name != OwnerField(request.owner(), "name")) {
      return absl::FailedPreconditionError(absl::StrCat(
          dir, ": belongs to job \"", name, "\" (", OwnerField(*before, "job"), "); choose another checkpoint.dir"));
    }
    result->set_previous_owner(ValidUtf8(*before));
  }
  if (absl::Status status = FolderLock::Check(dir, options.coordinator); !status.ok()) return status;
  if (!used.ok()) return used;
  if (absl::Status status = CheckWritable(dir); !status.ok()) return status;
  // A folder is not claimed for a job that cannot start.
  if (!result->problems().empty()) return absl::OkStatus();
  if (!service.empty()) {
    if (absl::Status status = TakeFolder(request, writer->value_or(FolderWriter()), service, options, result);
        !status.ok())
      return status;
  }
  return WriteAtomically(path, request.owner());
}

absl::Status Expect(const v1::CheckPaths& request, double patience_seconds) {
  const std::string path = Join(request.checkpoint_dir(), kOwnerFileName);
  const absl::Time deadline = absl::Now() + absl::Seconds(patience_seconds);
  while (true) {
    const absl::StatusOr<std::string> owner = ReadSmallFile(path, kMaxOwnerBytes);
    if (owner.ok() && *owner == request.owner()) return CheckWritable(request.checkpoint_dir());
    if (absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(100));
      continue;
    }
    return absl::Status(owner.ok() ? absl::StatusCode::kFailedPrecondition : owner.status().code(),
                        absl::StrCat(request.checkpoint_dir(), ": not the directory that rank 0's worker sees: ",
                                     owner.ok() ? absl::StrCat(path, " belongs to ", OwnerField(*owner, "job"))
                                                : std::string(owner.status().message()),
                                     "; checkpoint.dir must be on a file system that all workers share"));
  }
}

// What the coordinator compares: not config.json and the names of what is frozen, which may be long and are there once
// a checkpoint.
std::string WithoutLongEntries(const std::string& identity) {
  nlohmann::ordered_json json = ParseOrderedJson(identity);
  if (!json.is_object() || json.erase("config_json") + json.erase("frozen") == 0) return identity;
  return json.dump();
}

// Adds the checkpoint at `path`.
void Describe(const v1::CheckPaths& request, const std::string& name, const std::string& path,
              v1::CheckPathsResult* result) {
  v1::FoundCheckpoint& found = *result->add_checkpoints();
  found.set_name(name);
  const absl::optional<CheckpointId> id = ParseCheckpointName(std::filesystem::path(path).filename().string());
  if (id.has_value()) {
    found.set_step(id->step);
    found.set_attempt(static_cast<int32_t>(id->attempt));
  }
  const absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = Checkpoint::Open(path);
  if (IsOutage(checkpoint.status())) {
    *found.mutable_unread() = Problem(checkpoint.status());
    return;
  }
  if (!checkpoint.ok()) {
    found.set_damage(ValidUtf8(std::string(checkpoint.status().message())));
    return;
  }
  const Manifest& manifest = (*checkpoint)->manifest();
  found.set_step(manifest.step);
  found.set_attempt(static_cast<int32_t>(manifest.attempt));
  found.set_identity(WithoutLongEntries(manifest.identity));
  int64_t num_bytes = 0;
  for (const ManifestFile& file : manifest.files) num_bytes += file.num_bytes;
  found.set_size_bytes(num_bytes);
  struct stat manifest_file = {};
  if (stat(Join(path, kManifestFileName).c_str(), &manifest_file) == 0)
    found.set_time(static_cast<double>(manifest_file.st_mtim.tv_sec) +
                   1e-9 * static_cast<double>(manifest_file.st_mtim.tv_nsec));
  if (!request.export_dir().empty() && CheckExport(request.export_dir(), manifest).ok())
    result->set_exported_checkpoint(name);
}

absl::Status ListAll(const v1::CheckPaths& request, v1::CheckPathsResult* result) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(request.checkpoint_dir());
  if (!names.ok()) return names.status();
  result->set_max_attempt(std::max<int32_t>(result->max_attempt(), static_cast<int32_t>(LargestAttempt(*names))));
  for (const std::string& name : *names) {
    // Of one that was killed.
    if (absl::StartsWith(name, kTemporaryWriterPrefix)) (void)RemoveTree(Join(request.checkpoint_dir(), name));
    if (!ParseCheckpointName(name).has_value()) continue;
    Describe(request, name, Join(request.checkpoint_dir(), name), result);
  }
  return absl::OkStatus();
}

// Adds a problem for each path that may not be used. Nothing of the request is done then.
void CheckAllowed(const v1::CheckPaths& request, const AllowedPaths& paths, v1::CheckPathsResult* result) {
  using Use = AllowedPaths::Use;
  std::vector<std::pair<std::string, Use>> uses;
  for (const std::string& path : request.readable()) uses.emplace_back(path, Use::kRead);
  for (const std::string& path : {request.model_dir(), request.resume_path()}) uses.emplace_back(path, Use::kRead);
  for (const std::string& path : {request.checkpoint_dir(), request.export_dir()}) uses.emplace_back(path, Use::kWrite);
  std::set<std::string> told;
  for (const auto& [path, use] : uses) {
    if (path.empty()) continue;
    const absl::Status status = paths.Check(path, use);
    // What is away is told by who looks for it, in the words of its kind.
    if (absl::IsInvalidArgument(status) && told.insert(path).second) *result->add_problems() = Problem(status);
  }
}

// Deletes a checkpoint so that one killed in the middle leaves no directory that looks like a checkpoint. One that is
// not there is fine.
absl::Status Delete(const std::string& directory, const std::string& name) {
  const std::string path = Join(directory, name);
  std::error_code error;
  const auto type = std::filesystem::symlink_status(path, error).type();
  if (type == std::filesystem::file_type::not_found) return absl::OkStatus();
  if (type != std::filesystem::file_type::directory) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a directory"));
  }
  if (absl::StartsWith(name, kTemporaryPrefix)) return RemoveTree(path);
  const std::string temporary = Join(directory, absl::StrCat(kTemporaryPrefix, name));
  if (absl::Status status = RemoveTree(temporary); !status.ok()) return status;
  if (rename(path.c_str(), temporary.c_str()) != 0)
    return ErrnoStatus(errno, absl::StrCat(path, ": cannot be renamed"));
  return RemoveTree(temporary);
}

}  // namespace

v1::CheckPathsResult CheckPaths(const v1::CheckPaths& request, const CheckPathsOptions& options) {
  v1::CheckPathsResult result;
  result.set_request(request.request());
  CheckAllowed(request, options.paths, &result);
  if (!result.problems().empty()) return result;
  for (const std::string& path : request.readable()) {
    if (absl::Status status = CheckReadable(path); !status.ok()) *result.add_problems() = Problem(status);
  }
  for (const std::string& id : request.uploads()) {
    if (absl::Status status = options.upload(id); !status.ok()) *result.add_problems() = Problem(status);
  }
  const std::string& directory = request.checkpoint_dir();
  absl::Status status;
  if (!directory.empty() && request.mode() == v1::CHECK_PATHS_MODE_CLAIM) {
    status = Claim(request, options, &result);
    if (status.ok()) status = ListAll(request, &result);
  } else if (!directory.empty()) {
    status = Expect(request, options.patience_seconds);
  }
  if (!status.ok()) *result.add_problems() = Problem(status);
  if (!request.export_dir().empty()) {
    status = CheckExportFolder(request.model_dir(), request.export_dir());
    if (absl::IsAlreadyExists(status)) result.set_export_problem(ValidUtf8(std::string(status.message())));
  }
  if (!request.resume_path().empty() && request.mode() == v1::CHECK_PATHS_MODE_CLAIM) {
    Describe(request, request.resume_path(), request.resume_path(), &result);
  }
  return result;
}

v1::DeleteCheckpointsResult DeleteCheckpoints(const v1::DeleteCheckpoints& request, const AllowedPaths& paths) {
  v1::DeleteCheckpointsResult result;
  result.set_request(request.request());
  const std::string& directory = request.checkpoint_dir();
  if (absl::Status status = paths.Check(directory, AllowedPaths::Use::kWrite); !status.ok()) {
    result.add_errors(std::string(status.message()));
    return result;
  }
  // Where the folder is away nothing is there either, and counts as deleted no more than as lost.
  if (absl::Status status = CheckFileReadable(Join(directory, kOwnerFileName)); !status.ok()) {
    result.add_errors(std::string(status.message()));
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

v1::WriteReportResult WriteReport(const v1::WriteReport& request, const AllowedPaths& paths) {
  v1::WriteReportResult result;
  result.set_request(request.request());
  const std::string& dir = request.checkpoint_dir();
  const auto fail = [&result](const absl::Status& status) {
    result.set_error(ValidUtf8(std::string(status.message())));
    return result;
  };
  if (absl::Status status = paths.Check(dir, AllowedPaths::Use::kWrite); !status.ok()) return fail(status);
  if (absl::Status status = CheckClaimed(dir); !status.ok()) return fail(status);
  const absl::StatusOr<absl::optional<FolderWriter>> writer = ReadFolderWriter(dir);
  if (!writer.ok()) return fail(writer.status());
  if (writer->has_value() && ((*writer)->service != request.service() || (*writer)->job != request.job()))
    return fail(absl::FailedPreconditionError(FolderUser(dir, **writer, request.service())));
  RunReport report;
  report.dir = dir;
  struct stat info;
  if (request.step() == 0 && stat(ReportPath(dir).c_str(), &info) != 0) return result;
  report.run = ParseJson(request.run());
  if (!report.run.is_object()) report.run = nlohmann::json::object();
  report.outcome = request.outcome();
  report.failure = request.failure();
  report.step = request.step();
  report.max_steps = request.max_steps();
  report.checkpoint = request.checkpoint();
  report.peak_memory_bytes = request.peak_memory_bytes();
  if (absl::Status status = WriteReport(report); !status.ok()) return fail(status);
  result.set_path(ReportPath(dir));
  return result;
}

void LeaveFolder(const v1::LeaveFolder& request, const AllowedPaths& paths) {
  const std::string& dir = request.checkpoint_dir();
  if (!paths.Check(dir, AllowedPaths::Use::kWrite).ok() || !CheckClaimed(dir).ok()) return;
  const absl::StatusOr<absl::optional<FolderWriter>> writer = ReadFolderWriter(dir);
  if (!writer.ok() || !writer->has_value()) return;
  FolderWriter left = **writer;
  if (left.service != request.service() || left.job != request.job() || left.has_ended) return;
  left.has_ended = true;
  (void)WriteFolderWriter(dir, std::move(left));
}

}  // namespace tacc::worker
