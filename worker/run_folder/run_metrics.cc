#include "worker/run_folder/run_metrics.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "json/parse_json.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/writer.h"
#include "worker/run_folder/event_file.h"

namespace tacc::worker {
namespace {

using Json = nlohmann::ordered_json;

// A number of a point, and how TensorBoard shows it.
struct Tag {
  const char* field;
  const char* tag;
};
constexpr Tag kTrainTags[] = {{"loss", "train/loss"},
                              {"grad_norm", "train/grad_norm"},
                              {"learning_rate", "train/learning_rate"},
                              {"epoch", "train/epoch"},
                              {"loss_scale", "train/loss_scale"},
                              {"expert_overflow", "train/expert_overflow"},
                              {"tokens_per_second", "perf/tokens_per_second"},
                              {"mfu", "perf/mfu"},
                              {"seconds", "perf/step_seconds"},
                              {"data_wait_seconds", "perf/data_wait_seconds"},
                              {"communication_seconds", "perf/communication_seconds"},
                              {"device_idle_share", "perf/device_idle_share"},
                              {"device_memory_used_bytes", "perf/device_memory_used_bytes"}};
constexpr Tag kEvalTags[] = {{"eval_loss", "eval/loss"}, {"seconds", "eval/seconds"}};

std::string EventDir(const std::string& dir) { return absl::StrCat(dir, "/tensorboard"); }
constexpr char kEventFilePrefix[] = "events.out.tfevents.";

template <size_t kNumTags>
std::vector<Scalar> Scalars(const Json& point, const Tag (&tags)[kNumTags]) {
  std::vector<Scalar> scalars;
  for (const Tag& tag : tags) {
    const auto value = point.find(tag.field);
    if (value != point.end() && value->is_number()) scalars.push_back({tag.tag, value->template get<double>()});
  }
  return scalars;
}

// The step of the point that a line is; -1: it is none.
int64_t StepOf(absl::string_view line) {
  const Json point = ParseOrderedJson(line);
  if (!point.is_object() || !point.contains("step") || !point["step"].is_number_integer()) return -1;
  return std::max<int64_t>(0, point["step"].get<int64_t>());
}

// Of metrics.jsonl at a time.
constexpr int64_t kMinReadBytes = 64 << 10;

// Adds the bytes of `file` from `begin` on to the file at `path`, and forces them to the disk.
absl::Status Keep(const InputFile& file, int64_t begin, const std::string& path) {
  const absl::StatusOr<std::unique_ptr<AppendFile>> kept = AppendFile::Open(path);
  if (!kept.ok()) return kept.status();
  std::string bytes;
  for (int64_t at = begin; at < file.num_bytes(); at += static_cast<int64_t>(bytes.size())) {
    bytes.resize(std::min(file.num_bytes() - at, kMinReadBytes));
    absl::Status status = file.Read(at, bytes.data(), static_cast<int64_t>(bytes.size()));
    (*kept)->Append(bytes);
    if (status.ok()) status = (*kept)->Flush();
    if (!status.ok()) return status;
  }
  return (*kept)->Sync();
}

// Cuts off the lines behind the last one that is of one of the first `steps_done` updates, or of an evaluation after
// them. Returns a remark where other things than points were among them; these bytes are kept.
absl::StatusOr<std::string> CutLines(const std::string& path, int64_t steps_done) {
  const absl::StatusOr<std::unique_ptr<InputFile>> file = InputFile::Open(path);
  if (absl::IsNotFound(file.status())) return "";
  if (!file.ok()) return file.status();
  int64_t end = (*file)->num_bytes(), num_damaged = 0;
  // The file's bytes [read_from, end): read from the end on, as far as is needed.
  std::string tail;
  int64_t read_from = end;
  while (end > 0) {
    const size_t newline = tail.size() < 2 ? std::string::npos : tail.rfind('\n', tail.size() - 2);
    if (newline == std::string::npos && read_from > 0) {
      const int64_t more = std::min(read_from, std::max<int64_t>(kMinReadBytes, tail.size()));
      read_from -= more;
      tail.insert(0, more, '\0');
      if (absl::Status status = (*file)->Read(read_from, tail.data(), more); !status.ok()) return status;
      continue;
    }
    const size_t begin = newline == std::string::npos ? 0 : newline + 1;
    if (tail.back() == '\n') {
      const int64_t step = StepOf(absl::string_view(tail).substr(begin, tail.size() - 1 - begin));
      if (step >= 0 && step <= steps_done) break;
      num_damaged += step < 0 ? 1 : 0;
    } else if (tail[begin] != '{') {  // Not the beginning of a point.
      ++num_damaged;
    }
    tail.resize(begin);
    end = read_from + static_cast<int64_t>(begin);
  }
  std::string remark;
  if (num_damaged > 0) {
    const std::string kept = absl::StrCat(path, ".damaged");
    if (absl::Status status = Keep(**file, end, kept); !status.ok()) return status;
    remark = absl::StrCat(path, ": lines that are no points (", num_damaged, ") were found after step ", steps_done,
                          " or before it; all from byte ", end, " on was cut off, and is in ", kept);
  }
  if (end < (*file)->num_bytes() && truncate(path.c_str(), end) != 0) return ErrnoStatus(errno, path);
  return remark;
}

// Of a new event file: readers take the files of a folder in the order of their names, which begin with a time.
absl::StatusOr<std::string> EventFilePath(const std::string& dir, double time) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(dir);
  if (!names.ok()) return names.status();
  int64_t seconds = static_cast<int64_t>(time);
  for (absl::string_view name : *names) {
    int64_t taken = 0;
    if (absl::ConsumePrefix(&name, kEventFilePrefix) && absl::SimpleAtoi(name.substr(0, name.find('.')), &taken))
      seconds = std::max(seconds, taken + 1);
  }
  return absl::StrFormat("%s/%s%010d.tacc", dir, kEventFilePrefix, seconds);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunMetrics>> RunMetrics::Open(const std::string& dir, int64_t steps_done, double time,
                                                             std::function<absl::Status()> may_write) {
  if (may_write) {
    if (absl::Status status = may_write(); !status.ok()) return status;
  }
  const std::string path = absl::StrCat(dir, "/metrics.jsonl"), event_dir = EventDir(dir);
  absl::StatusOr<std::string> remark = CutLines(path, steps_done);
  if (!remark.ok()) return remark.status();
  auto lines = AppendFile::Open(path);
  if (!lines.ok()) return lines.status();
  if (absl::Status status = MakeDirectory(event_dir); !status.ok()) return status;
  const absl::StatusOr<std::string> event_path = EventFilePath(event_dir, time);
  if (!event_path.ok()) return event_path.status();
  auto events = AppendFile::Open(*event_path);
  if (!events.ok()) return events.status();
  (*events)->Append(FileVersionRecord(time));
  (*events)->Append(SessionStartRecord(time, steps_done + 1));
  std::unique_ptr<RunMetrics> metrics(new RunMetrics(dir, *std::move(lines), *std::move(events), std::move(may_write)));
  metrics->remark_ = *std::move(remark);
  // Before the points of a file are forced to the disk, the file is to be found there.
  absl::Status status = metrics->events_->Flush();
  if (status.ok()) status = SyncDirectory(event_dir);
  if (status.ok()) status = SyncDirectory(dir);
  if (status.ok()) return metrics;
  unlink(event_path->c_str());
  return status;
}

RunMetrics::RunMetrics(std::string dir, std::unique_ptr<AppendFile> lines, std::unique_ptr<AppendFile> events,
                       std::function<absl::Status()> may_write)
    : dir_(std::move(dir)),
      is_claimed_(CheckClaimed(dir_).ok()),
      lines_(std::move(lines)),
      events_(std::move(events)),
      may_write_(std::move(may_write)) {}

absl::Status RunMetrics::FindFiles() {
  if (may_write_) {
    if (absl::Status status = may_write_(); !status.ok()) return status;
  }
  const bool has_lines = lines_->IsInPlace(), has_events = events_->IsInPlace();
  if (has_lines && has_events) return absl::OkStatus();
  // What a lost mount has left is no place for them; the files that are open may be written on.
  if (is_claimed_ && !CheckClaimed(dir_).ok()) return absl::OkStatus();
  if (!has_lines) {
    if (absl::Status status = lines_->Reopen(""); !status.ok()) return status;
    remark_ = absl::StrCat(dir_,
                           "/metrics.jsonl was removed or replaced while the run was writing to it: points from "
                           "now on are in the file that is there now");
  }
  if (!has_events) {
    const std::string event_dir = EventDir(dir_);
    if (absl::Status status = MakeDirectory(event_dir); !status.ok()) return status;
    if (absl::Status status = events_->Reopen(FileVersionRecord(last_flush_)); !status.ok()) return status;
    if (absl::Status status = SyncDirectory(event_dir); !status.ok()) return status;
    if (remark_.empty()) {
      remark_ = absl::StrCat("the file of this start in ", event_dir, " was removed or replaced while the run was ",
                             "writing to it: scalars from now on are in the one that is there now");
    }
  }
  return SyncDirectory(dir_);
}

absl::Status RunMetrics::Add(const Json& point) {
  lines_->Append(point.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  const double time = point.value("time", 0.0);
  events_->Append(ScalarsRecord(time, point.value("step", int64_t{0}),
                                point.contains("eval_loss") ? Scalars(point, kEvalTags) : Scalars(point, kTrainTags)));
  if (std::abs(time - last_flush_) < kFlushSeconds) return absl::OkStatus();
  last_flush_ = time;
  if (absl::Status status = FindFiles(); !status.ok()) return status;
  const absl::Status flushed = lines_->Flush();
  const absl::Status events_flushed = events_->Flush();
  return flushed.ok() ? events_flushed : flushed;
}

absl::Status RunMetrics::Sync() {
  if (absl::Status status = FindFiles(); !status.ok()) return status;
  const absl::Status synced = lines_->Sync();
  const absl::Status events_synced = events_->Sync();
  return synced.ok() ? events_synced : synced;
}

}  // namespace tacc::worker
