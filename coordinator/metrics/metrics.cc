#include "coordinator/metrics/metrics.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/reflection.h>

#include <map>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/core/view.h"
#include "metrics/metric.h"

namespace tacc::coordinator {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

std::optional<double> Number(const Message& message, const FieldDescriptor* field) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection.GetDouble(message, field);
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.GetInt32(message, field);
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(reflection.GetInt64(message, field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return static_cast<double>(reflection.GetUInt64(message, field));
    default:
      return std::nullopt;
  }
}

// The entry of a map to numbers that has this key.
std::optional<double> Entry(const Message& message, const FieldDescriptor* field, absl::string_view key) {
  const FieldDescriptor* const key_field = field->message_type()->map_key();
  const FieldDescriptor* const value_field = field->message_type()->map_value();
  for (const Message& entry : message.GetReflection()->GetRepeatedFieldRef<Message>(message, field)) {
    if (entry.GetReflection()->GetString(entry, key_field) == key) return Number(entry, value_field);
  }
  return std::nullopt;
}

// The number that `source` names (metrics::Metric::source); none where it is not set, and for a name that there is not.
std::optional<double> NumberAt(const Message& message, absl::string_view source) {
  const bool leaves_out_zero = absl::ConsumeSuffix(&source, "?");
  const Message* at = &message;
  const std::vector<std::string> path = absl::StrSplit(source, '.');
  for (size_t i = 0; i < path.size(); ++i) {
    const FieldDescriptor* const field = at->GetDescriptor()->FindFieldByName(path[i]);
    const bool is_last = i + 1 == path.size();
    if (field == nullptr) return std::nullopt;
    if (field->is_map()) return is_last ? std::nullopt : Entry(*at, field, path[i + 1]);
    if (field->is_repeated()) return at->GetReflection()->FieldSize(*at, field);
    if (field->has_presence() && !at->GetReflection()->HasField(*at, field)) return std::nullopt;
    if (is_last) {
      const std::optional<double> number = Number(*at, field);
      return leaves_out_zero && number == 0 ? std::nullopt : number;
    }
    if (field->message_type() == nullptr) return std::nullopt;
    at = &at->GetReflection()->GetMessage(*at, field);
  }
  return std::nullopt;
}

// "PHASE_RUNNING" -> "running".
std::string StateName(int phase) {
  return absl::AsciiStrToLower(v1::Phase_Name(static_cast<v1::Phase>(phase)).substr(6));
}

void AddJob(const JobState& job, metrics::Families* out) {
  const v1::Job view = ViewJob(job, /*clear_address=*/"");
  for (int phase = v1::Phase_MIN + 1; phase <= v1::Phase_MAX; ++phase)
    out->Add("tacc_job_state", phase == view.phase() ? 1 : 0, {view.id(), StateName(phase)});
  for (const metrics::Metric& metric : metrics::AllMetrics()) {
    const std::string source = metric.source;
    if (source.empty()) continue;
    if (metric.scope == metrics::Scope::kJob) {
      if (const std::optional<double> number = NumberAt(view, source)) out->Add(metric, *number, {view.id()});
    } else if (metric.scope == metrics::Scope::kJobRank) {
      for (const v1::RankView& rank : view.ranks()) {
        if (const std::optional<double> number = NumberAt(rank, source))
          out->Add(metric, *number, {view.id(), absl::StrCat(rank.rank())});
      }
    }
  }
}

}  // namespace

std::vector<prometheus::MetricFamily> CollectMetrics(const Core& core, const MetricsInput& input) {
  metrics::Families out;
  out.Add("tacc_build_info", 1, {input.version});
  std::map<int, int> jobs;
  for (int phase = v1::Phase_MIN + 1; phase <= v1::Phase_MAX; ++phase) jobs[phase] = 0;
  for (const auto& [id, job] : core.jobs()) ++jobs[job.Phase()];
  for (const auto& [phase, count] : jobs) out.Add("tacc_jobs", count, {StateName(phase)});
  std::map<std::string, int> workers = {{"busy", 0}, {"idle", 0}, {"lost", 0}, {"outdated", 0}, {"unusable", 0}};
  const double awake = core.AwakeSeconds(input.now);
  for (const auto& [name, worker] : core.members().workers()) ++workers[ViewWorker(worker, awake).state()];
  for (const auto& [state, count] : workers) out.Add("tacc_workers", count, {state});
  out.Add("tacc_coordinator_commits_total", input.commits, {});
  out.Add("tacc_coordinator_commit_seconds_total", input.commit_seconds, {});
  out.Add("tacc_coordinator_upload_received_bytes_total", input.upload_received_bytes, {});
  out.Add("tacc_coordinator_upload_sent_bytes_total", input.upload_sent_bytes, {});
  for (const auto& [id, job] : core.jobs()) {
    if (job.ended.has_value() && input.now.wall - job.ended_time > kEndedJobSeconds) continue;
    AddJob(job, &out);
  }
  return out.Take();
}

}  // namespace tacc::coordinator
