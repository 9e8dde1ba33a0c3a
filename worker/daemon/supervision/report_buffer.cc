#include "worker/daemon/supervision/report_buffer.h"

#include <algorithm>
#include <utility>

namespace tacc::worker {
namespace {

constexpr size_t kMaxForgotten = 64;
// What a report costs beside its text: node of the map, keys, sets.
constexpr size_t kOverheadBytes = 256;

size_t SizeOf(const Report& report) {
  size_t size = kOverheadBytes + report.key.job.size() + report.event.size();
  for (const std::string& line : report.log_lines) size += line.size() + sizeof(std::string);
  for (const std::string& line : report.exit.last_log_lines) size += line.size() + sizeof(std::string);
  return size;
}

}  // namespace

ReportBuffer::Stream* ReportBuffer::Find(const RankKey& key) {
  for (auto& [stream_key, stream] : streams_) {
    if (stream_key == key) return &stream;
  }
  return nullptr;
}

void ReportBuffer::Add(Report report) {
  Stream* stream = Find(report.key);
  if (stream == nullptr) {
    streams_.emplace_back(report.key, Stream());
    stream = &streams_.back().second;
    const auto known = std::find_if(forgotten_.begin(), forgotten_.end(),
                                    [&](const auto& entry) { return entry.first == report.key; });
    if (known != forgotten_.end()) {
      stream->last_sequence = known->second;
      stream->last_sent = known->second;
      forgotten_.erase(known);
    }
  }
  if (stream->has_exited) return;
  stream->has_exited = report.kind == ReportKind::kExit;
  report.sequence = ++stream->last_sequence;
  const ReportKind kind = report.kind;
  Keep(stream, std::move(report));
  if (kind == ReportKind::kLog) {
    DropOver(limits_.log_bytes, log_bytes_, &Stream::logs);
  } else {
    DropOver(limits_.event_bytes, event_bytes_, &Stream::steps);
  }
}

void ReportBuffer::Keep(Stream* stream, Report report) {
  (report.kind == ReportKind::kLog ? log_bytes_ : event_bytes_) += SizeOf(report);
  if (report.kind == ReportKind::kLog) stream->logs.insert(report.sequence);
  if (report.kind == ReportKind::kStepMetric) stream->steps.insert(report.sequence);
  stream->reports.emplace(report.sequence, std::move(report));
}

void ReportBuffer::Erase(Stream* stream, std::map<uint64_t, Report>::iterator report) {
  (report->second.kind == ReportKind::kLog ? log_bytes_ : event_bytes_) -= SizeOf(report->second);
  stream->logs.erase(report->first);
  stream->steps.erase(report->first);
  stream->reports.erase(report);
}

void ReportBuffer::DropOver(size_t limit, const size_t& held, std::set<uint64_t> Stream::*of_kind) {
  for (auto& [key, stream] : streams_) {
    std::set<uint64_t>& candidates = stream.*of_kind;
    while (held > limit && !candidates.empty()) {
      Erase(&stream, stream.reports.find(*candidates.begin()));
      ++num_dropped_;
    }
  }
}

void ReportBuffer::Acknowledge(const RankKey& key, uint64_t sequence) {
  Stream* stream = Find(key);
  if (stream == nullptr) return;
  while (!stream->reports.empty() && stream->reports.begin()->first <= sequence) Erase(stream, stream->reports.begin());
  if (!stream->has_exited || !stream->reports.empty()) return;
  forgotten_.emplace_back(key, stream->last_sequence);
  if (forgotten_.size() > kMaxForgotten) forgotten_.erase(forgotten_.begin());
  streams_.erase(std::find_if(streams_.begin(), streams_.end(), [&](const auto& entry) { return entry.first == key; }));
}

void ReportBuffer::Rewind() {
  for (auto& [key, stream] : streams_) stream.last_sent = 0;
}

const Report* ReportBuffer::Next() {
  for (auto& [key, stream] : streams_) {
    const auto next = stream.reports.upper_bound(stream.last_sent);
    if (next == stream.reports.end()) continue;
    stream.last_sent = next->first;
    return &next->second;
  }
  return nullptr;
}

std::vector<HeldRank> ReportBuffer::Held() const {
  std::vector<HeldRank> held;
  for (const auto& [key, stream] : streams_) held.push_back({key, stream.has_exited});
  return held;
}

bool ReportBuffer::IsHeld(const RankKey& key) const {
  return std::any_of(streams_.begin(), streams_.end(), [&](const auto& entry) { return entry.first == key; });
}

bool ReportBuffer::IsEmpty() const {
  return std::all_of(streams_.begin(), streams_.end(), [](const auto& entry) { return entry.second.reports.empty(); });
}

}  // namespace tacc::worker
